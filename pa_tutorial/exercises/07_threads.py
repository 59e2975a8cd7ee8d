"""Exercises of *Threads*: eight kernels of one to three lines. The first case is drawn."""

import numpy as np
from numba import cuda, float32

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.exercises.kernel_grading import warm_up
from simt import Trace

ONE = (1,)  # thread block


# 1. ---------------------------------------------------------------------------------------------
@cuda.jit
def double_each(out, a):  # one thread per element
    t = cuda.threadIdx.x
    ### BEGIN SOLUTION
    out[t] = float32(2) * a[t]
    ### END SOLUTION


_OWN = "Thread t reads a[t] and writes out[t]; the other elements belong to other threads."
DOUBLE = warm_up(
    double_each,
    [
        ("eight_threads", "8 threads, 8 elements", _OWN, ONE, 8, (8,)),
        ("more_threads", "100 threads, 100 elements", _OWN, ONE, 100, (100,)),
    ],
    lambda a: 2 * a,
)


# 2. ---------------------------------------------------------------------------------------------
@cuda.jit
def copy_in_blocks(out, a):  # several thread blocks; as many threads as elements
    # which element does this thread take? Copy it.
    ### BEGIN SOLUTION
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    out[i] = a[i]
    ### END SOLUTION


_BLOCK = "Thread block b has b whole thread blocks before it, each of blockDim.x threads."
BLOCKS = warm_up(
    copy_in_blocks,
    [
        ("three_blocks", "3 thread blocks of 4 threads", _BLOCK, (3,), 4, (12,)),
        ("five_blocks", "5 thread blocks of 32 threads", _BLOCK, (5,), 32, (160,)),
    ],
    lambda a: a.copy(),
)


# 3. ---------------------------------------------------------------------------------------------
@cuda.jit
def copy_with_guard(out, a):  # a few more threads than elements
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    ### BEGIN SOLUTION
    if i < a.size:
        out[i] = a[i]
    ### END SOLUTION


_GUARD = "Indices go from 0 to a.size - 1; a thread with a larger i must do nothing."
GUARD = warm_up(
    copy_with_guard,
    [
        ("ten_elements", "12 threads, 10 elements", _GUARD, (3,), 4, (10,)),
        ("almost_none", "64 threads, 33 elements", _GUARD, (2,), 32, (33,)),
        ("exactly_full", "as many threads as elements", _GUARD, (2,), 8, (16,)),
    ],
    lambda a: a.copy(),
)


# 4. ---------------------------------------------------------------------------------------------
@cuda.jit
def copy_in_strides(out, a):  # one thread block; there may be many more elements than threads
    ### BEGIN SOLUTION
    for i in range(cuda.threadIdx.x, a.size, cuda.blockDim.x):
        out[i] = a[i]
    ### END SOLUTION


_STRIDE = "Thread t takes t, then t + blockDim.x, then t + 2 * blockDim.x, until the array ends."


def require_strides(trace: Trace) -> None:
    writes = trace.only(kind="write")
    (elements,) = writes.the_array().indices(writes.records.address)
    owners = elements % len(np.unique(writes.threads))
    for element, owner, thread in zip(elements, owners, writes.threads, strict=True):
        if owner != thread:
            copies = f"thread {thread} copies a[{element}], which is thread {owner}'s"
            raise AnswerError(f"the answer is right, but {copies}")


STRIDES = warm_up(
    copy_in_strides,
    [
        ("four_threads", "4 threads, 10 elements", _STRIDE, ONE, 4, (10,)),
        ("many_turns", "32 threads, 200 elements", _STRIDE, ONE, 32, (200,)),
        ("few_elements", "32 threads, 5 elements", _STRIDE, ONE, 32, (5,)),
    ],
    lambda a: a.copy(),
    also=require_strides,
)


# 5. ---------------------------------------------------------------------------------------------
@cuda.jit
def scale_heads(out, q, scale):  # out, q [num_seqs, num_heads, head_size]
    d = cuda.threadIdx.x  # one thread per element of a head
    ### BEGIN SOLUTION
    head, seq = cuda.blockIdx.x, cuda.blockIdx.y
    out[seq, head, d] = scale * q[seq, head, d]
    ### END SOLUTION


_GRID = "blockIdx.x is the head and blockIdx.y the sequence; the array has the sequence first."
HEADS = warm_up(
    scale_heads,
    [
        ("three_heads", "3 heads, 2 sequences", _GRID, (3, 2), 2, (2, 3, 2)),
        ("one_head", "1 head, 4 sequences of heads of 32", _GRID, (1, 4), 32, (4, 1, 32)),
    ],
    lambda q, scale: scale * q,
    inputs=lambda q, rng: (q, np.float32(0.5)),
    hints={"init": "out holds nothing yet, so there is nothing in it to multiply."},
    axes=("sequence", "head", "element"),
)


# 6. ---------------------------------------------------------------------------------------------
@cuda.jit
def look_up(out, a, index):  # one thread per element of out
    t = cuda.threadIdx.x
    ### BEGIN SOLUTION
    out[t] = a[index[t]]
    ### END SOLUTION


def look_up_inputs(a: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A table shorter than a, and never 0, 1, 2, …"""
    index = rng.permutation(a.size).astype(np.int32)[: 3 * a.size // 4]
    return a, np.roll(index, 1) if index[0] == 0 else index


_TABLE = "index[t] is a place in a. Thread t copies the element at that place, not at place t."
LOOK_UP = warm_up(
    look_up,
    [
        ("six_threads", "6 threads, 8 elements", _TABLE, ONE, 6, (8,)),
        ("more_threads", "96 threads, 128 elements", _TABLE, ONE, 96, (128,)),
    ],
    lambda a, index: a[index],
    inputs=look_up_inputs,
)


# 7. ---------------------------------------------------------------------------------------------
@cuda.jit
def reverse_in_shared(out, a):  # 8 threads, or 64
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    ### BEGIN SOLUTION
    cuda.syncthreads()
    ### END SOLUTION
    out[t] = s[cuda.blockDim.x - 1 - t]


_WAIT = "No thread may read s before all have written to it."
REVERSE = warm_up(
    reverse_in_shared,
    [
        ("eight_threads", "8 threads", _WAIT, ONE, 8, (8,)),
        ("two_warps", "64 threads, which don't run in step", _WAIT, ONE, 64, (64,)),
    ],
    lambda a: a[::-1].copy(),
)


# 8. ---------------------------------------------------------------------------------------------
@cuda.jit
def sum_in_shared(out, a):  # 8 threads, or 64
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    half = cuda.blockDim.x // 2
    while half > 0:
        # one round: what must every thread do first, and which of them add what?
        ### BEGIN SOLUTION
        cuda.syncthreads()
        if t < half:
            s[t] += s[t + half]
        ### END SOLUTION
        half //= 2
    if t == 0:
        out[0] = s[0]


_TREE = "After each round, the first `half` elements together hold the whole sum."
SUM = warm_up(
    sum_in_shared,
    [
        ("eight_threads", "8 threads, three rounds", _TREE, ONE, 8, (8,)),
        ("two_warps", "64 threads, six rounds", _TREE, ONE, 64, (64,)),
    ],
    lambda a: a.sum(keepdims=True),
    hints={
        "race": "Before a round, who has written the element `half` further on?",
        "race within a line": "In one round, which elements change, and which are only read?",
        "init": "Which threads have an element `half` further on to add?",
    },
)


EXERCISES = (DOUBLE, BLOCKS, GUARD, STRIDES, HEADS, LOOK_UP, REVERSE, SUM)
