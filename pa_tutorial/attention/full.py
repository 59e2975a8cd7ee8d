"""Attention from its definition: every query against every key that it may see."""

import torch
from torch import Tensor

from pa_tutorial.arguments import (
    float32_scale,
    require,
    require_floats,
    require_heads,
    require_shape,
    require_tensor,
)


def require_heads_that_fit(
    q: Tensor, name: str, num_kv_heads: int, kv_head_size: int, alibi_slopes: Tensor | None
) -> None:
    """Raise ValueError unless the heads of q match the KV heads, and the slopes the heads of q.

    name  of the argument that has the KV heads: k or k_cache
    """
    num_heads, head_size = q.shape[1:]
    if head_size != kv_head_size:
        raise ValueError(f"{name} has head_size {kv_head_size}; it must be {head_size}, as in q")
    require_heads(num_heads, num_kv_heads)
    if alibi_slopes is not None:
        must = f"it must be [{num_heads}], one slope per head"
        require_shape(alibi_slopes.shape == (num_heads,), "alibi_slopes", alibi_slopes, must)


def require_attention_inputs(
    q: Tensor, k: Tensor, v: Tensor, scale: float, alibi_slopes: Tensor | None
) -> None:
    """Raise TypeError or ValueError, naming the argument, unless they go together.

    q             [num_queries, num_heads, head_size]    at most as many queries as tokens
    k, v          [seq_len, num_kv_heads, head_size]     num_kv_heads divides num_heads
    scale         a finite number
    alibi_slopes  [num_heads] or None
    """
    float32_scale(scale)
    if alibi_slopes is not None:
        require_tensor("alibi_slopes", alibi_slopes)
    require_floats(q=q, k=k, v=v)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        must = "it must have 3 dimensions: [tokens, heads, head_size]"
        require_shape(tensor.dim() == 3, name, tensor, must)
    require_shape(k.shape == v.shape, "v", v, f"it must have the shape of k, {list(k.shape)}")
    num_queries, seq_len = len(q), len(k)
    if not 1 <= num_queries <= seq_len:
        raise ValueError(f"q holds {num_queries} tokens; it must hold 1 to {seq_len}, k's length")
    require_heads_that_fit(q, "k", *k.shape[1:], alibi_slopes)


def repeat_kv_heads(kv: Tensor, num_heads: int) -> Tensor:
    """Give every query head its KV head (grouped-query attention).

    kv       [seq_len, num_kv_heads, head_size]
    returns  [seq_len, num_heads, head_size]

    Source: vLLM, kv_head_idx in csrc/attention/attention_kernels.cuh.
    """
    require_tensor("kv", kv)
    require(kv.dim() == 3, "kv.shape", list(kv.shape), "[seq_len, num_kv_heads, head_size]")
    num_kv_heads = kv.shape[1]
    require_heads(num_heads, num_kv_heads)
    num_queries_per_kv = num_heads // num_kv_heads
    # With 6 heads and 3 KV heads: 0 0 1 1 2 2
    kv_head = torch.arange(num_heads, device=kv.device) // num_queries_per_kv
    return kv.index_select(1, kv_head)  # as kv[:, kv_head], in a fraction of the time


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    probe: dict[str, Tensor] | None = None,
) -> Tensor:
    """Causal attention over a whole sequence, from scratch. Stage `full_recompute`.

    q             [seq_len, num_heads, head_size]
    k, v          [seq_len, num_kv_heads, head_size]   num_kv_heads divides num_heads
    scale         usually head_size ** -0.5
    alibi_slopes  [num_heads]; adds slope * (j - i) to the score of query i and key j
    probe         receives `qk` and `logits`, both [num_heads, seq_len, seq_len]:
                  the scores before the softmax, and the weights after it
    returns       [seq_len, num_heads, head_size], in the dtype of q

    Everything between input and output is float32, as in vLLM's kernel.
    Raises TypeError or ValueError for arguments of the wrong type or with shapes that don't match.
    """
    require_attention_inputs(q, k, v, scale, alibi_slopes)
    seq_len, num_heads, _ = q.shape
    if k.shape[0] != seq_len:
        raise ValueError(f"q holds {seq_len} tokens; it must hold all {k.shape[0]} tokens of k")
    k, v = repeat_kv_heads(k, num_heads), repeat_kv_heads(v, num_heads)

    # qk[h, i, j] = scale * (q_i . k_j)
    qk = scale * torch.einsum("ihd,jhd->hij", q.float(), k.float())
    i = torch.arange(seq_len, device=q.device)[:, None]
    j = torch.arange(seq_len, device=q.device)[None, :]
    if alibi_slopes is not None:
        qk = qk + alibi_slopes.float()[:, None, None] * (j - i)
    # The causal mask: query i sees keys 0 to i.
    qk = qk.masked_fill(j > i, float("-inf"))

    # logits[h, i, j] = exp(qk_j - max) / sum_j exp(qk_j - max)
    logits = torch.exp(qk - qk.amax(dim=-1, keepdim=True))
    logits = logits / logits.sum(dim=-1, keepdim=True)
    # out[i] = sum_j logits[i, j] * v_j
    out = torch.einsum("hij,jhd->ihd", logits, v.float())
    if probe is not None:
        probe.update(qk=qk, logits=logits)
    return out.to(q.dtype)


def unmasked_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, alibi_slopes: Tensor | None = None
) -> Tensor:
    """causal_attention without its mask: every token sees every other, even later ones.

    Not a stage; notebook 01 runs it to show why the mask is needed.
    Raises as causal_attention, and ValueError if alibi_slopes is given, because a bias for later
    tokens isn't defined.
    """
    require_attention_inputs(q, k, v, scale, alibi_slopes)
    if alibi_slopes is not None:
        raise ValueError("alibi_slopes is given; unmasked_attention takes none")
    k, v = repeat_kv_heads(k, q.shape[1]), repeat_kv_heads(v, q.shape[1])
    qk = scale * torch.einsum("ihd,jhd->hij", q.float(), k.float())
    return torch.einsum("hij,jhd->ihd", torch.softmax(qk, dim=-1), v.float()).to(q.dtype)
