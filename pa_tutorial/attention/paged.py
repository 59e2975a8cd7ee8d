"""Attention over a paged cache: gather the blocks first, or go through them block by block."""

import torch
from torch import Tensor

from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.attention.online import Part, empty_part, merge, part_of
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.paging.layouts import by_token, gather


def require_paged_inputs(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    alibi_slopes: Tensor | None = None,
) -> None:
    """Raise ValueError, naming the argument, unless a decode step can read all that it needs."""
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, 1.0, alibi_slopes)
    step.require_shapes()
    step.require_lengths()


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
    require_paged_inputs(q, k_cache, v_cache, block_tables, seq_lens, alibi_slopes)  # NEW
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


def attend_blocks(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    num_cached: Tensor,
    positions: Tensor,
    scale: float,
    alibi_slopes: Tensor | None,
    probe: dict[str, Tensor] | None,
) -> Part:
    """Go through the blocks of all sequences, one logical block index after the other.

    num_cached  [num_seqs]  tokens of each sequence that are in the cache
    positions   [num_seqs]  position of each query in its sequence
    returns     m, l [num_seqs, num_heads], acc [num_seqs, num_heads, head_size]
    """
    k_tokens, v_tokens = by_token(k_cache, v_cache)
    _, block_size, num_kv_heads, head_size = v_tokens.shape
    # Query heads that share a KV head stand together: [num_seqs, num_kv_heads, group, head_size]
    q = q.float().unflatten(1, (num_kv_heads, -1))
    part = empty_part(q.shape[:3], head_size, q.device)  # NEW
    scores = []
    for block_idx in range(-(-int(num_cached.max()) // block_size)):  # NEW
        token = block_idx * block_size + torch.arange(block_size, device=q.device)
        is_token = token < num_cached[:, None]  # [num_seqs, block_size]
        # A sequence that has ended has no block here: block 0 is read in its place.
        numbers = block_tables[:, block_idx].where(is_token[:, 0], 0)  # NEW
        # k, v [num_seqs, num_kv_heads, block_size, head_size]: one block of each sequence
        k = k_tokens[numbers].flatten(3).transpose(1, 2).float()
        v = v_tokens[numbers].transpose(1, 2).float()
        # A weight of 0 does not remove NaN: 0 * NaN is NaN. So V is cleaned before.
        v = v.masked_fill(~is_token[:, None, :, None], 0.0)  # NEW

        # qk[s, h, t] = scale * (q_sh . k_st)       [num_seqs, num_kv_heads, group, block_size]
        qk = scale * (q @ k.mT)
        if alibi_slopes is not None:
            slopes = alibi_slopes.float().unflatten(0, (num_kv_heads, -1))
            qk = qk + slopes[..., None] * (token - positions[:, None])[:, None, None]
        qk = qk.masked_fill(~is_token[:, None, None], float("-inf"))  # NEW
        if probe is not None:
            scores.append(qk.flatten(1, 2))
        part = merge(part, part_of(qk, v))  # NEW
    if probe is not None:
        probe["qk"] = torch.cat(scores, dim=-1)[..., : int(num_cached.max())]
    return Part(*(tensor.flatten(1, 2) for tensor in part))


def paged_online(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    probe: dict[str, Tensor] | None = None,
) -> Tensor:
    """One decode step that never gathers: blocks go through the online softmax as they come.

    Stage `paged_online`. The arguments, the result and the errors are those of `paged_gather`;
    probe receives `qk` only. The newest token is in the cache already, as in vLLM.
    """
    require_paged_inputs(q, k_cache, v_cache, block_tables, seq_lens, alibi_slopes)
    part = attend_blocks(
        q, k_cache, v_cache, block_tables, seq_lens, seq_lens - 1, scale, alibi_slopes, probe
    )
    return (part.acc / part.l[..., None]).to(q.dtype)


def flatten_queries(
    block_tables: Tensor, seq_lens: Tensor, query_lens: Tensor
) -> tuple[Tensor, Tensor]:
    """Many query tokens as sequences of one query each: a decode step can then do prefill.

    The query at position p sees the tokens 0 to p: it is the newest token of a sequence of
    seq_len p + 1, over the same blocks. So the causal mask needs no code at all.

    block_tables  [num_seqs, max_num_blocks_per_seq] int32
    seq_lens      [num_seqs] int32   tokens in the cache, the new ones included
    query_lens    [num_seqs]         how many of them are new; the last ones
    returns       block_tables [num_queries, max_num_blocks_per_seq], seq_lens [num_queries] int32

    Raises ValueError if a sequence has more new tokens than tokens, or none.
    """
    rows: list[Tensor] = []
    lens: list[int] = []
    for sequence, (row, seq_len, new) in enumerate(
        zip(block_tables, seq_lens.tolist(), query_lens.tolist(), strict=True)
    ):
        if not 1 <= new <= seq_len:
            raise ValueError(f"query_lens[{sequence}] is {new}; it must be 1 to {seq_len}")
        rows += [row] * new
        lens += range(seq_len - new + 1, seq_len + 1)
    return torch.stack(rows), torch.tensor(lens, dtype=torch.int32)
