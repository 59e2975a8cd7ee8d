"""Context-parallel decode: a rank has some blocks of every sequence, with all heads.

Where the cache of one sequence is too large for one device, or reading it takes too long, its
blocks are dealt out: logical block 0 to rank 0, block 1 to rank 1, and so on, and around again.
Each rank attends to what it has. It is v2's partition, on a device of its own: what is left of it
is a maximum, a sum and an accumulator for every head. They are merged over the network, by the
rule of v2's reduce kernel. On every rank, a decode step is

    share = deal_out(k_cache, v_cache, block_tables, seq_lens, rank, num_ranks)
    out = merge_over_ranks(own_part(q, share, seq_lens, scale))

Source of the rule: vLLM, paged_attention_v2_reduce_kernel in
csrc/attention/attention_kernels.cuh.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.attention.online import Part, exps_from, part_of
from pa_tutorial.attention.step import require_blocks_and_lengths
from pa_tutorial.paging.layouts import by_token


@dataclass(frozen=True)
class ContextShare:
    """The blocks of one rank.

    k_cache, v_cache  its own pool, in the layout of the whole one
    block_tables      [num_seqs, max_num_own_blocks] int32   numbers of its own pool, padded with 0
    block_indices     [max_num_own_blocks]   the logical block index of each column
    """

    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    block_indices: Tensor

    def positions(self) -> Tensor:
        """Of each slot in its sequence: [max_num_own_blocks * block_size]."""
        block_size = by_token(self.k_cache, self.v_cache)[1].shape[1]
        offsets = torch.arange(block_size, device=self.block_indices.device)
        return (self.block_indices[:, None] * block_size + offsets).flatten()


def deal_out(
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    rank: int,
    num_ranks: int,
) -> ContextShare:
    """Copy the blocks of one rank out of a whole cache, into a pool of its own.

    An engine would write each token where it belongs at once; here the whole exists already.

    k_cache, v_cache, block_tables, seq_lens  as every paged stage takes them

    Raises ValueError unless 0 <= rank < num_ranks; on every rank if a length or a block number is
    wrong, also of a block that another rank takes: no rank waits for one that has refused.
    """
    require(0 <= rank < num_ranks, "rank", rank, f"0 to {num_ranks - 1}")
    num_blocks, block_size = by_token(k_cache, v_cache)[1].shape[:2]
    require_blocks_and_lengths(block_tables, seq_lens, num_blocks, block_size)
    width = -(-block_tables.shape[1] // num_ranks)  # the same on all ranks: some have no block
    block_indices = rank + num_ranks * torch.arange(width, device=k_cache.device)
    number_of: dict[int, int] = {}  # block of the whole pool -> its number here; 0 is nobody's
    own_tables = block_tables.new_zeros(len(block_tables), width)
    for sequence, seq_len in enumerate(seq_lens.tolist()):
        for column, block_idx in enumerate(block_indices.tolist()):
            if block_idx * block_size >= seq_len:
                break
            block = int(block_tables[sequence, block_idx])
            # Two sequences may share a block: here it is one, too.
            own_tables[sequence, column] = number_of.setdefault(block, len(number_of) + 1)
    pools = [cache[[0, *number_of]] for cache in (k_cache, v_cache)]
    pools[0][0] = pools[1][0] = torch.nan  # the null block
    return ContextShare(*pools, own_tables, block_indices)


def own_part(
    q: Tensor,
    share: ContextShare,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
) -> Part:
    """Attention of one rank over its own blocks.

    q        [num_seqs, num_heads, head_size]   the same on every rank, as is seq_lens
    returns  m, l [num_seqs, num_heads], acc [num_seqs, num_heads, head_size], float32;
             -inf, 0 and 0 for a sequence of which the rank holds no block
    """
    k_tokens, v_tokens = by_token(share.k_cache, share.v_cache)
    num_kv_heads, positions = v_tokens.shape[2], share.positions()
    is_token = positions < seq_lens[:, None]  # [num_seqs, num_slots]
    # k, v [num_seqs, num_kv_heads, num_slots, head_size]
    k = k_tokens[share.block_tables].flatten(4).flatten(1, 2).transpose(1, 2).float()
    v = v_tokens[share.block_tables].flatten(1, 2).transpose(1, 2).float()
    v = v.masked_fill(~is_token[:, None, :, None], 0.0)  # 0 * NaN is NaN

    # qk[s, h, t] = scale * (q_sh . k_st)        [num_seqs, num_kv_heads, group, num_slots]
    qk = scale * (q.float().unflatten(1, (num_kv_heads, -1)) @ k.mT)
    if alibi_slopes is not None:
        distance = positions - (seq_lens[:, None] - 1)
        slopes = alibi_slopes.float().unflatten(0, (num_kv_heads, -1))
        qk = qk + slopes[..., None] * distance[:, None, None]
    qk = qk.masked_fill(~is_token[:, None, None], float("-inf"))
    return Part(*(tensor.flatten(1, 2) for tensor in part_of(qk, v)))


def merge_over_ranks(part: Part) -> Tensor:
    """The output, on every rank, from the part of each rank.

    Two all-reduces: 1 and 1 + head_size numbers for each head of each sequence, however long the
    sequences are.

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
