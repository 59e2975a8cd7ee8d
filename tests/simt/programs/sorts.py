"""Two networks that sort: bitonic, a launch for each step, and odd-even, in shared memory."""

import numpy as np
from numba import cuda, float32

N = 64


@cuda.jit
def bitonic_step(a, distance, size):
    i = cuda.grid(1)
    other = i ^ distance
    if other > i and (a[i] > a[other]) == (i & size == 0):
        a[i], a[other] = a[other], a[i]


@cuda.jit
def odd_even(a):
    s = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x  # N // 2 threads
    s[t], s[t + N // 2] = a[t], a[t + N // 2]
    for turn in range(N):
        cuda.syncthreads()
        left = 2 * t + turn % 2
        if left + 1 < N and s[left] > s[left + 1]:
            s[left], s[left + 1] = s[left + 1], s[left]
    cuda.syncthreads()
    a[t], a[t + N // 2] = s[t], s[t + N // 2]


numbers = np.random.default_rng(0).random(N, np.float32)
a = cuda.to_device(numbers)
b = cuda.to_device(np.sort(numbers)[::-1].copy())  # takes most turns
for k in range(1, 7):
    for distance in reversed(range(k)):
        bitonic_step[2, N // 2](a, 1 << distance, 1 << k)
odd_even[1, N // 2](b)
assert np.array_equal(a, np.sort(numbers))
assert np.array_equal(b, np.sort(numbers))
