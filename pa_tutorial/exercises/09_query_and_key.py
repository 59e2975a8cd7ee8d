"""Exercises of notebook 09: an address of K, the product within a thread group, q in shared memory.

The kernel of the package is the reference of the first one: its trace has the addresses.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numba import cuda, float32
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.drawing import seeded
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.kernels import Task, require_shared_requests, trial
from pa_tutorial.exercises.query_and_key_grading import kernel_around, reads_of_k, require_good_rows
from pa_tutorial.kernels.dtypes import SCALAR_TYPES
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.warp import ALL_LANES
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.walk.calls import AnswerError, require_written

NOTEBOOK = "09_query_and_key"


# 1. ---------------------------------------------------------------------------------------------


def key_offset(
    geometry: Geometry,
    thread_idx: int,
    j: int,
    head_idx: int,
    physical_block_number: int,
    kv_block_stride: int,
    kv_head_stride: int,
) -> int:
    """The first element of the vec of K that a thread reads at iteration j.

    geometry               its names in capitals: geometry.BLOCK_SIZE, geometry.X, …
    thread_idx             in the thread block: 0 to NUM_THREADS - 1
    j                      0 to NUM_VECS_PER_THREAD - 1
    head_idx               of the query
    physical_block_number  of the block that the warp of this thread has now
    kv_block_stride, kv_head_stride  in elements; there may be gaps between blocks and heads
    returns                offset in k_cache in elements, as if it were flat

    k_cache  [num_blocks, num_kv_heads, HEAD_SIZE / X, BLOCK_SIZE, X]
    """
    # 1. which thread group is it, and which thread of the group? Groups count through all warps
    # 2. which token of the block does the group take?
    # 3. which vec of the head is vec j of this thread? At which element does it begin?
    # 4. where in k_cache is that element? X elements of a token stand side by side
    ### BEGIN SOLUTION
    size, x = geometry.THREAD_GROUP_SIZE, geometry.X
    thread_group_idx, thread_group_offset = thread_idx // size, thread_idx % size
    token = thread_group_idx % geometry.BLOCK_SIZE
    vec_idx = thread_group_offset + j * size
    element = vec_idx * geometry.VEC_SIZE
    kv_head_idx = head_idx // geometry.NUM_QUERIES_PER_KV
    head_ptr = physical_block_number * kv_block_stride + kv_head_idx * kv_head_stride
    return head_ptr + element // x * geometry.BLOCK_SIZE * x + token * x + element % x
    ### END SOLUTION


_VECS = "Whole vecs take turns between the threads of a group, X elements of a token are together."
_BY_HAND = "Go through the steps for thread 33: thread 1 of group 8, and token 0 of a block of 8."
_TOKEN = "Thread groups count through all warps; each warp has a whole block: % BLOCK_SIZE."
OFFSET_CASES = (
    # name, what it isolates, what its failure means,
    # (block_size, dtype, head_size, num_threads, num_kv_heads, query heads of each, gap)
    ("worked_example", "groups of 4, 2 elements a vec", _BY_HAND,
     (8, torch.float16, 32, 64, 1, 1, 0)),
    ("groups_of_2", "4 elements a vec, 4 warps", _TOKEN, (16, torch.float16, 64, 128, 1, 1, 0)),
    ("groups_of_1", "8 elements a vec: each thread has a key", _TOKEN,
     (32, torch.float16, 32, 128, 1, 1, 0)),
    ("float32", "X is 4, 2 elements a vec", _VECS, (16, torch.float32, 32, 128, 2, 1, 0)),
    ("one_element", "float32 in groups of 4: a vec is one element", _VECS,
     (8, torch.float32, 32, 128, 2, 1, 0)),
    ("gqa", "6 query heads, 2 KV heads", "KV head = head_idx // NUM_QUERIES_PER_KV.",
     (8, torch.float16, 32, 128, 2, 3, 0)),
    ("gaps", "space between heads and between blocks", "Use both strides, not the shape.",
     (16, torch.float16, 32, 64, 2, 2, 1)),
)  # fmt: skip


def key_offset_trials(draw: int = 0) -> list[Trial]:
    def run(sizes: tuple, function: Callable | None) -> dict[str, Tensor]:
        answer = key_offset if function is None else function
        geometry, head_idx, blocks, strides, first = reads_of_k(sizes, draw)
        out = torch.empty(first.shape, dtype=torch.int64)
        for thread, turn, j in np.ndindex(*first.shape):
            block = int(blocks[turn, thread // WARP_SIZE])
            found = require_written(answer(geometry, thread, j, head_idx, block, *strides))
            if not isinstance(found, int | np.integer):
                kind = type(found).__name__
                raise AnswerError(f"it returned a {kind}; an offset is a whole number: // and %")
            out[thread, turn, j] = int(found)
        return {"out": out}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=meaning,
            run=partial(run, sizes),
            references={
                "the kernel's trace": lambda sizes=sizes: {"out": reads_of_k(sizes, draw)[-1]}
            },
            bounds={"out": 0.0},
            axes=("thread", "turn", "j"),
        )
        for name, isolates, meaning, sizes in OFFSET_CASES
    ]


OFFSET = Exercise(
    notebook=NOTEBOOK,
    text="""\
