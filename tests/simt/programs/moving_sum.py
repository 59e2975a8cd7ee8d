"""A sum over each number and its neighbours; the last one has none on its right."""

import numpy as np
from numba import cuda


@cuda.jit("void(float32[::1], float32[::1])")
def moving_sum(out, a):
    i = cuda.grid(1)
    if i < a.size:
        left = a[i - 1] if i > 0 else 0
        out[i] = left + a[i] + a[i + 1]  # FAULT memory


a = np.arange(100, dtype=np.float32)
out = np.zeros_like(a)
moving_sum[2, 64](out, a)
assert np.array_equal(out, np.convolve(a, np.ones(3))[1:-1])
