"""The float64 oracle: what every stage must compute, written independently of them.

NumPy and loops over heads and queries, straight from the definitions. It shares no line
with pa_tutorial.attention, so that one mistake can't be on both sides of a comparison.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def attend(
    q: Array, k: Array, v: Array, scale: float, slopes: Array | None, first: int
) -> dict[str, Array]:
    """Causal attention of the tokens at positions first, first + 1, … over tokens 0, 1, ….

    q        [num_queries, num_heads, head_size]
    k, v     [seq_len, num_kv_heads, head_size]
    returns  out     [num_queries, num_heads, head_size]
             qk      [num_heads, num_queries, seq_len]  scores; -inf where masked
             logits  [num_heads, num_queries, seq_len]  weights; 0 where masked
    """
    num_queries, num_heads, _ = q.shape
    seq_len, num_kv_heads, _ = k.shape
    out = np.zeros_like(q)
    qk = np.full((num_heads, num_queries, seq_len), -np.inf)
    logits = np.zeros((num_heads, num_queries, seq_len))
    for head in range(num_heads):
        group = head * num_kv_heads // num_heads
        for query in range(num_queries):
            visible = first + query + 1
            scores = k[:visible, group] @ q[query, head] * scale
            if slopes is not None:
                scores = scores - slopes[head] * np.arange(visible - 1, -1, -1)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            qk[head, query, :visible] = scores
            logits[head, query, :visible] = weights
            out[query, head] = weights @ v[:visible, group]
    return {"qk": qk, "logits": logits, "out": out}


def float8(numbers: Array, num_mantissa_bits: int, bias: int, largest: float) -> Array:
    """The nearest number with so few bits, ties to even; beyond the largest one, that one."""
    _, exponent = np.frexp(numbers)  # 0.5 <= |mantissa| < 1
    exponent = np.maximum(exponent - 1, 1 - bias)
    step = 2.0 ** (exponent - num_mantissa_bits)
    return np.clip(np.rint(numbers / step) * step, -largest, largest)


def rms_norm(hidden: Array, weight: Array) -> Array:
    return hidden / np.sqrt(np.square(hidden).mean(axis=-1, keepdims=True) + 1e-5) * weight


def tiny_lm(
    weights: dict[str, Array],
    tokens: NDArray[np.int64],
    num_layers: int,
    head_size: int,
    slopes: Array | None,
) -> dict[str, Array]:
    """A TinyLM over one whole sequence; `weights` are named as in its state_dict.

    returns  what attend returns, with num_layers as the first dimension
    """
    hidden = weights["token_embedding.weight"][tokens]
    hidden = hidden + weights["position_embedding.weight"][: len(tokens)]
    layers = []
    for index in range(num_layers):
        w = {
            name.removeprefix(f"layers.{index}."): array
            for name, array in weights.items()
            if name.startswith(f"layers.{index}.")
        }
        x = rms_norm(hidden, w["attention_norm.weight"])
        q, k, v = (
            (x @ w[f"to_{name}.weight"].T).reshape(len(tokens), -1, head_size) for name in "qkv"
        )
        attended = attend(q, k, v, head_size**-0.5, slopes, first=0)
        layers.append(attended)
        hidden = hidden + attended["out"].reshape(len(tokens), -1) @ w["to_out.weight"].T
        x = rms_norm(hidden, w["mlp_norm.weight"])
        hidden = hidden + np.maximum(x @ w["mlp_up.weight"].T, 0) @ w["mlp_down.weight"].T
    return {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}


def paged_cache(
    keys: list[Array],
    values: list[Array],
    block_tables: list[list[int]],
    num_blocks: int,
    block_size: int,
    layout: str,
    x: int,
) -> tuple[Array, Array]:
    """K and V of many sequences, put into their blocks token by token; NaN everywhere else.

    keys, values  one array per sequence, [seq_len, num_kv_heads, head_size]
    layout        "vllm" or "plain"
    returns       k_cache, v_cache in that layout (shapes: pa_tutorial.paging.layouts)
    """
    _, num_kv_heads, head_size = keys[0].shape
    vllm = layout == "vllm"
    k_shape = (head_size // x, block_size, x) if vllm else (block_size, head_size)
    v_shape = (head_size, block_size) if vllm else (block_size, head_size)
    k_cache = np.full((num_blocks, num_kv_heads, *k_shape), np.nan)
    v_cache = np.full((num_blocks, num_kv_heads, *v_shape), np.nan)
    for table, own_keys, own_values in zip(block_tables, keys, values, strict=True):
        for token, (key, value) in enumerate(zip(own_keys, own_values, strict=True)):
            block, offset = table[token // block_size], token % block_size
            if vllm:
                for chunk in range(head_size // x):
                    k_cache[block, :, chunk, offset, :] = key[:, chunk * x : (chunk + 1) * x]
                v_cache[block, :, :, offset] = value
            else:
                k_cache[block, :, offset] = key
                v_cache[block, :, offset] = value
    return k_cache, v_cache
