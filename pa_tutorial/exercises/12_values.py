"""The exercise of *Values*: the sum over any number of warps; and the cases of row_sizes."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numba import cuda, float32

from pa_tutorial.exercises import kernel_grading as grading
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.function_cases import size_trials
from pa_tutorial.exercises.kernel_grading import Enough, Task, on_tasks
from pa_tutorial.exercises.random_inputs import seeded
from simt import Trace
from simt.gpus import WARP_SIZE
from simt.traffic import SECTOR


# 1. ---------------------------------------------------------------------------------------------
def warp_tree(NUM_WARPS: int, HEAD_SIZE: int) -> Callable:
    """A kernel: the rows of any number of warps are summed, in shared memory for half of them.

    returns  kernel(out, parts)
        out    [HEAD_SIZE] float32: the sum over the warps
        parts  [NUM_WARPS, HEAD_SIZE] float32: what each warp has summed; lane l has the rows
               l, l + 32, …

    The launch gives shared memory for NUM_WARPS // 2 rows of HEAD_SIZE, not more.
    """
    NUM_ROWS_PER_THREAD = -(-HEAD_SIZE // 32)

    @cuda.jit
    def kernel(out, parts):
        warp_idx, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        out_smem = cuda.shared.array(0, float32)  # [NUM_WARPS // 2 * HEAD_SIZE]
        accs = cuda.local.array(NUM_ROWS_PER_THREAD, float32)  # rows lane, lane + 32, …
        for j in range(NUM_ROWS_PER_THREAD):
            row_idx = lane + j * 32
            accs[j] = parts[warp_idx, row_idx] if row_idx < HEAD_SIZE else float32(0)
        # 1. of the first i warps, the last i // 2 leave their accs; wait
        # 2. which warps add them? If i is odd, one warp has no partner, and only waits
        # 3. before the next level writes to the same place: who may still be reading?
        # 4. how many warps are left? At the end, warp 0 writes out
        ### BEGIN SOLUTION
        i = NUM_WARPS
        while i > 1:
            mid = (i + 1) // 2
            if warp_idx >= mid and warp_idx < i:
                for j in range(NUM_ROWS_PER_THREAD):
                    row_idx = lane + j * 32
                    if row_idx < HEAD_SIZE:
                        out_smem[(warp_idx - mid) * HEAD_SIZE + row_idx] = accs[j]
            cuda.syncthreads()
            if warp_idx < i - mid:
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


_LEVELS = "5 warps become 3, then 2, then 1; each level adds what its last warps have left."
TREE_CASES = (
    # name, what it isolates, what its failure means, warps, head size
    ("two_levels", "4 warps, as vLLM has", _LEVELS, 4, 32),
    ("one_without_a_partner", "3 warps", "Warp 1 waits in the first level.", 3, 32),
    ("odd_later", "6 warps, then 3", _LEVELS, 6, 64),
    ("three_levels", "5 warps", _LEVELS, 5, 32),
    ("half_a_step", "3 warps, head size 80", "The last rows are for half of the lanes.", 3, 80),
)


def tree_task(draw: int, num_warps: int, head_size: int) -> Task:
    parts = seeded(head_size, draw).standard_normal((num_warps, head_size), np.float32)
    num_rows = -(-head_size // WARP_SIZE)
    return Task(
        num_warps * WARP_SIZE,
        (parts,),
        parts.sum(axis=0, dtype=float),
        {0: Enough.of(head_size), 1: Enough(parts.nbytes // SECTOR, num_warps * num_rows)},
        shared_bytes=num_warps // 2 * head_size * parts.itemsize,
        also=partial(require_tree, num_warps, num_rows),
    )


def require_tree(num_warps: int, num_rows: int, trace: Trace) -> None:
    """Every warp but one leaves its rows, once; two barriers a level. num_rows: of a lane."""
    grading.require_atomics(trace, 0, "the order of the sum would change from run to run")
    grading.require_barriers(trace, 2 * (num_warps - 1).bit_length())
    for kind in ("write", "read"):
        grading.require_shared_transactions(trace, kind, (num_warps - 1) * num_rows)


TREE = Exercise(
    solution=warp_tree,
    cases=on_tasks(TREE_CASES, tree_task, ("row",), is_made=True),
)


EXERCISES = (TREE,)
CASES = {"row_sizes": partial(size_trials, "row_sizes")}
