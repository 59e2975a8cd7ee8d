"""Running sums of a thread block's numbers, as Hillis and Steele compute them."""

import numpy as np
from numba import cuda, int32

N = 128


@cuda.jit
def running_sums(out, a):
    s = cuda.shared.array(0, int32)  # two rows that swap their parts in each step
    t, offset, here = cuda.threadIdx.x, 1, 0
    s[t] = a[t]
    cuda.syncthreads()
    while offset < N:
        there = N - here
        s[there + t] = s[here + t] + (s[here + t - offset] if t >= offset else 0)
        cuda.syncthreads()
        here, offset = there, 2 * offset
    out[t] = s[here + t]


a = np.random.default_rng(0).integers(0, 100, N, np.int32)
sums = np.zeros_like(a)
running_sums[1, N, 0, 2 * a.nbytes](sums, a)
assert np.array_equal(sums, a.cumsum())