Which address of K does thread t read at iteration j? Say it as one function of plain Python: the
offset of the vec's first element in `k_cache`. The grader runs the kernel in the simulator, for
seven geometries, and compares each answer with what the kernel has read.""",
    solution=key_offset,
    trials=key_offset_trials,
)


# 2. ---------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def qk_dot(q_vecs, k_vecs, thread_group_offset):
    """q . k for the key of this thread's group: every thread of the group returns the whole sum.

    q_vecs  [THREAD_GROUP_SIZE, NUM_VECS_PER_THREAD, VEC_SIZE]  shared memory, in the type of q;
            row r has the vecs of q for the threads with thread_group_offset r
    k_vecs  [NUM_VECS_PER_THREAD, VEC_SIZE] float32  this thread's registers: its vecs of the key

    THREAD_GROUP_SIZE is 1, 2 or 4. All lanes of the warp call it together.
    """
    THREAD_GROUP_SIZE, NUM_VECS_PER_THREAD, VEC_SIZE = q_vecs.shape
    # 1. this thread's part: its row of q_vecs times its k_vecs, element by element, in float32
    # 2. the parts of a group are in neighbouring lanes: sum them with shuffles (mask ALL_LANES)
    # 3. how many shuffles does a group need, and with which one do all threads get the sum?
    ### BEGIN SOLUTION
    qk = float32(0)
    for j in range(NUM_VECS_PER_THREAD):
        for e in range(VEC_SIZE):
            qk += float32(q_vecs[thread_group_offset, j, e]) * k_vecs[j, e]
    mask = THREAD_GROUP_SIZE // 2
    while mask >= 1:
        qk += cuda.shfl_xor_sync(ALL_LANES, qk, mask)
        mask //= 2
    return qk
    ### END SOLUTION


_SUM = "A thread takes its row of q; all lanes of a group are summed, and all have the sum."
DOT_CASES = (
    # name, what it isolates, what its failure means, head size, block size, type, threads
    ("groups_of_1", "each thread has a key", "There is one row of q, and nobody to sum with.",
     Geometry(64, 32, torch.float16, 64)),
    ("groups_of_2", "two threads share a key", _SUM, Geometry(64, 16, torch.float16, 128)),
    ("worked_example", "groups of 4", _SUM, Geometry(32, 8, torch.float16, 64)),
    ("vecs_of_1", "float32 in groups of 4", _SUM, Geometry(32, 8, torch.float32, 64)),
    ("float32", "vecs of 2, head size 80", _SUM, Geometry(80, 16, torch.float32, 64)),
    ("large_head", "float16, head size 120", "Products and sums in float32.",
     Geometry(120, 8, torch.float16, 128)),
)  # fmt: skip


def qk_dot_trials(draw: int = 0) -> list[Trial]:
    def task(geometry: Geometry) -> Task:
        rng = seeded(geometry.head_size, draw)
        dtype = np.float16 if geometry.dtype == torch.float16 else np.float32

        def numbers(*shape: int) -> np.ndarray:
            drawn = rng.standard_normal(shape)
            # multiples of 1/16: their sums are exact in float32, in every order
            return ((drawn * 16).round() / 16 if draw else drawn).astype(dtype)

        q = numbers(geometry.head_size)
        k = numbers(geometry.NUM_THREAD_GROUPS, geometry.head_size)
        qk = k.astype(np.float64) @ q.astype(np.float64)
        expected = np.tile(qk, (geometry.THREAD_GROUP_SIZE, 1))
        shuffles = geometry.NUM_WARPS * (geometry.THREAD_GROUP_SIZE.bit_length() - 1)
        reads = geometry.NUM_WARPS * geometry.NUM_ELEMS_PER_THREAD
        read_once = partial(require_shared_requests, kind="read", most=reads)
        return Task(
            geometry.num_threads, (q, k), expected, {}, most_shuffles=shuffles, also=read_once
        )

    return [
        trial(
            *words,
            task(geometry),
            qk_dot,
            ("thread_group_offset", "key"),
            kernel_of=partial(kernel_around, geometry),
        )
        for *words, geometry in DOT_CASES
    ]


DOT = Exercise(
    notebook=NOTEBOOK,
    text="""\
