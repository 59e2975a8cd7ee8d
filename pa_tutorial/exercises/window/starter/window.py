"""The window without threads: its borders, attention in torch, and the shared memory it needs."""

from torch import Tensor

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
    return None  # your code in place of this line


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
    return None  # your code in place of this line


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
    return None  # your code in place of this line
