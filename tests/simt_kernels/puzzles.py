"""First exercises in CUDA, as a student writes them: one thread for each number, then blocks."""

import numba
import numpy as np
from numba import cuda

from simt_kernels.example import example


def whole(rng, *shape):
    """Floats without a fraction: their sums are exact in any order."""
    return rng.integers(-9, 10, shape).astype(np.float32)


def empty(*shape):
    return np.full(shape, np.nan, np.float32)


@example(1, 32, lambda rng: (whole(rng, 32), empty(32)), lambda a, out: {1: a + 10})
@cuda.jit
def puzzle_map(a, out):
    i = cuda.threadIdx.x
    out[i] = a[i] + 10


@example(
    1, 32, lambda rng: (whole(rng, 32), whole(rng, 32), empty(32)), lambda a, b, out: {2: a + b}
)
@cuda.jit
def puzzle_zip(a, b, out):
    i = cuda.threadIdx.x
    out[i] = a[i] + b[i]


@example(1, 32, lambda rng: (whole(rng, 29), empty(29), 29), lambda a, out, size: {1: a + 10})
@cuda.jit
def puzzle_guard(a, out, size):
    i = cuda.threadIdx.x
    if i < size:
        out[i] = a[i] + 10


@example(
    1, (8, 8), lambda rng: (whole(rng, 5, 7), empty(5, 7)), lambda a, out: {1: (a + 10) * (a > 0)}
)
@cuda.jit
def puzzle_map_2d(a, out):
    column = cuda.threadIdx.x
    row = cuda.threadIdx.y
    if row < 5 and column < 7:
        out[row, column] = a[row, column] + 10 if a[row, column] > 0 else 0


@example(
    1,
    (8, 4),
    lambda rng: (whole(rng, 3, 1), whole(rng, 1, 6), empty(3, 6)),
    lambda a, b, out: {2: a + b},
)
@cuda.jit
def puzzle_broadcast(a, b, out):
    column = cuda.threadIdx.x
    row = cuda.threadIdx.y
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = a[row, 0] + b[0, column]


@example(3, 8, lambda rng: (whole(rng, 20), empty(20)), lambda a, out: {1: a * 3})
@cuda.jit
def puzzle_blocks(a, out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < len(a):
        out[i] = a[i] * 3


@example((2, 3), (8, 4), lambda rng: (whole(rng, 10, 9), empty(10, 9)), lambda a, out: {1: a - 1})
@cuda.jit
def puzzle_blocks_2d(a, out):
    column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    if row < a.shape[0] and column < a.shape[1]:
        out[row, column] = a[row, column] - 1


@example(
    3,
    8,
    lambda rng: (whole(rng, 20), empty(20)),
    lambda a, out: {1: np.concatenate([a[:8][::-1], a[8:16][::-1], a[16:][::-1]])},
)
@cuda.jit
def puzzle_shared(a, out):
    block = cuda.shared.array(8, numba.float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    in_block = min(8, a.size - cuda.blockIdx.x * 8)
    if i < a.size:
        block[t] = a[i]
    cuda.syncthreads()
    if i < a.size:
        out[i] = block[in_block - 1 - t]


def windows(a, out):
    return {1: np.lib.stride_tricks.sliding_window_view(np.pad(a, (2, 0)), 3).sum(-1)}


@example(1, 48, lambda rng: (whole(rng, 45), empty(45)), windows)
@cuda.jit
def puzzle_pooling(a, out):
    """Each number with its two predecessors."""
    block = cuda.shared.array(48, numba.float32)
    i = cuda.threadIdx.x
    if i < a.size:
        block[i] = a[i]
    cuda.syncthreads()
    if i < a.size:
        total = numba.float32(0)
        for k in range(max(0, i - 2), i + 1):
            total += block[k]
        out[i] = total


@example(
    1,
    64,
    lambda rng: (whole(rng, 50), whole(rng, 50), empty(1)),
    lambda a, b, out: {2: (a * b).sum(keepdims=True)},
)
@cuda.jit
def puzzle_dot_product(a, b, out):
    products = cuda.shared.array(64, numba.float32)
    i = cuda.threadIdx.x
    products[i] = a[i] * b[i] if i < a.size else 0
    cuda.syncthreads()
    half = 32
    while half > 0:
        if i < half:
            products[i] += products[i + half]
        cuda.syncthreads()
        half //= 2
    if i == 0:
        out[0] = products[0]


@example(
    2,
    16,
    lambda rng: (whole(rng, 27), whole(rng, 4), empty(27)),
    lambda a, weights, out: {2: np.correlate(np.pad(a, (0, 3)), weights)},
)
@cuda.jit
def puzzle_convolution(a, weights, out):
    """A window of 4 numbers; a block also loads the first 3 of the next block."""
    block = cuda.shared.array(19, numba.float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    block[t] = a[i] if i < a.size else 0
    if t < 3:
        block[16 + t] = a[i + 16] if i + 16 < a.size else 0
    cuda.syncthreads()
    if i < a.size:
        total = 0.0
        for k in range(weights.size):
            total += block[t + k] * weights[k]
        out[i] = total


@example(
    2,
    32,
    lambda rng: (whole(rng, 59), empty(59)),
    lambda a, out: {1: np.append(a[:32].cumsum(), a[32:].cumsum())},
)
@cuda.jit
def puzzle_prefix_sum(a, out):
    """A sum of each block by itself: read everywhere, then write everywhere."""
    block = cuda.shared.array(32, numba.float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    block[t] = a[i] if i < a.size else 0
    cuda.syncthreads()
    distance = 1
    while distance < 32:
        before = block[t - distance] if t >= distance else numba.float32(0)
        cuda.syncthreads()
        block[t] += before
        cuda.syncthreads()
        distance *= 2
    if i < a.size:
        out[i] = block[t]


@example(
    (1, 4),
    8,
    lambda rng: (whole(rng, 4, 7), empty(4, 1)),
    lambda a, out: {1: a.sum(1, keepdims=True)},
)
@cuda.jit
def puzzle_axis_sum(a, out):
    cache = cuda.shared.array(8, numba.float32)
    t = cuda.threadIdx.x
    row = cuda.blockIdx.y
    cache[t] = a[row, t] if t < a.shape[1] else 0
    for k in range(3):
        cuda.syncthreads()
        step = 2**k
        if t % (2 * step) == 0:
            cache[t] += cache[t + step]
    if t == 0:
        out[row, 0] = cache[0]


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
