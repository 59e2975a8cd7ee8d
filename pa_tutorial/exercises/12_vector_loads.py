"""Exercise of notebook 12: a copy by vecs, with a tail."""

import numpy as np
from numba import cuda

from pa_tutorial.exercises.drawing import seeded
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.kernel_grading import ITEM, Enough, Task, on_tasks
from pa_tutorial.kernels.geometry import divide_round_up
from pa_tutorial.kernels.vectors import vector_access
from pa_tutorial.simt.gpus import WARP_SIZE
from pa_tutorial.simt.traffic import SECTOR

VEC = 4  # elements of 16 bytes

load_4, store_4, _ = vector_access(VEC)


@cuda.jit
def copy_by_vecs(out, a):
    """A copy, by one thread block, 16 bytes at a time.

    a, out  [n] float32; n is 1 or more, and both begin at a multiple of 16 bytes; a is only read

    load_4(a, i) is a tuple: a[i] to a[i + 3], read by one transaction. store_4(out, i, values)
    writes such a tuple. The thread block has 32, 64, … threads.
    """
    # 1. how many whole vecs of 4 elements are there? Neighbouring threads take neighbouring vecs
    # 2. if there are more vecs than threads, a thread has several
    # 3. 0 to 3 elements are left: they are copied by one transaction for all of them
    ### BEGIN SOLUTION
    num_vecs = a.size // 4
    for vec in range(cuda.threadIdx.x, num_vecs, cuda.blockDim.x):
        store_4(out, 4 * vec, load_4(a, 4 * vec))
    i = 4 * num_vecs + cuda.threadIdx.x
    if i < a.size:
        out[i] = a[i]
    ### END SOLUTION


_TAIL = "After the last whole vec, 1 to 3 elements are left: a thread copies each of them."
_VECS = (
    "A warp reads 512 bytes with one transaction: vec t for thread t, then go on by all threads."
)
COPY_CASES = (
    # name, what it isolates, what its failure means, threads, elements
    ("one_transaction", "128 elements: one vec for each lane", _VECS, 32, 128),
    ("several_turns", "32 threads, 4 vecs each", _VECS, 32, 512),
    ("several_warps", "128 threads, 1,024 elements", _VECS, 128, 1024),
    ("tail_of_3", "131 elements", _TAIL, 64, 131),
    ("tail_of_1", "513 elements, a vec more than there are threads", _TAIL, 128, 513),
    ("only_a_tail", "3 elements: no whole vec", _TAIL, 32, 3),
    ("half_a_warp", "16 vecs and 2 elements", _TAIL, 32, 66),
)


def copy_task(draw: int, num_threads: int, size: int) -> Task:
    a = seeded(size, draw).standard_normal(size, dtype=np.float32)
    tail = size % VEC
    sectors = divide_round_up(size * ITEM, SECTOR) + tail  # they may be touched again
    transactions = divide_round_up(size // VEC, WARP_SIZE) + (tail > 0)
    enough = dict.fromkeys((0, 1), Enough(sectors, transactions))
    warps = min(num_threads // WARP_SIZE, max(transactions - (tail > 0), 1))
    return Task(num_threads, (a,), a, enough, warps)


COPY = Exercise(
    solution=copy_by_vecs,
    cases=on_tasks(COPY_CASES, copy_task, ("element",)),
)


EXERCISES = (COPY,)
