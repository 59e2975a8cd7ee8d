"""Exercises of notebook 10: a maximum in every thread, rows of V, the sum over warps."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numba import cuda, float32

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.drawing import seeded
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.kernels import Enough, Task, trial
from pa_tutorial.exercises.softmax_and_value_grading import (
    kernel_around,
    require_block_max,
    require_tree,
    rows_of_lanes,
)
from pa_tutorial.kernels.geometry import FLT_MAX, Geometry
from pa_tutorial.kernels.warp import ALL_LANES
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.simt.traffic import SECTOR

NOTEBOOK = "10_softmax_and_value"


# 1. ---------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def block_max(red_smem, value):
    """The largest value of all threads of the block; every thread returns it.

    red_smem  [NUM_WARPS] float32  shared memory, not written yet; NUM_WARPS is 1, 2, 4, … 32
    value     float32  of this thread: a score, or -FLT_MAX if it has none

    All threads call it together. No two warps can shuffle with each other.
    """
    NUM_WARPS = red_smem.size
    warp_idx, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    # 1. the maximum over the warp, with shuffles (mask ALL_LANES)
    # 2. one lane of each warp leaves it in red_smem; wait
    # 3. every warp reads red_smem, one number a lane: what do the lanes without a number have?
    # 4. the maximum over these lanes; at the end, every lane of the warp must have it
    ### BEGIN SOLUTION
    mask = 16
    while mask >= 1:
        value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, mask))
        mask //= 2
    if lane == 0:
        red_smem[warp_idx] = value
    cuda.syncthreads()
    value = red_smem[lane] if lane < NUM_WARPS else float32(-FLT_MAX)
    mask = NUM_WARPS // 2
    while mask >= 1:
        value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, mask))
        mask //= 2
    return cuda.shfl_sync(ALL_LANES, value, 0)
    ### END SOLUTION


_EVERY = "First the lanes of each warp, then the warps; then every lane must have the result."
_START = "A maximum begins at -FLT_MAX, not at 0: scores may all be negative."
MAX_CASES = (
    # name, what it isolates, what its failure means,
    # (warps, the scores are about, warp and lane of the largest, warps without a score)
    ("one_warp", "32 threads, the largest in the last lane", _EVERY, (1, 0, (0, 31), ())),
    ("four_warps", "128 threads, as vLLM has", _EVERY, (4, 0, (2, 17), ())),
    ("last_warp", "the largest in the last lane of the last warp", _EVERY, (4, 0, (3, 31), ())),
    ("all_negative", "scores about -300", _START, (4, -300, (1, 6), ())),
    ("empty_warps", "only warp 1 has scores, about -300", _START, (4, -300, (1, 0), (0, 2, 3))),
    ("no_score", "all threads have -FLT_MAX", _START, (2, 0, (0, 0), (0, 1))),
    ("two_warps", "64 threads", _EVERY, (2, -5, (1, 30), ())),
    ("many_warps", "1,024 threads: as many warps as lanes", _EVERY, (32, -300, (31, 2), ())),
)  # fmt: skip
NAMED_PLACES = ("one_warp", "last_warp")  # the largest is in the last lane


def block_max_trials(draw: int = 0) -> list[Trial]:
    def task(name: str, num_warps: int, about: float, place: tuple[int, int], empty: tuple) -> Task:
        rng = seeded(num_warps, draw)
        scores = (about - np.abs(rng.standard_normal((num_warps, WARP_SIZE)))).astype(np.float32)
        warp, lane = place
        if draw and name not in NAMED_PLACES:
            lane = rng.integers(WARP_SIZE)
        scores[warp, lane] = about + 2 + (rng.random() if draw else 0)
        scores[list(empty)] = -FLT_MAX
        expected = np.full(scores.shape, scores.max())
        shuffles = num_warps * 11  # 5 for the lanes, up to 5 for the warps, 1 to tell all
        also = partial(require_block_max, num_warps)
        return Task(
            scores.size, (scores,), expected, {}, num_warps, most_shuffles=shuffles, also=also
        )

    return [
        trial(
            *words,
            task(words[0], *sizes),
            block_max,
            ("warp", "lane"),
            kernel_of=partial(kernel_around, sizes[0]),
        )
        for *words, sizes in MAX_CASES
    ]


BLOCK_MAX = Exercise(
    notebook=NOTEBOOK,
    text="""\
