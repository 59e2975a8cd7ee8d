"""Random decode steps on any device, and what must come out of them, in float64.

Drawn where they are needed: gigabytes would take long to copy.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pa_tutorial.kernels.geometry import VEC_BYTES, divide_round_up
from pa_tutorial.paging.layouts import by_token

Arguments = dict[str, object]  # of prepare_v1, by name


def empty_caches(
    num_blocks: int,
    num_kv_heads: int,
    head_size: int,
    block_size: int,
    dtype: torch.dtype,
    device: str,
) -> tuple[Tensor, Tensor]:
    """k_cache and v_cache in vLLM's layout, side by side in one memory; nothing is in them."""
    x = VEC_BYTES // dtype.itemsize
    both = torch.empty(
        2, num_blocks, num_kv_heads, head_size, block_size, dtype=dtype, device=device
    )
    return both[0].view(num_blocks, num_kv_heads, head_size // x, block_size, x), both[1]


def random_batch(
    seq_lens: Sequence[int],
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    block_size: int,
    dtype: torch.dtype,
    num_blocks: int,
    device: str,
    alibi: bool = False,
    seed: int = 0,
) -> Arguments:
    """Arguments of a decode step: q, K and V are N(0, 1).

    num_blocks  in the pool. The tables name any of them, some many times, as vLLM's tests do.
                Only the last block of each sequence is its own: the slots behind its last token
                are NaN, and so is the block with which the tables are padded.
    """
    generator = torch.Generator(device).manual_seed(seed)
    where = {"device": device, "generator": generator}
    num_seqs = len(seq_lens)
    caches = empty_caches(num_blocks, num_kv_heads, head_size, block_size, dtype, device)
    for cache in caches:
        cache.normal_(generator=generator)
    k_cache, v_cache = caches
    padding, num_shared = num_blocks - 1, num_blocks - 1 - num_seqs
    width = divide_round_up(max(seq_lens), block_size) + 1
    tables = torch.randint(num_shared, (num_seqs, width), dtype=torch.int32, **where)
    k_cache[padding] = v_cache[padding] = float("nan")
    for sequence, seq_len in enumerate(seq_lens):
        last, end = divmod(seq_len - 1, block_size)
        own = num_shared + sequence
        tables[sequence, last] = own
        tables[sequence, last + 1 :] = padding
        k_cache[own, :, :, end + 1 :] = float("nan")
        v_cache[own, :, :, end + 1 :] = float("nan")
    slopes = 0.7 * 0.003 ** torch.linspace(0, 1, num_heads, device=device)
    q = torch.randn(num_seqs, num_heads, head_size, **where).to(dtype)
    return {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_tables": tables,
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int32, device=device),
        "scale": head_size**-0.5,
        "alibi_slopes": slopes if alibi else None,
        "max_seq_len": max(seq_lens),
    }


def reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    max_seq_len: int | None = None,
) -> Tensor:
    """Attention of one decode step in float64: [num_seqs, num_heads, head_size].

    Over either cache layout. One KV head of one sequence at a time: all of them in float64 would
    fill the memory.
    """
    num_heads, head_size = q.shape[1:]
    _, block_size, num_kv_heads, _ = by_token(k_cache, v_cache)[1].shape
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    ratio = num_heads // num_kv_heads
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        blocks = block_tables[sequence, : divide_round_up(seq_len, block_size)].long()
        distances = torch.arange(1 - seq_len, 1, dtype=torch.float64, device=q.device)
        for kv_head in range(num_kv_heads):
            heads = slice(kv_head * ratio, (kv_head + 1) * ratio)
            of_head = (cache[blocks, kv_head].unsqueeze(1) for cache in (k_cache, v_cache))
            keys, values = (t.reshape(-1, head_size)[:seq_len] for t in by_token(*of_head))
            scores = scale * (q[sequence, heads].double() @ keys.double().T)
            if alibi_slopes is not None:
                scores += alibi_slopes[heads, None].double() * distances
            out[sequence, heads] = scores.softmax(dim=-1) @ values.double()
    return out


def seen_as_plain(arguments: Mapping[str, object]) -> Arguments:
    """A step over the same memory, taken for a cache in the plain layout: nothing is copied, and
    every number is in another place. Right for random numbers, where all of them are used."""
    num_blocks, num_kv_heads, head_size, block_size = arguments["v_cache"].shape
    shape = num_blocks, num_kv_heads, block_size, head_size
    return dict(arguments) | {name: arguments[name].view(shape) for name in ("k_cache", "v_cache")}


def in_plain_layout(arguments: Mapping[str, object]) -> Arguments:
    """The same step over a copy of the cache in the plain layout: the result is the same."""
    tokens = by_token(arguments["k_cache"], arguments["v_cache"])
    k_cache, v_cache = (t.flatten(3).transpose(1, 2).contiguous() for t in tokens)
    return dict(arguments) | {"k_cache": k_cache, "v_cache": v_cache}


def worst_error(out: Tensor, expected: Tensor) -> float:
    """The largest |out - expected| / |expected| of any head of any sequence; inf for NaN."""
    errors = (out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    return float(errors.nan_to_num(nan=torch.inf).max())


def only(arguments: Mapping[str, object], sequences: Sequence[int]) -> Arguments:
    """The arguments of the step with these sequences alone."""
    rows = list(sequences)
    chosen = {name: arguments[name][rows] for name in ("q", "block_tables", "seq_lens")}
    return dict(arguments) | chosen
