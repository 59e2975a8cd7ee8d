"""The window without threads: its borders, attention in torch, and the shared memory it needs."""

import torch
from torch import Tensor

from pa_tutorial.attention.online import empty_part, merge, part_of
from pa_tutorial.kernels.geometry import Geometry


def blocks_in_window(seq_len: int, window: int, block_size: int) -> tuple[int, int, int]:
    """What the newest query of a sequence sees.

    seq_len  tokens of the sequence, including the newest; 1 or more
    window   tokens that the query sees, including its own; 0: no window, it sees all
    returns  (first_token_idx, start_block_idx, end_block_idx): the first token that it sees, and
             the blocks start_block_idx, …, end_block_idx - 1 that contain the tokens it sees
    """
    # 1. the newest query is at seq_len - 1. Where does its window begin? Never before token 0
    # 2. which block contains that token? Blocks before this one are skipped
    # 3. how many blocks does the sequence have? The last one may not be full
    first_token_idx = max(seq_len - window, 0) if window > 0 else 0
    return first_token_idx, first_token_idx // block_size, -(-seq_len // block_size)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None,
    window: int,
) -> Tensor:
    """One decode step in which each query sees its window: the reference for the kernels.

    q                 [num_seqs, num_heads, head_size]
    k_cache, v_cache  [num_blocks, num_kv_heads, block_size, head_size]
    block_tables      [num_seqs, max_num_blocks_per_seq] int32; entries before the window may be 0
    seq_lens          [num_seqs] int32
    alibi_slopes      [num_heads] or None
    window            tokens that a query sees, including its own; 0: no window
    returns           like q
    """
    # 1. begin with 06's paged_attention; which of its blocks does no query of the batch see?
    # 2. what is masked in the others, in K and in V?
    _, num_kv_heads, block_size, head_size = k_cache.shape
    grouped = q.float().unflatten(1, (num_kv_heads, -1))  # [num_seqs, num_kv_heads, group, ..]
    slopes = torch.zeros(q.shape[1]) if alibi_slopes is None else alibi_slopes.float()
    part = empty_part(grouped.shape[:3], head_size)
    seen = [blocks_in_window(int(n), window, block_size) for n in seq_lens]
    first_token = torch.tensor([first for first, _, _ in seen])[:, None]
    for block_idx in range(min(start for _, start, _ in seen), max(end for _, _, end in seen)):
        token = block_idx * block_size + torch.arange(block_size)
        is_seen = (token >= first_token) & (token < seq_lens[:, None])  # [num_seqs, block_size]
        numbers = block_tables[:, block_idx]
        k, v = k_cache[numbers].float(), v_cache[numbers].float()
        qk = scale * grouped @ k.mT
        distance = (token - seq_lens[:, None] + 1)[:, None, None]
        qk += slopes.view(num_kv_heads, -1, 1) * distance
        qk = qk.masked_fill(~is_seen[:, None, None], -torch.inf)
        part = merge(part, part_of(qk, v.masked_fill(~is_seen[:, None, :, None], 0.0)))
    _, exp_sum, acc = part
    return (acc / exp_sum[..., None]).flatten(1, 2).to(q.dtype)


def shared_bytes(geometry: Geometry, max_seq_len: int, window: int) -> int:
    """The fewest bytes of dynamic shared memory that a launch of v1 with a window needs.

    geometry     of the kernel; its PARTITION_SIZE is 0
    max_seq_len  tokens of the longest sequence of the batch, 1 or more; others may have any
                 length up to that
    window       tokens that a query sees, including its own; 0: no window

    The kernel stores the logits of the window's blocks there, for whole blocks, and at the end,
    in the same place, the sums of rows of V. See Geometry.dynamic_shared_bytes.
    """
    # 1. how many blocks do `window` tokens touch at most? They may begin anywhere in a block
    # 2. a sequence has no more blocks than it needs
    # 3. the sums of rows of V may need more than the logits
    num_blocks = -(-max_seq_len // geometry.BLOCK_SIZE)
    if window > 0:
        touched = -(-(window - 1) // geometry.BLOCK_SIZE) + 1
        num_blocks = min(num_blocks, touched)
    return geometry.dynamic_shared_bytes(num_blocks * geometry.BLOCK_SIZE)
