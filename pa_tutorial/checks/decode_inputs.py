"""What a decode step reads: K and V of each sequence, and block tables that catch mistakes."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class DecodeInputs:
    """What a decode step reads.

    q             [num_seqs, num_heads, head_size]; may be strided over sequences
    keys, values  one tensor per sequence, [seq_len, num_kv_heads, head_size]
    alibi_slopes  [num_heads] float32 or None
    """

    q: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    scale: float
    alibi_slopes: Tensor | None


def draw_block_tables(
    seq_lens: tuple[int, ...],
    block_size: int,
    shared_blocks: int,
    block_zero: bool,
    seed: int,
) -> tuple[list[list[int]], int]:
    """Block tables without padding, and the number of blocks in the pool.

    shared_blocks  how many first blocks all sequences have in common
    block_zero     block 0 belongs to the first sequence, otherwise to none

    No table of two or more blocks counts upwards by one, so a kernel that takes logical block
    indices for physical numbers, or continues from the first number, reads other tokens. A quarter
    of the pool belongs to no sequence.
    """
    own = [-(-seq_len // block_size) - shared_blocks for seq_len in seq_lens]
    num_used = shared_blocks + sum(own)
    num_blocks = num_used + num_used // 3 + 2
    rng = np.random.default_rng((seed, 2))
    while True:
        numbers = rng.permutation(np.arange(1, num_blocks)).tolist()
        if block_zero:
            numbers[num_used - sum(own[1:]) - 1] = 0  # the last block of the first sequence
        shared, numbers = numbers[:shared_blocks], numbers[shared_blocks:]
        tables = []
        for count in own:
            tables.append(shared + numbers[:count])
            numbers = numbers[count:]
        if not any(len(t) > 1 and set(np.diff(t)) == {1} for t in tables):
            return tables, num_blocks


def with_gaps(k_cache: Tensor, v_cache: Tensor) -> list[Tensor]:
    """The same numbers as views: V of a head follows its K; each block has an extra head of NaN.

    So the strides of blocks and heads differ from a contiguous tensor's.
    """
    num_blocks, num_kv_heads = v_cache.shape[:2]
    pool = v_cache.new_full((num_blocks, num_kv_heads + 1, 2, v_cache[0, 0].numel()), float("nan"))
    return [
        pool[:, :-1, side].unflatten(-1, cache.shape[2:]).copy_(cache)
        for side, cache in enumerate((k_cache, v_cache))
    ]
