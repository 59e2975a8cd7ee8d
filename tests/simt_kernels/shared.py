"""Shared memory: static and dynamic, two arrays, two types in one buffer, slices, padding."""

import numba
import numpy as np
from numba import cuda

from simt_kernels.example import example
from simt_kernels.memory import numbers, unwritten


@example(
    2,
    64,
    lambda rng: (numbers(rng, 128), unwritten(128)),
    lambda a, out: {1: a.reshape(2, 64)[:, ::-1].ravel()},
)
@cuda.jit
def static_shared_array_of_each_block(a, out):
    i = cuda.grid(1)
    t = cuda.threadIdx.x
    block = cuda.shared.array(64, numba.int32)
    block[t] = a[i]
    cuda.syncthreads()
    out[i] = block[63 - t]


TILE = 8
PADDED = TILE + 1


@example(
    (2, 2),
    (TILE, TILE),
    lambda rng: (numbers(rng, 13, 11), unwritten(11, 13)),
    lambda a, out: {1: a.T},
)
@cuda.jit
def transpose_through_a_padded_tile(a, out):
    tile = cuda.shared.array((TILE, PADDED), np.int32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    left, top = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
    if top + y < a.shape[0] and left + x < a.shape[1]:
        tile[y, x] = a[top + y, left + x]
    cuda.syncthreads()
    if left + y < out.shape[0] and top + x < out.shape[1]:
        out[left + y, top + x] = tile[x, y]


@example(
    1,
    32,
    lambda rng: (numbers(rng, 32), rng.standard_normal(32), np.zeros(32)),
    lambda a, b, out: {2: a[::-1] * np.roll(b, -1)},
)
@cuda.jit
def two_static_shared_arrays(a, b, out):
    t = cuda.threadIdx.x
    integers = cuda.shared.array(32, numba.int32)
    floats = cuda.shared.array(32, numba.float64)
    integers[t] = a[t]
    floats[t] = b[t]
    cuda.syncthreads()
    out[t] = integers[31 - t] * floats[(t + 1) % 32]


@example(
    1,
    64,
    lambda rng: (rng.standard_normal(64, np.float32), unwritten(64)),
    lambda a, out: {1: a[::-1].copy().view(np.int32)},
    shared_bytes=64 * 4,
)
@cuda.jit
def dynamic_shared_arrays_are_the_same_bytes(a, out):
    t = cuda.threadIdx.x
    floats = cuda.shared.array(0, np.float32)
    integers = cuda.shared.array(0, np.int32)
    floats[t] = a[t]
    cuda.syncthreads()
    out[t] = integers[63 - t]


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


def make_halves(LEFT, RIGHT):
    @cuda.jit
    def dynamic_shared_array_cut_in_two(a, out):
        t = cuda.threadIdx.x
        both = cuda.shared.array(0, numba.int32)
        left = both[:LEFT]
        right = both[LEFT : LEFT + RIGHT]
        if t < LEFT:
            left[t] = a[t]
        else:
            right[t - LEFT] = 2 * a[t]
        cuda.syncthreads()
        out[t] = left[t % LEFT] + right[t % RIGHT]

    return dynamic_shared_array_cut_in_two


example(
    1,
    32,
    lambda rng: (numbers(rng, 32), unwritten(32)),
    lambda a, out: {1: np.resize(a[:12], 32) + 2 * np.resize(a[12:], 32)},
    shared_bytes=32 * 4,
)(make_halves(12, 20))


@cuda.jit(device=True)
def of_next_thread(x):
    """x of the next thread of a block of 64."""
    block = cuda.shared.array(64, numba.float32)
    block[cuda.threadIdx.x] = x
    cuda.syncthreads()
    return block[(cuda.threadIdx.x + 1) % 64]


@example(
    1,
    64,
    lambda rng: (rng.standard_normal(64, np.float32), np.zeros(64, np.float32)),
    lambda a, out: {1: np.roll(a, -1) - a},
)
@cuda.jit
def shared_array_in_a_device_function(a, out):
    t = cuda.threadIdx.x
    out[t] = of_next_thread(a[t]) - a[t]
