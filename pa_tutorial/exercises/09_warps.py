"""Exercises of *Warps*: the right answer, no finding, and few memory transactions."""

import numpy as np
from numba import cuda, float32

from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.kernel_grading import Enough, Task, on_tasks, warm_up
from pa_tutorial.exercises.random_inputs import seeded
from simt.gpus import ALL_LANES, WARP_SIZE


# 1. ---------------------------------------------------------------------------------------------
@cuda.jit
def gather_tokens(out, cache, block_table):
    """The tokens of one sequence, out of their blocks, by one thread block.

    out          [num_tokens, head_size] float32
    cache        [num_blocks, block_size, head_size] float32; head_size is a multiple of 8
    block_table  [max_num_blocks] int32: logical block index -> physical block number; there may
                 be more than the sequence has

    Any number of threads that is a multiple of 32, at most 1,024.
    """
    # deal the elements of out to all threads, so that each load of a warp wants whole sectors
    # find each element's token and dim, and from the token its place in the cache
    ### BEGIN SOLUTION
    block_size, head_size = cache.shape[1], cache.shape[2]
    for i in range(cuda.threadIdx.x, out.size, cuda.blockDim.x):
        token, dim = i // head_size, i % head_size
        block = block_table[token // block_size]
        out[token, dim] = cache[block, token % block_size, dim]
    ### END SOLUTION


_PLACE = "Which element does thread t copy, and from which physical block?"
GATHER_CASES = (
    # name, what it isolates, what its failure means, threads, tokens, head_size, block_size
    ("one_block", "one warp, block 0", _PLACE, 32, 8, 32, 8),
    ("shuffled_blocks", "blocks are in no order", "The block table is not used.", 256, 24, 32, 8),
    ("tail", "11 tokens: the last block is not full", "It must end where out ends.", 96, 11, 32, 8),
    ("few_threads", "one warp", "All threads together must go on up to the end.", 32, 5, 64, 8),
    ("odd_sizes", "heads of 40, blocks of 12", "Sizes need not be powers of 2.", 128, 31, 40, 12),
    ("long", "1,024 threads, 19 blocks of 16", _PLACE, 1024, 300, 128, 16),
)  # fmt: skip


GATHER_HINTS = {
    "race": "Each element of out belongs to one thread: which one does thread t take next?",
    "memory": "How many elements does out have, and how many tokens does a block have?",
}


def gather_task(
    draw: int, num_threads: int, num_tokens: int, head_size: int, block_size: int
) -> Task:
    rng = seeded(num_tokens, draw)
    used = -(-num_tokens // block_size)
    order = rng.permutation(used + 4).astype(np.int32)
    while used > 1 and (np.diff(order[:used]) > 0).all():
        order = rng.permutation(order)
    table = order if used > 1 else np.arange(5, dtype=np.int32)  # its end is not used
    cache = rng.standard_normal((used + 4, block_size, head_size), dtype=np.float32)
    cache[table[used:]] = np.nan
    expected = cache[table[:used]].reshape(-1, head_size)[:num_tokens]
    enough = Enough.of(expected.size, times_full_warps=1 if head_size % WARP_SIZE == 0 else 2)
    warps = min(num_threads // WARP_SIZE, 2)
    both, hints = {0: enough, 1: enough}, GATHER_HINTS
    return Task(num_threads, (cache, table), expected, both, warps, hints=hints)


GATHER = Exercise(
    solution=gather_tokens,
    cases=on_tasks(GATHER_CASES, gather_task, ("token", "dim")),
    is_warm_up=True,
)


# 2. ---------------------------------------------------------------------------------------------
@cuda.jit
def largest_of_warp(out, scores):  # 32 lanes, 32 scores; every lane gets the largest
    lane = cuda.threadIdx.x
    largest = scores[lane]
    # five rounds: ask another lane for its largest so far, and keep the larger of the two
    ### BEGIN SOLUTION
    for distance in (16, 8, 4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(ALL_LANES, largest, distance))
    ### END SOLUTION
    out[lane] = largest


_LARGEST = "With each shuffle, a lane learns the largest of twice as many lanes: 2, 4, 8, 16, 32."
LARGEST = warm_up(
    largest_of_warp,
    [("32_lanes", "any numbers", _LARGEST, (1,), 32, (32,))],
    lambda a: np.full_like(a, a.max()),
    is_drawn=False,
    most_shuffles=5,
    enough={1: Enough.of(32)},
)


# 3. ---------------------------------------------------------------------------------------------
@cuda.jit
def transpose_tokens(out, a):
    """From one row per token to one row per dim, through shared memory, by one thread block.

    a    [32, head_size] float32: 32 tokens; head_size is a multiple of 32
    out  [head_size, 32] float32: out[dim, token] = a[token, dim]

    Any number of threads that is a multiple of 32, at most 1,024. All elements must pass through
    shared memory, without a bank conflict.
    """
    # a tile in shared memory for 32 tokens and 32 dims; how long must its rows be?
    # for every 32 dims: the warps share the tokens, and copy rows of a into the tile
    # then the warps share the dims, and copy columns of the tile into rows of out
    # when may a thread read the tile, and when may it overwrite it?
    ### BEGIN SOLUTION
    tile = cuda.shared.array((32, 33), float32)
    lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
    num_warps = cuda.blockDim.x // 32
    for first in range(0, a.shape[1], 32):
        for token in range(warp, 32, num_warps):
            tile[token, lane] = a[token, first + lane]
        cuda.syncthreads()
        for dim in range(warp, 32, num_warps):
            out[first + dim, lane] = tile[lane, dim]
        cuda.syncthreads()
    ### END SOLUTION


_ROWS = "Rows of a come in, columns of the tile go out, and each warp takes its own."
_WAIT = "A thread reads what other threads have written, or overwrites what others still read."
_SHARE = "Some warps have one more token or dim than others, but all must reach the barrier."
TRANSPOSE_CASES = (
    # name, what it isolates, what its failure means, threads, head_size
    ("one_warp", "one tile", _ROWS, 32, 32),
    ("many_warps", "128 threads, two tiles", _WAIT, 128, 64),
    ("many_tiles", "128 threads, head size 96", _WAIT, 128, 96),
    ("a_row_too_many", "992 threads: 32 tokens for 31 warps", _SHARE, 992, 64),
    ("a_warp_for_each_row", "1,024 threads, head size 64", _WAIT, 1024, 64),
    ("large_head", "head size 416: more than shared memory holds", _WAIT, 128, 416),
)


def transpose_task(draw: int, num_threads: int, head_size: int) -> Task:
    a = seeded(head_size, draw).standard_normal((32, head_size), dtype=np.float32)
    enough = dict.fromkeys((0, 1), Enough.of(a.size))
    warps = min(num_threads // WARP_SIZE, 2)
    hints = {"race": _WAIT, "race of two writes": _ROWS, "memory": _ROWS}
    return Task(num_threads, (a,), a.T.copy(), enough, warps, through_shared=True, hints=hints)


TRANSPOSE = Exercise(
    solution=transpose_tokens,
    cases=on_tasks(TRANSPOSE_CASES, transpose_task, ("dim", "token")),
)


EXERCISES = (GATHER, LARGEST, TRANSPOSE)
