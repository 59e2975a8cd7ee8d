"""A stable radix sort, two bits at a time: each thread counts what goes before its own number."""

import numpy as np
from numba import cuda, uint32


@cuda.jit
def sort(keys):
    digits = cuda.shared.array(128, uint32)
    t, shift = cuda.threadIdx.x, uint32(0)
    while shift < 8:
        key = keys[t]
        digits[t] = (key >> shift) & 3
        cuda.syncthreads()
        place = 0
        for k in range(cuda.blockDim.x):
            place += digits[k] < digits[t] or (digits[k] == digits[t] and k < t)
        keys[place] = key
        cuda.syncthreads()
        shift += 2


numbers = np.random.default_rng(0).integers(0, 256, 128, np.uint32)
keys = numbers.copy()
sort[1, 128](keys)
assert np.array_equal(keys, np.sort(numbers))