The maximum over a thread block. In the kernel it stands in two pieces; here it is one device
function, like `block_sum`. Every thread must return the result. One number a warp is all that
goes through shared memory, and a warp may shuffle 11 times at most.""",
    solution=block_max,
    trials=block_max_trials,
)


# 2. ---------------------------------------------------------------------------------------------


def weighted_rows(geometry: Geometry) -> Callable:
    """A kernel: each lane sums weight * V for its rows and its tokens, over the blocks of its warp.

    returns   kernel(out, weights, v_cache, block_table, seq_lens)
        out          [NUM_WARPS, 32, NUM_ROWS_PER_THREAD] float32: the accs of each lane; 0 for a
                     row that is not in the head
        weights      [num_blocks_of_the_sequence * BLOCK_SIZE] float32; 0 behind the sequence
        v_cache      [num_blocks, HEAD_SIZE, BLOCK_SIZE]: one KV head; NaN or infinity where
                     no token lives
        block_table  [max_num_blocks_per_seq] int32
        seq_lens     [1] int32: one sequence
    """
    HEAD_SIZE, BLOCK_SIZE, NUM_WARPS = geometry.HEAD_SIZE, geometry.BLOCK_SIZE, geometry.NUM_WARPS
    V_VEC_SIZE, NUM_V_VECS_PER_ROW = geometry.V_VEC_SIZE, geometry.NUM_V_VECS_PER_ROW
    NUM_ROWS_PER_ITER = geometry.NUM_ROWS_PER_ITER
    NUM_ROWS_PER_THREAD = geometry.NUM_ROWS_PER_THREAD

    @cuda.jit
    def kernel(out, weights, v_cache, block_table, seq_lens):
        warp_idx, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        seq_len = seq_lens[0]
        accs = cuda.local.array(NUM_ROWS_PER_THREAD, float32)
        for i in range(NUM_ROWS_PER_THREAD):
            accs[i] = float32(0)
        # 1. which blocks has this warp? Each warp takes every NUM_WARPS-th one
        # 2. which V_VEC_SIZE tokens of a block has this lane?
        # 3. which rows has it? NUM_ROWS_PER_ITER apart; the last one may not be in the head
        # 4. accs[i] += weight * V, token by token; behind the sequence V may be NaN, and
        #    0 * NaN is NaN
        ### BEGIN SOLUTION
        num_seq_blocks = (seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE
        offset = lane % NUM_V_VECS_PER_ROW * V_VEC_SIZE
        for block_idx in range(warp_idx, num_seq_blocks, NUM_WARPS):
            block = block_table[block_idx]
            for i in range(NUM_ROWS_PER_THREAD):
                row_idx = lane // NUM_V_VECS_PER_ROW + i * NUM_ROWS_PER_ITER
                if row_idx < HEAD_SIZE:
                    for j in range(V_VEC_SIZE):
                        token_idx = block_idx * BLOCK_SIZE + offset + j
                        v = float32(v_cache[block, row_idx, offset + j])
                        if block_idx == num_seq_blocks - 1 and token_idx >= seq_len:
                            v = float32(0)
                        accs[i] += weights[token_idx] * v
        ### END SOLUTION
        for i in range(NUM_ROWS_PER_THREAD):
            out[warp_idx, lane, i] = accs[i]

    return kernel


_TAIL = "Tokens count from 0 to seq_len - 1 through all blocks: behind them, put 0 in place of V."
_LANES = "Lanes that share a row have different tokens; rows are NUM_ROWS_PER_ITER apart."
ROW_CASES = (
    # name, what it isolates, what its failure means,
    # (head size, block size, type, threads; seq_len, what lies in slots without a token)
    ("worked_example", "float16: 11 tokens in two blocks", _TAIL,
     (Geometry(32, 8, torch.float16, 64), 11)),
    ("full_blocks", "8 blocks for 2 warps, no tail", "Without a tail, nothing becomes 0.",
     (Geometry(32, 8, torch.float16, 64), 64)),
    ("shared_rows", "2 lanes share a row; a tail of 1 token", _LANES,
     (Geometry(64, 16, torch.float16, 64), 49)),
    ("infinity", "infinity behind the sequence, in place of NaN", _TAIL,
     (Geometry(32, 8, torch.float16, 64), 21, np.inf)),
    ("four_lanes_a_row", "float32; a tail of 7 tokens", _LANES,
     (Geometry(64, 16, torch.float32, 64), 55)),
    ("row_guard", "head size 80: the last rows are not in the head",
     "Some lanes have a row less: row_idx < HEAD_SIZE.", (Geometry(80, 8, torch.float16, 64), 39)),
    ("idle_warps", "one token: 3 of 4 warps have no block", _TAIL,
     (Geometry(32, 32, torch.float16, 128), 1)),
)  # fmt: skip


def weighted_rows_trials(draw: int = 0) -> list[Trial]:
    def task(geometry: Geometry, seq_len: int, stale: float = np.nan) -> Task:
        rng = seeded(seq_len, draw)
        block_size, head_size = geometry.block_size, geometry.head_size
        used = -(-seq_len // block_size)
        dtype = np.float16 if geometry.dtype == torch.float16 else np.float32
        table = rng.permutation(used + 3).astype(np.int32)
        v_cache = (0.5 + rng.random((used + 3, head_size, block_size))).astype(dtype)
        weights = np.zeros(used * block_size, np.float32)
        weights[:seq_len] = rng.random(seq_len) + 0.1
        expected = rows_of_lanes(geometry, weights, v_cache[table[:used]].astype(float))
        v_cache[table[used:]] = stale
        v_cache[table[used - 1], :, seq_len - (used - 1) * block_size :] = stale
        # V_VEC_SIZE elements one by one: each of these requests touches the same sectors again.
        sectors = used * head_size * block_size * geometry.ITEMSIZE // SECTOR
        requests = used * geometry.NUM_ROWS_PER_THREAD
        enough = Enough(geometry.V_VEC_SIZE * sectors, geometry.V_VEC_SIZE * requests)
        inputs = weights, v_cache, table, np.array([seq_len], np.int32)
        return Task(geometry.num_threads, inputs, expected, {2: enough}, geometry.NUM_WARPS)

    return [
        trial(
            *words,
            task(*sizes),
            weighted_rows,
            ("warp", "lane", "accs"),
            kernel_of=lambda make, geometry=sizes[0]: make(geometry),
        )
        for *words, sizes in ROW_CASES
    ]


ROWS = Exercise(
    notebook=NOTEBOOK,
    text="""\
