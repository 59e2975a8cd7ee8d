"""The assignment in plain Python: the borders of a window, and its shared memory."""

from pa_tutorial.kernels.geometry import Geometry


def blocks_in_window(seq_len: int, window: int, block_size: int) -> tuple[int, int, int]:
    """What the newest query of a sequence sees.

    seq_len  tokens of the sequence, the newest included; 1 or more
    window   tokens that the query sees, itself included; 0: no window, it sees all
    returns  (first_token_idx, start_block_idx, end_block_idx): the first token that it sees, and
             the blocks start_block_idx, …, end_block_idx - 1 in which the tokens it sees live
    """
    # 1. the newest query stands at seq_len - 1. Where does its window begin? Never before token 0
    # 2. in which block does that token live? Blocks before this one are skipped
    # 3. how many blocks has the sequence? The last one may not be full
    ### BEGIN SOLUTION
    first_token_idx = max(seq_len - window, 0) if window > 0 else 0
    return first_token_idx, first_token_idx // block_size, -(-seq_len // block_size)
    ### END SOLUTION


def shared_bytes(geometry: Geometry, max_seq_len: int, window: int) -> int:
    """Bytes of dynamic shared memory that a launch of v1 with a window must ask for, not one more.

    geometry     of the kernel; its PARTITION_SIZE is 0
    max_seq_len  tokens of the longest sequence of the batch, 1 or more; others may be of any
                 length up to that
    window       tokens that a query sees, itself included; 0: no window

    The kernel keeps the logits of the blocks of the window there, whole blocks of them; and, in
    the same place at the end, the sums of rows of V. See Geometry.dynamic_shared_bytes.
    """
    # 1. how many blocks do `window` tokens touch at most? They may begin at any place of a block
    # 2. a sequence has no more blocks than it needs
    # 3. the sums of rows of V may need more than the logits
    ### BEGIN SOLUTION
    num_blocks = -(-max_seq_len // geometry.BLOCK_SIZE)
    if window > 0:
        touched = -(-(window - 1) // geometry.BLOCK_SIZE) + 1
        num_blocks = min(num_blocks, touched)
    return geometry.dynamic_shared_bytes(num_blocks * geometry.BLOCK_SIZE)
    ### END SOLUTION
