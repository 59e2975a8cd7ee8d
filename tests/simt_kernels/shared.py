"""Shared memory: static, dynamic, in device functions; and barriers between its writes and reads.

Many look like a kernel of faults_data.py or faults_order.py, but are right.
"""

import numba
import numpy as np
from numba import cuda

from simt_kernels.example import example, one_and_result
from simt_kernels.memory import numbers, unwritten


def reversed_in_blocks(a, out):
    """Each run of 64 numbers from back to front."""
    return {1: a.reshape(-1, 64)[:, ::-1].reshape(a.shape)}


@example(2, 64, one_and_result(128), reversed_in_blocks)
@cuda.jit
def static_shared_array_of_each_block(a, out):
    i = cuda.grid(1)
    t = cuda.threadIdx.x
    LANES = 64
    block = cuda.shared.array(LANES, dtype="int32")
    block[t] = a[i]
    cuda.syncthreads()
    out[i] = block[LANES - 1 - t]


@example(
    2,
    64,
    lambda rng: (rng.standard_normal(128, np.float32), unwritten(128)),
    lambda a, out: reversed_in_blocks(a.view(np.int32), out),
    shared_bytes=64 * 4 + 2,
)
@cuda.jit
def dynamic_shared_arrays_are_the_same_bytes(a, out):
    t = cuda.threadIdx.x
    floats = cuda.shared.array(0, np.float32)
    integers = cuda.shared.array(0, np.int32)
    floats[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = integers[63 - t]


@example(
    1,
    64,
    lambda rng: (numbers(rng, 64), numbers(rng, 128), np.zeros(64)),
    lambda a, b, out: {2: a[::-1] / 2 + b[::-1].reshape(64, 2) @ [1, 10]},
    shared_bytes=64 * 4,
)
@cuda.jit
def dynamic_shared_buffer_is_used_again(a, b, out):
    t = cuda.threadIdx.x
    floats = cuda.shared.array(0, numba.float32)
    shorts = cuda.shared.array(0, numba.int16)
    floats[t] = a[t] / 2
    cuda.syncthreads()
    out[t] = floats[63 - t]
    cuda.syncthreads()
    shorts[2 * t] = b[2 * t]
    shorts[2 * t + 1] = b[2 * t + 1]
    cuda.syncthreads()
    out[t] += shorts[127 - 2 * t] + 10 * shorts[126 - 2 * t]


@example(1, 32, one_and_result(32), lambda a, out: {1: a[::-1] + 31}, shared_bytes=32 * 8)
@cuda.jit
def dynamic_shared_split_by_an_offset(a, out):
    logits = cuda.shared.array(0, numba.float32)[:32]
    tokens = cuda.shared.array(0, numba.int32)[32:]
    i = cuda.threadIdx.x
    logits[i] = a[i]
    tokens[i] = i
    cuda.syncthreads()
    out[i] = int(logits[31 - i]) + tokens[31 - i] + i


@cuda.jit(device=True)
def of_next_thread(x):
    """x of the next thread of a block of 64."""
    block = cuda.shared.array(64, numba.float32)
    block[cuda.threadIdx.x] = x
    cuda.syncthreads()
    return block[(cuda.threadIdx.x + 1) % 64]


@example(1, 64, one_and_result(64, dtype=np.float32), lambda a, out: {1: np.roll(a, -1) - a})
@cuda.jit
def shared_array_in_a_device_function(a, out):
    t = cuda.threadIdx.x
    out[t] = of_next_thread(a[t]) - a[t]


# Who has written, and what a barrier orders --------------------------------------------------


@example(1, 64, one_and_result(50, 1), lambda a, out: {1: np.array([a.sum()])})
@cuda.jit
def only_what_was_written_is_read(a, out):
    tile = cuda.shared.array(64, numba.int32)
    i = cuda.threadIdx.x
    if i < a.shape[0]:
        tile[i] = a[i]
    cuda.syncthreads()
    if i == 0:
        for j in range(a.shape[0]):
            out[0] += tile[j]


@example(2, 64, one_and_result(128, 2), lambda a, out: {1: a.reshape(2, 64).sum(1)})
@cuda.jit
def tree_reduction(a, out):
    partial = cuda.shared.array(64, numba.int32)
    i = cuda.threadIdx.x
    partial[i] = a[cuda.grid(1)]
    stride = 32
    while stride > 0:
        cuda.syncthreads()
        if i < stride:
            partial[i] += partial[i + stride]
        stride //= 2
    if i == 0:
        out[cuda.blockIdx.x] = partial[0]


@example(3, 64, one_and_result(128), reversed_in_blocks)
@cuda.jit
def whole_blocks_return_or_take_a_branch(a, out):
    tile = cuda.shared.array(64, numba.int32)
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 2:
        return
    tile[i] = a[cuda.grid(1)]
    if cuda.blockIdx.x == 0:
        cuda.syncthreads()
    else:
        cuda.syncthreads()
    out[cuda.grid(1)] = tile[63 - i]


# Exercises as a student writes them ----------------------------------------------------------


def whole(rng, *shape):
    """Floats without a fraction: their sums are exact in any order."""
    return rng.integers(-9, 10, shape).astype(np.float32)


def empty(*shape):
    return np.full(shape, np.nan, np.float32)


SIDE = 4


@example(
    (3, 2),
    (SIDE, SIDE),
    lambda rng: (whole(rng, 7, 6), whole(rng, 6, 10), empty(7, 10)),
    lambda a, b, out: {2: a @ b},
)
@cuda.jit
def puzzle_matrix_product(a, b, out):
    left = cuda.shared.array((SIDE, SIDE), numba.float32)
    right = cuda.shared.array((SIDE, SIDE), numba.float32)
    column, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = numba.float32(0)
    for start in range(0, a.shape[1], SIDE):
        left[y, x] = a[row, start + x] if row < a.shape[0] and start + x < a.shape[1] else 0
        right[y, x] = b[start + y, column] if start + y < b.shape[0] and column < b.shape[1] else 0
        cuda.syncthreads()
        for k in range(SIDE):
            total += left[y, k] * right[k, x]
        cuda.syncthreads()
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = total