The device function in the middle of the kernel: q times one key. The threads of a group have
different vecs; at the end each of them has the whole sum. One shuffle halves the work, so
log2(THREAD_GROUP_SIZE) of them are enough: none, one or two. The grader's kernel puts q into
shared memory and keys into registers, and calls your function.""",
    solution=qk_dot,
    trials=qk_dot_trials,
)


# 3. ---------------------------------------------------------------------------------------------


def query_to_shared(geometry: Geometry) -> Callable:
    """A kernel: q goes to shared memory once, then every thread reads its row.

    geometry  block_size 8, 16 or 32 (THREAD_GROUP_SIZE 4, 2 or 1); float16 or float32
    returns   kernel(out, q)
        q    [HEAD_SIZE]
        out  [NUM_ELEMS_PER_THREAD, NUM_THREADS] float32: out[:, t] is the row of thread t,
             its vecs of q one behind the other
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
        # 1. row r begins at r * ROW in q_smem: how many elements is ROW, so that the lanes of a
        #    group meet in no bank, and every vec begins at a multiple of VEC_SIZE?
        # 2. all groups together bring q, each vec once: which ones does this group bring?
        # 3. wait; then this thread reads its row: out[0, t], out[1, t], …
        ### BEGIN SOLUTION
        ROW = (NUM_VECS_PER_THREAD + 1) * VEC_SIZE
        start = thread_group_offset * ROW
        for j in range(thread_group_idx, NUM_VECS_PER_THREAD, NUM_THREAD_GROUPS):
            vec_idx = thread_group_offset + j * THREAD_GROUP_SIZE
            for e in range(VEC_SIZE):
                q_smem[start + j * VEC_SIZE + e] = q[vec_idx * VEC_SIZE + e]
        cuda.syncthreads()
        for i in range(NUM_VECS_PER_THREAD * VEC_SIZE):
            out[i, cuda.threadIdx.x] = float32(q_smem[start + i])
        ### END SOLUTION

    return kernel


_BRING = "Vec j of a row is vec r + j * THREAD_GROUP_SIZE of q; each group brings some of them."
_BANKS = "Rows of 128 bytes begin in the same bank: make ROW a little longer, by whole vecs."
QUERY_CASES = (
    # name, what it isolates, what its failure means, head size, block size, type, threads
    ("worked_example", "groups of 4, rows of 16 bytes", _BRING, Geometry(32, 8, torch.float16, 64)),
    ("groups_of_2", "rows of 128 bytes", _BANKS, Geometry(128, 16, torch.float16, 64)),
    ("groups_of_4", "float32, rows of 128 bytes", _BANKS, Geometry(128, 8, torch.float32, 64)),
    ("rows_of_64_bytes", "groups of 4, two rows meet", _BANKS, Geometry(128, 8, torch.float16, 64)),
    ("more_vecs_than_groups", "64 vecs a row, 32 groups", "Groups go on in steps of all groups.",
     Geometry(256, 16, torch.float32, 64)),
    ("odd_size", "head size 80, 128 threads", _BRING, Geometry(80, 16, torch.float16, 128)),
    ("one_row", "groups of 1", _BRING, Geometry(64, 32, torch.float16, 64)),
)  # fmt: skip


def query_trials(draw: int = 0) -> list[Trial]:
    def task(geometry: Geometry) -> Task:
        dtype = np.float16 if geometry.dtype == torch.float16 else np.float32
        numbers = seeded(geometry.head_size, draw).standard_normal(geometry.head_size)
        q = numbers.astype(dtype)
        rows = [q[list(geometry.head_elements(r))] for r in range(geometry.THREAD_GROUP_SIZE)]
        expected = np.tile(np.stack(rows, axis=1), geometry.NUM_THREAD_GROUPS).astype(np.float32)
        also = partial(require_good_rows, geometry)
        return Task(geometry.num_threads, (q,), expected, {}, also=also)

    return [
        trial(
            *words,
            task(geometry),
            query_to_shared,
            ("element of the row", "thread"),
            kernel_of=lambda make, geometry=geometry: make(geometry),
        )
        for *words, geometry in QUERY_CASES
    ]


QUERY = Exercise(
    notebook=NOTEBOOK,
    text="""\
The kernel reads `q_vecs` with a bank conflict for some geometries, as vLLM's does. Repair it:
bring q to shared memory, all threads together and each element once. You say where the rows lie.
When the threads read their rows, no two may meet in a bank. Later a vec is read at once (notebook
11), so each vec must begin at a multiple of its size. There is more than one way.""",
    solution=query_to_shared,
    trials=query_trials,
)


EXERCISES = (OFFSET, DOT, QUERY)
