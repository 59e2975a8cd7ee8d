"""Exercises of Vector loads: a copy by vecs, how wide a load may be, q without bank conflicts."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numba import cuda, float32
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError, Function
from pa_tutorial.exercises import kernel_grading as grading
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import axes_of_calls, graded, results_of
from pa_tutorial.exercises.kernel_grading import ITEM, Enough, Task, on_tasks
from pa_tutorial.exercises.random_inputs import seeded
from pa_tutorial.kernels.dtypes import SCALAR_TYPES
from pa_tutorial.kernels.geometry import Geometry, divide_round_up
from pa_tutorial.kernels.vectors import vector_access
from simt import Trace, shared_traffic
from simt.gpus import WARP_SIZE
from simt.traffic import SECTOR

# 1. ---------------------------------------------------------------------------------------------
VEC = 4  # elements of 16 bytes

load_4, store_4, _ = vector_access(VEC)


@cuda.jit
def copy_by_vecs(out, a):
    """A copy, by one thread block, 16 bytes at a time.

    a, out  [n] float32; n is 1 or more, and both begin at a multiple of 16 bytes; a is only read

    load_4(a, i) is a tuple: a[i] to a[i + 3], read by one transaction. store_4(out, i, values)
    writes such a tuple. The thread block has 32, 64, … threads.
    """
    # how many whole vecs are there? Neighbouring threads take neighbouring vecs, in turns
    # what is left over is too short for a vec: one transaction for all of it
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
    is_warm_up=True,
)


# 2. ---------------------------------------------------------------------------------------------
def bytes_at_once(lanes: list[list[int]], itemsize: int) -> int:
    """The widest load by which each lane gets exactly what it reads: 16, 8 or 4 bytes.

    lanes     for each lane, the elements of an array that it reads, in order, counted from the
              array's beginning, which is a multiple of 16 bytes
    itemsize  2 or 4, the size of an element in bytes
    returns   itemsize if even 4 bytes are too many

    For example, 4 for [[2, 3, 10, 11], [4, 5, 12, 13]] with 2 bytes each.
    """
    # the widest load first: how many elements would it bring?
    # it fits if the elements of every lane can be cut into such loads
    ### BEGIN SOLUTION
    for num_bytes in (16, 8, 4):
        count = num_bytes // itemsize
        loads = [lane[i : i + count] for lane in lanes for i in range(0, len(lane), count)]
        fits = [n[0] % count == 0 and n == [*range(n[0], n[0] + count)] for n in loads]
        if all(fits):
            return num_bytes
    return itemsize
    ### END SOLUTION


_RUNS = "A load gets neighbours: how many of them follow each other before the lane goes elsewhere?"
_ALIGNED = "A load of n elements must begin at a multiple of n."
_LANES = "A load is one instruction for all lanes: it must fit every one of them."
WIDTH_CASES = (
    # name, what it isolates, what its failure means, itemsize
    ("runs", "some neighbours, then a jump", _RUNS, 2),
    ("alignment", "many neighbours, from any element on", _ALIGNED, 2),
    ("one_lane", "one lane begins elsewhere", _LANES, 2),
    ("float32", "elements of 4 bytes", _RUNS, 4),
)
LONGEST, NUM_ARRAYS = 8, 12


def width_run(answer: Function, name: str, itemsize: int, draw: int) -> Tensor:
    return results_of(answer, width_calls(name, itemsize, draw))


def width_calls(name: str, itemsize: int, draw: int) -> list[tuple[list[list[int]], int]]:
    return [(lanes, itemsize) for lanes, _ in arrays_of(name, itemsize, draw)]


def width_axes(*case: object) -> tuple[str]:
    return axes_of_calls("bytes_at_once", width_calls(*case))


def the_runs_as_drawn(name: str, itemsize: int, draw: int) -> Tensor:
    units = (unit for _, unit in arrays_of(name, itemsize, draw))
    return torch.tensor([min(16, itemsize * unit) for unit in units])


def arrays_of(name: str, itemsize: int, draw: int) -> list[tuple[list[list[int]], int]]:
    """(elements of two lanes, how many of them are neighbours from an aligned place on)"""
    rng, arrays = seeded(len(name), draw), []
    for unit in (2 ** rng.integers(4, size=NUM_ARRAYS)).tolist():
        run = unit if name in ("runs", "float32") else LONGEST
        shifts = {"alignment": (unit, unit), "one_lane": (0, unit)}.get(name, (0, 0))
        starts = 2 * LONGEST * rng.permutation(4).reshape(2, 2)
        lanes = [
            [start + shift % LONGEST + e for start in of_lane for e in range(run)]
            for of_lane, shift in zip(starts.tolist(), shifts, strict=True)
        ]
        arrays.append((lanes, unit))
    return arrays


WIDTH = Exercise(
    solution=bytes_at_once,
    cases=graded(
        tuple((*case[:3], case[0], case[3]) for case in WIDTH_CASES),
        width_run,
        the_runs_as_drawn,
        width_axes,
    ),
    is_warm_up=True,
)


# 3. ---------------------------------------------------------------------------------------------
def query_to_shared(geometry: Geometry) -> Callable:
    """A kernel: q goes to shared memory once, then every thread reads its share.

    geometry  block_size 8, 16 or 32 (THREAD_GROUP_SIZE 4, 2 or 1); float16 or float32
    returns   kernel(out, q)
        q    [HEAD_SIZE]
        out  [NUM_ELEMS_PER_THREAD, NUM_THREADS] float32: out[:, t] is the share of thread
             t, its vecs of q one after the other
    """
    THREAD_GROUP_SIZE, NUM_THREAD_GROUPS = geometry.THREAD_GROUP_SIZE, geometry.NUM_THREAD_GROUPS
    NUM_VECS_PER_THREAD, VEC_SIZE = geometry.NUM_VECS_PER_THREAD, geometry.VEC_SIZE
    ROOM = 2 * geometry.HEAD_SIZE  # elements: more than you need
    scalar_t = SCALAR_TYPES[geometry.dtype].scalar_t

    @cuda.jit
    def kernel(out, q):
        thread_group_idx = cuda.threadIdx.x // THREAD_GROUP_SIZE
        thread_group_offset = cuda.threadIdx.x % THREAD_GROUP_SIZE
        q_smem = cuda.shared.array(ROOM, scalar_t)
        # 1. where in q_smem is vec j of each share, so that the lanes of a group meet in no bank,
        #    and every vec begins at a multiple of VEC_SIZE? Does it hold for every head size?
        # 2. all groups together load q, each vec once: which ones does this group load?
        # 3. wait; then this thread reads its share: out[0, t], out[1, t], …
        ### BEGIN SOLUTION
        SHARE = (NUM_VECS_PER_THREAD | 1) * VEC_SIZE  # an odd number of vecs
        start = thread_group_offset * SHARE
        for j in range(thread_group_idx, NUM_VECS_PER_THREAD, NUM_THREAD_GROUPS):
            vec_idx = thread_group_offset + j * THREAD_GROUP_SIZE
            for e in range(VEC_SIZE):
                q_smem[start + j * VEC_SIZE + e] = q[vec_idx * VEC_SIZE + e]
        cuda.syncthreads()
        for i in range(NUM_VECS_PER_THREAD * VEC_SIZE):
            out[i, cuda.threadIdx.x] = float32(q_smem[start + i])
        ### END SOLUTION

    return kernel


_BRING = "Vec j of a share is vec r + j * THREAD_GROUP_SIZE of q; each group brings some of them."
_BANKS = "Shares of 128 bytes begin in the same bank: make them longer by a vec, or keep q's order."
_LONGER = "These shares need no padding. With it, they may begin in the same bank."
QUERY_CASES = (
    # name, what it isolates, what its failure means, head size, block size, type, threads
    ("worked_example", "groups of 4, 16 bytes each", _BRING, Geometry(32, 8, torch.float16, 64)),
    ("groups_of_2", "shares of 128 bytes", _BANKS, Geometry(128, 16, torch.float16, 64)),
    ("groups_of_4", "float32, shares of 128 bytes", _BANKS, Geometry(128, 8, torch.float32, 64)),
    ("shares_of_64_bytes", "groups of 4, two meet", _BANKS, Geometry(128, 8, torch.float16, 64)),
    ("more_vecs_than_groups", "64 vecs a share, 32 groups", "Groups go on in steps of all groups.",
     Geometry(256, 16, torch.float32, 64)),
    ("odd_size", "head size 80, 128 threads", _BRING, Geometry(80, 16, torch.float16, 128)),
    ("15_vecs_a_share", "shares of 60 bytes", _LONGER, Geometry(120, 8, torch.float16, 64)),
    ("14_vecs_a_share", "shares of 112 bytes", _LONGER, Geometry(112, 16, torch.float16, 64)),
    ("one_share", "groups of 1", _BRING, Geometry(64, 32, torch.float16, 64)),
)  # fmt: skip


def require_good_shares(geometry: Geometry, trace: Trace) -> None:
    _require_together(geometry, trace.only(array="q", kind="read"))
    # Elements one by one: each of VEC_SIZE transactions touches the sectors of all vecs again.
    sectors = -(-geometry.head_size * geometry.ITEMSIZE // SECTOR)
    transactions = -(-geometry.head_size // geometry.VEC_SIZE // WARP_SIZE)
    enough = Enough(geometry.VEC_SIZE * sectors, geometry.VEC_SIZE * transactions)
    grading.require_few(trace, "q", enough)
    shares = trace.only(space="shared", kind="read")
    vec_bytes = geometry.VEC_SIZE * geometry.ITEMSIZE
    for thread in range(geometry.THREAD_GROUP_SIZE):
        vecs = np.unique(shares.records.address[shares.threads == thread] // vec_bytes)
        if len(vecs) > geometry.NUM_VECS_PER_THREAD:
            raise AnswerError(
                f"the answer is right, but some vecs of share {thread} in shared memory don't "
                f"begin at a multiple of their size, {vec_bytes} bytes: no thread could read one "
                "at once"
            )
    table = shared_traffic(shares)
    found, ideal = table.total("wavefronts"), table.total("ideal")
    if found > ideal:
        raise AnswerError(
            "the answer is right, but there are bank conflicts when the shares are read: "
            f"{found:,} wavefronts, where {ideal:,} would do"
        )
    most = geometry.NUM_WARPS * geometry.NUM_ELEMS_PER_THREAD
    grading.require_shared_transactions(trace, "read", most)


def _require_together(geometry: Geometry, loads: Trace) -> None:
    """q is read once, by as many threads as there are vecs."""
    if len(loads) > geometry.head_size:
        raise AnswerError(
            f"the answer is right, but elements of q are read {len(loads):,} times; "
            f"{geometry.head_size} are enough: each element once"
        )
    found = len(np.unique(loads.threads))
    wanted = min(geometry.num_threads, geometry.head_size // geometry.VEC_SIZE)
    if found < wanted:
        raise AnswerError(
            f"the answer is right, but q is brought by {found} of the threads; {wanted} could do it"
        )


def query_task(draw: int, geometry: Geometry) -> Task:
    dtype = np.float16 if geometry.dtype == torch.float16 else np.float32
    q = seeded(geometry.head_size, draw).standard_normal(geometry.head_size).astype(dtype)
    shares = [q[list(geometry.head_elements(r))] for r in range(geometry.THREAD_GROUP_SIZE)]
    expected = np.tile(np.stack(shares, axis=1), geometry.NUM_THREAD_GROUPS).astype(np.float32)
    also = partial(require_good_shares, geometry)
    return Task(geometry.num_threads, (q,), expected, {}, also=also)


QUERY = Exercise(
    solution=query_to_shared,
    cases=on_tasks(QUERY_CASES, query_task, ("element of the share", "thread"), is_made=True),
)


EXERCISES = (COPY, WIDTH, QUERY)
