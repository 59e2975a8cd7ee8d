"""Counting what attention costs: arithmetic from PyTorch's own counter, bytes from the tensors."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pa_tutorial.attention.cached import KVCache, cached_attention
from pa_tutorial.attention.tiny_lm import TinyLM


def count_flops(run: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products in `run`: two for a multiply and an add."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def flops_per_token(model: TinyLM, num_tokens: int, use_cache: bool) -> list[int]:
    """What the model computes to produce each next token of a sequence.

    returns  [num_tokens]: entry t is the work for the token that follows t + 1 tokens
    """
    tokens = torch.zeros(num_tokens, dtype=torch.int64)
    caches = model.new_caches(num_tokens) if use_cache else None
    counts = []
    for end in range(1, num_tokens + 1):
        start = end - 1 if use_cache else 0
        counts.append(count_flops(lambda start=start, end=end: model(tokens[start:end], caches)))
    return counts


def attention_flops_and_bytes(
    num_new_tokens: int,
    seq_len: int,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    dtype: torch.dtype = torch.float16,
) -> tuple[int, int]:
    """One attention call of the newest tokens over a cache: (operations, bytes that must move).

    The bytes are q, K, V and out, each moved once: the least that any kernel can do.
    Operations on masked scores are counted too; a kernel may skip them.
    """
    cache = KVCache(seq_len, num_kv_heads, head_size, dtype)
    cache.append(*torch.zeros(2, seq_len, num_kv_heads, head_size, dtype=dtype))
    q = torch.zeros(num_new_tokens, num_heads, head_size, dtype=dtype)
    out: list[Tensor] = []
    flops = count_flops(
        lambda: out.append(cached_attention(q, cache.keys, cache.values, head_size**-0.5))
    )
    return flops, cache.num_bytes + q.nbytes + out[0].nbytes
