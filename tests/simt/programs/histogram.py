"""A histogram, with counts for each warp in shared memory that come together at the end."""

import numpy as np
from numba import cuda, int32

WARPS, BINS = 4, 16


@cuda.jit
def histogram(counts, numbers):
    mine = cuda.shared.array((WARPS, BINS), int32)
    t = cuda.threadIdx.x
    if t < WARPS * BINS:
        mine[t // BINS, t % BINS] = 0
    cuda.syncthreads()
    start, stride = cuda.grid(1), cuda.gridsize(1)
    for i in range(start, numbers.size, stride):
        cuda.atomic.add(mine, (t // 32, int(numbers[i] * BINS)), 1)
    cuda.syncthreads()
    if t < BINS:
        for warp in range(WARPS):
            cuda.atomic.add(counts, t, mine[warp, t])


numbers = np.random.default_rng(0).random(1500)
counts = np.zeros(BINS, np.int32)
histogram[3, WARPS * 32](counts, numbers)
assert np.array_equal(counts, np.histogram(numbers, BINS, (0, 1))[0])
