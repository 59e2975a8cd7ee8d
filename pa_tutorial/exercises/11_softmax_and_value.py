"""Exercises of notebook 11: who has a token, a lane's place in V, the sum over any warps."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numba import cuda, float32
from torch import Tensor

from pa_tutorial.exercises import kernel_grading as grading
from pa_tutorial.exercises.drawing import seeded
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import graded, whole_numbers
from pa_tutorial.exercises.kernel_grading import Enough, Task, on_tasks
from pa_tutorial.simt import Trace
from pa_tutorial.simt.gpus import WARP_SIZE
from pa_tutorial.simt.traffic import SECTOR
from pa_tutorial.walk.calls import Function


# 1. ---------------------------------------------------------------------------------------------
def owners_of_token(token_idx: int, BLOCK_SIZE: int, NUM_WARPS: int) -> tuple[int, int]:
    """Two threads of the thread block: who writes the score of a token, and who takes its exp.

    BLOCK_SIZE  8, 16 or 32; a warp has 32 lanes
    """
    # the score: which warp has this block, and which thread of it is the first of the group?
    # the exp: thread t takes the tokens t, t + NUM_THREADS, …
    ### BEGIN SOLUTION
    block_idx, offset = divmod(token_idx, BLOCK_SIZE)
    writer = block_idx % NUM_WARPS * 32 + offset * (32 // BLOCK_SIZE)
    return writer, token_idx % (NUM_WARPS * 32)
    ### END SOLUTION


_OWNERS = "Blocks go round between the warps; within one, token i has the thread group i."
OWNER_CASES = (
    # name, what it isolates, what its failure means; BLOCK_SIZE, NUM_WARPS
    ("worked_example", "blocks of 8, groups of 4", _OWNERS, 8, 4),
    ("reference_sizes", "blocks of 16, groups of 2", _OWNERS, 16, 4),
    ("groups_of_1", "blocks of 32, two warps", _OWNERS, 32, 2),
)
THREADS = "token_idx", "writer of the score, thread of the exp"


def owners_run(answer: Function, block_size: int, num_warps: int, draw: int) -> Tensor:
    first = int(seeded(block_size, draw).integers(4096)) if draw else 0
    answers = [answer(token, block_size, num_warps) for token in range(first, first + 300)]
    return torch.tensor([whole_numbers(pair, 2) for pair in answers])


OWNERS = Exercise(
    text="""\
Your turn: who writes the score of a token, and who takes its exp? Two or three lines.""",
    solution=owners_of_token,
    cases=graded(OWNER_CASES, owners_run, partial(owners_run, owners_of_token), THREADS),
    is_warm_up=True,
)


# 2. ---------------------------------------------------------------------------------------------
def place_of_lane(lane: int, V_VEC_SIZE: int, NUM_V_VECS_PER_ROW: int) -> tuple[int, int]:
    """What a lane reads first in a block of V: its row, and the first of its tokens in the block.

    V_VEC_SIZE          tokens that a lane reads of a row
    NUM_V_VECS_PER_ROW  lanes that share a row: neighbours
    """
    # neighbouring lanes fill a row, then comes the next row
    ### BEGIN SOLUTION
    return lane // NUM_V_VECS_PER_ROW, lane % NUM_V_VECS_PER_ROW * V_VEC_SIZE
    ### END SOLUTION


_PLACE = "Lanes that share a row are neighbours; each has V_VEC_SIZE tokens of it."
PLACE_CASES = (
    # name, what it isolates, what its failure means; V_VEC_SIZE, NUM_V_VECS_PER_ROW
    ("worked_example", "a lane has a whole row", _PLACE, 8, 1),
    ("reference_sizes", "2 lanes share a row", _PLACE, 8, 2),
    ("blocks_of_32", "4 lanes share a row", _PLACE, 8, 4),
    ("float32", "4 tokens a lane, 4 lanes a row", _PLACE, 4, 4),
)


def place_run(answer: Function, size: int, lanes: int, draw: int) -> Tensor:
    size *= int(seeded(size, draw).integers(2, 9)) if draw else 1
    return torch.tensor([whole_numbers(answer(lane, size, lanes), 2) for lane in range(WARP_SIZE)])


PLACE = Exercise(
    text="""\
Your turn: in a block of V, which row does a lane read first, and which is the first of its tokens?
One line.""",
    solution=place_of_lane,
    cases=graded(PLACE_CASES, place_run, partial(place_run, place_of_lane), ("lane", "row, token")),
    is_warm_up=True,
)


# 3. ---------------------------------------------------------------------------------------------
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
    text="""\
`add_warps` needs a power of two: with 3 warps, it forgets one. Write the tree for any number of
warps. Shared memory has room for half of them, rounded down. ⌈log2(NUM_WARPS)⌉ levels with two
barriers each are enough, and each warp but warp 0 leaves its rows once.""",
    solution=warp_tree,
    cases=on_tasks(TREE_CASES, tree_task, ("row",), is_made=True),
)


EXERCISES = (OWNERS, PLACE, TREE)
