"""The thread block that is done last adds up the sums of all, so that one launch is enough."""

import numpy as np
from numba import cuda, int32, uint32

GRID = 6


@cuda.jit
def total(out, sums, done, a):
    shared = cuda.shared.array(2, int32)  # the block's sum, and whether it is the last
    t = cuda.threadIdx.x
    if t == 0:
        shared[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(shared, 0, a[cuda.grid(1)])
    cuda.syncthreads()
    if t == 0:
        sums[cuda.blockIdx.x] = shared[0]
        cuda.threadfence()
        shared[1] = cuda.atomic.inc(done, 0, uint32(GRID - 1)) == GRID - 1
    cuda.syncthreads()
    if shared[1] and t < GRID:
        cuda.atomic.add(out, 0, sums[t])


a = np.random.default_rng(0).integers(0, 100, GRID * 64, np.int32)
out, done = np.zeros(1, np.int64), np.zeros(1, np.uint32)
total[GRID, 64](out, cuda.device_array(GRID, np.int32), done, a)
assert out[0] == a.sum()
assert done[0] == 0
