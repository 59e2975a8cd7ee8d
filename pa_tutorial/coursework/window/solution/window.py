"""The assignment in plain Python: the borders of a window, and its shared memory."""

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