The last loop over blocks: weights times V, up to the point where each lane has its `accs`. No
lane talks to another. Slots behind the sequence hold NaN or infinity here, as they may in a real
cache. Their weight is 0, and that does not help. V must be read once only.""",
    solution=weighted_rows,
    trials=weighted_rows_trials,
)


# 3. ---------------------------------------------------------------------------------------------


def warp_tree(geometry: Geometry) -> Callable:
    """A kernel: the rows of all warps are summed as a tree, in shared memory for half of them.

    geometry  float16, block_size 8: no lanes share a row, lane l has the rows l, l + 32, …
    returns   kernel(out, parts)
        out    [HEAD_SIZE] float32: the sum over the warps
        parts  [NUM_WARPS, HEAD_SIZE] float32: what each warp has summed; NUM_WARPS is 2, 4 or 8

    The launch gives shared memory for NUM_WARPS / 2 rows of HEAD_SIZE, not more.
    """
    HEAD_SIZE, NUM_WARPS = geometry.HEAD_SIZE, geometry.NUM_WARPS
    NUM_ROWS_PER_THREAD = geometry.NUM_ROWS_PER_THREAD

    @cuda.jit
    def kernel(out, parts):
        warp_idx, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        out_smem = cuda.shared.array(0, float32)  # [NUM_WARPS / 2 * HEAD_SIZE]
        accs = cuda.local.array(NUM_ROWS_PER_THREAD, float32)  # rows lane, lane + 32, …
        for j in range(NUM_ROWS_PER_THREAD):
            row_idx = lane + j * 32
            accs[j] = parts[warp_idx, row_idx] if row_idx < HEAD_SIZE else float32(0)
        # 1. of the first i warps (i = NUM_WARPS at first), the upper half leaves its accs
        # 2. wait; the lower half adds what was left by its partner, i / 2 warps above
        # 3. before the next level writes to the same place: who may still be reading?
        # 4. again with half as many warps; at the end, warp 0 writes out
        ### BEGIN SOLUTION
        i = NUM_WARPS
        while i > 1:
            mid = i // 2
            if warp_idx >= mid and warp_idx < i:
                for j in range(NUM_ROWS_PER_THREAD):
                    row_idx = lane + j * 32
                    if row_idx < HEAD_SIZE:
                        out_smem[(warp_idx - mid) * HEAD_SIZE + row_idx] = accs[j]
            cuda.syncthreads()
            if warp_idx < mid:
                for j in range(NUM_ROWS_PER_THREAD):
                    row_idx = lane + j * 32
                    if row_idx < HEAD_SIZE:
                        accs[j] += out_smem[warp_idx * HEAD_SIZE + row_idx]
            cuda.syncthreads()
            i = mid
        if warp_idx == 0:
            for j in range(NUM_ROWS_PER_THREAD):
                row_idx = lane + j * 32
                if row_idx < HEAD_SIZE:
                    out[row_idx] = accs[j]
        ### END SOLUTION

    return kernel


_LEVELS = "8 warps become 4, then 2, then 1; each level adds the upper half to the lower half."
TREE_CASES = (
    # name, what it isolates, what its failure means, (warps, head size)
    ("one_level", "2 warps, head size 32", "Warp 1 leaves its rows, warp 0 adds them.", (2, 32)),
    ("two_levels", "4 warps, as vLLM has", _LEVELS, (4, 32)),
    ("three_levels", "8 warps", _LEVELS, (8, 64)),
    ("half_a_step", "4 warps, head size 80", "The last rows are for half of the lanes.", (4, 80)),
)  # fmt: skip


def warp_tree_trials(draw: int = 0) -> list[Trial]:
    def task(geometry: Geometry) -> Task:
        num_warps, head_size = geometry.NUM_WARPS, geometry.head_size
        parts = seeded(head_size, draw).standard_normal((num_warps, head_size), np.float32)
        once = Enough(parts.nbytes // SECTOR, num_warps * geometry.NUM_ROWS_PER_THREAD)
        enough = {0: Enough.of(head_size), 1: once}
        return Task(
            geometry.num_threads,
            (parts,),
            parts.sum(axis=0, dtype=float),
            enough,
            shared_bytes=num_warps // 2 * head_size * parts.itemsize,
            also=partial(require_tree, geometry),
        )

    def one(name: str, isolates: str, meaning: str, sizes: tuple[int, int]) -> Trial:
        num_warps, head_size = sizes
        geometry = Geometry(head_size, 8, torch.float16, num_warps * WARP_SIZE)
        made = task(geometry)
        return trial(name, isolates, meaning, made, warp_tree, ("row",), lambda f: f(geometry))

    return [one(*case) for case in TREE_CASES]


TREE = Exercise(
    notebook=NOTEBOOK,
    text="""\
The end of the kernel: each warp has summed its own blocks, and the sums must be added. Shared
memory has room for half of the warps only. So the upper half leaves its rows there and the lower
half adds them; then the same with half as many warps. log2(NUM_WARPS) levels with two barriers
each are enough, and each warp but warp 0 leaves its rows once.""",
    solution=warp_tree,
    trials=warp_tree_trials,
)


EXERCISES = (BLOCK_MAX, ROWS, TREE)
