"""Running sums of a thread block's numbers, as Hillis and Steele and as Blelloch compute them."""

import numpy as np
from numba import cuda, int32

N = 128


@cuda.jit
def hillis_steele(out, a):
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


@cuda.jit
def blelloch(a):
    t, step = cuda.threadIdx.x, 1  # N // 2 threads
    while step < N:
        right = 2 * step * (t + 1) - 1
        if right < N:
            a[right] += a[right - step]
        step *= 2
        cuda.syncthreads()
    if t == 0:
        a[N - 1] = 0
    while step > 1:
        step //= 2
        cuda.syncthreads()
        right = 2 * step * (t + 1) - 1
        if right < N:
            a[right - step], a[right] = a[right], a[right] + a[right - step]


a = np.random.default_rng(0).integers(0, 100, N, np.int32)
sums, before = np.zeros_like(a), a.copy()
hillis_steele[1, N, 0, 2 * a.nbytes](sums, a)
blelloch[1, N // 2](before)
assert np.array_equal(sums, a.cumsum())
assert np.array_equal(before, a.cumsum() - a)
