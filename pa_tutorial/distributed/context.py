"""Context-parallel decode: each rank has some blocks of every sequence, with all heads.

If the cache of one sequence is too large for one device, or takes too long to read, its blocks are
dealt out in turn: logical block 0 to rank 0, block 1 to rank 1, and so on. Each rank attends to its
own blocks. This is like v2's partitions, one per device: the result is a maximum, a sum and an
accumulator per head. They are merged over the network as in v2's reduce kernel. On every rank, a
decode step is

    share = deal_out(step, rank, num_ranks)
    out = merge_over_ranks(own_part(step, share))

Source of the rule: vLLM, paged_attention_v2_reduce_kernel in
csrc/attention/attention_kernels.cuh.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pa_tutorial.arguments import require_type, whole_number
from pa_tutorial.attention.online import Part, exps_from, part_of
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.paging.layouts import by_token


class ContextShare(NamedTuple):
    """The blocks of one rank.

    k_cache, v_cache  the rank's own pool, in the layout of the whole pool
    block_tables      [num_seqs, max_num_own_blocks] int32   block numbers in that pool, padded
                      with 0
    block_indices     [max_num_own_blocks]   the logical block index of each column
    """

    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    block_indices: Tensor


def deal_out(step: DecodeStep, rank: int, num_ranks: int) -> ContextShare:
    """Copy the blocks of one rank out of a whole cache into a separate pool.

    An engine would write each token to its rank directly; here the whole cache already exists.
    Raises TypeError or ValueError for anything but a DecodeStep and one of the ranks.
    """
    require_type(isinstance(step, DecodeStep), "step", step, "a DecodeStep")
    num_ranks = whole_number("num_ranks", num_ranks, least=1)
    rank = whole_number("rank", rank, 0, num_ranks - 1)
    # the same width on all ranks, even if some have no block
    width = -(-step.block_tables.shape[1] // num_ranks)
    block_indices = rank + num_ranks * torch.arange(width, device=step.k_cache.device)
    own_tables = step.block_tables.new_zeros(len(step.q), width)
    number_of: dict[int, int] = {}  # block of the whole pool -> its number here, from 1 on
    for sequence, seq_len in enumerate(step.seq_lens.tolist()):
        own = block_indices[block_indices * step.block_size < seq_len]
        for column, block in enumerate(step.block_tables[sequence, own].tolist()):
            # Two sequences may share a block, so we copy it only once.
            own_tables[sequence, column] = number_of.setdefault(block, len(number_of) + 1)
    pools = [cache[[0, *number_of]] for cache in (step.k_cache, step.v_cache)]
    pools[0][0] = pools[1][0] = torch.nan  # the null block
    return ContextShare(*pools, own_tables, block_indices)


def own_part(step: DecodeStep, share: ContextShare) -> Part:
    """Attention of one rank over its own blocks.

    step     the same on every rank; only the rank's share of its cache is read
    returns  m, l [num_seqs, num_heads], acc [num_seqs, num_heads, head_size], float32;
             -inf, 0 and 0 for a sequence of which the rank has no block
    """
    k_tokens, v_tokens = by_token(share.k_cache, share.v_cache)
    block_size, num_kv_heads = v_tokens.shape[1:3]
    offsets = torch.arange(block_size, device=v_tokens.device)
    positions = (share.block_indices[:, None] * block_size + offsets).flatten()  # of each slot
    is_token = positions < step.seq_lens[:, None]  # [num_seqs, num_slots]
    # k, v [num_seqs, num_kv_heads, num_slots, head_size]
    k = k_tokens[share.block_tables].flatten(4).flatten(1, 2).transpose(1, 2).float()
    v = v_tokens[share.block_tables].flatten(1, 2).transpose(1, 2).float()
    v = v.masked_fill(~is_token[:, None, :, None], 0.0)  # 0 * NaN is NaN

    # qk[s, h, t] = scale * (q_sh . k_st)        [num_seqs, num_kv_heads, group, num_slots]
    qk = step.scale * (step.q.float().unflatten(1, (num_kv_heads, -1)) @ k.mT)
    if step.alibi_slopes is not None:
        distance = positions - (step.seq_lens[:, None] - 1)
        slopes = step.alibi_slopes.float().unflatten(0, (num_kv_heads, -1))
        qk = qk + slopes[..., None] * distance[:, None, None]
    qk = qk.masked_fill(~is_token[:, None, None], float("-inf"))
    return Part(*(tensor.flatten(1, 2) for tensor in part_of(qk, v)))


def merge_over_ranks(part: Part) -> Tensor:
    """The output, on every rank, from the part of each rank.

    This takes two all-reduces, of 1 and 1 + head_size numbers per head of each sequence, no matter
    how long the sequences are.

    returns  [num_seqs, num_heads, head_size] float32
    """
    # M = the largest maximum of all ranks
    m = part.m.clone()
    dist.all_reduce(m, dist.ReduceOp.MAX)
    # l_r * exp(m_r - M) and acc_r * exp(m_r - M): as if the rank's maximum had been M
    rescale = exps_from(part.m, m)
    mine = torch.cat([part.l[..., None], part.acc], dim=-1) * rescale[..., None]
    dist.all_reduce(mine, dist.ReduceOp.SUM)
    l, acc = mine[..., :1], mine[..., 1:]
    return acc / l
