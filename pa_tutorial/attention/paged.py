"""Attention over a paged cache: gather the blocks first, then attend."""

import torch
from torch import Tensor

from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.paging.layouts import by_token, gather


def require_paged_inputs(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, seq_lens: Tensor
) -> None:
    """Raise ValueError, naming the argument, unless a decode step can read all that it needs.

    What is checked here is the paging; heads and sizes are checked by attention itself.
    """
    if q.dim() != 3 or len(q) == 0:
        raise ValueError(
            f"q has shape {list(q.shape)}; it must have 3 dimensions: "
            "[num_seqs, num_heads, head_size], and at least one sequence"
        )
    num_blocks, block_size, *_ = by_token(k_cache, v_cache)[1].shape
    num_seqs = len(q)
    for name, tensor in (("block_tables", block_tables), ("seq_lens", seq_lens)):
        if tensor.dtype != torch.int32:
            raise ValueError(f"{name} is {tensor.dtype}; it must be torch.int32")
    if block_tables.dim() != 2 or len(block_tables) != num_seqs:
        raise ValueError(
            f"block_tables has shape {list(block_tables.shape)}; it must have one row for each of "
            f"the {num_seqs} sequences of q"
        )
    if seq_lens.shape != (num_seqs,):
        raise ValueError(f"seq_lens has shape {list(seq_lens.shape)}; it must be [{num_seqs}]")
    room = block_tables.shape[1] * block_size
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        if not 1 <= seq_len <= room:
            raise ValueError(
                f"seq_lens[{sequence}] is {seq_len}; it must be 1 to {room}, the tokens for which "
                f"its block table has room"
            )
        used = block_tables[sequence, : -(-seq_len // block_size)]
        outside = used[(used < 0) | (used >= num_blocks)]
        if len(outside):
            raise ValueError(
                f"block_tables[{sequence}] names block {outside[0]}; "
                f"it must be 0 to {num_blocks - 1}"
            )


def paged_gather(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    probe: dict[str, Tensor] | None = None,
) -> Tensor:
    """One decode step: K and V are copied out of their blocks, then `cached_attention`.

    Stage `paged_gather`.

    q                 [num_seqs, num_heads, head_size]   the newest token of each sequence
    k_cache, v_cache  vLLM's layout or the plain one (pa_tutorial.paging.layouts)
    block_tables      [num_seqs, max_num_blocks_per_seq] int32
    seq_lens          [num_seqs] int32   tokens in the cache, the newest included
    alibi_slopes      [num_heads]; adds slope * (j - seq_len + 1) to the score of key j
    probe             receives `qk` (padded with -inf) and `logits` (padded with 0),
                      both [num_seqs, num_heads, max(seq_lens)]
    returns           [num_seqs, num_heads, head_size], in the dtype of q

    Raises ValueError if the shapes do not fit, or a table names a block that is not there.
    """
    require_paged_inputs(q, k_cache, v_cache, block_tables, seq_lens)  # NEW
    outs, probes = [], []
    for sequence, seq_len in enumerate(seq_lens.tolist()):  # NEW
        # K and V [seq_len, num_kv_heads, head_size]
        k, v = gather(k_cache, v_cache, block_tables[sequence], seq_len)  # NEW
        probes.append({})
        query = q[sequence : sequence + 1]
        outs.append(cached_attention(query, k, v, scale, alibi_slopes, probes[-1]))
    if probe is not None:
        probe["qk"] = _padded([p["qk"][:, 0] for p in probes], float("-inf"))
        probe["logits"] = _padded([p["logits"][:, 0] for p in probes], 0.0)
    return torch.cat(outs)


def _padded(rows: list[Tensor], value: float) -> Tensor:
    """[num_heads, seq_len] of each sequence -> [num_seqs, num_heads, longest]."""
    longest = max(row.shape[-1] for row in rows)
    return torch.stack(
        [torch.nn.functional.pad(row, (0, longest - row.shape[-1]), value=value) for row in rows]
    )
