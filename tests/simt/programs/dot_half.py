"""A dot product in float16: sums in float32 of each thread, then its warp, then all."""

import numpy as np
from numba import cuda, float32


@cuda.jit
def dot(out, a, b):
    total = float32(0)
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        total += float32(a[i] * b[i])  # a product is rounded to float16
    offset = 16
    while offset > 0:
        total += cuda.shfl_down_sync(0xFFFFFFFF, total, offset)
        offset >>= 1
    if cuda.laneid == 0:
        cuda.atomic.add(out, 0, total)


a, b = np.random.default_rng(0).random((2, 1000)).astype(np.float16)
out = cuda.to_device(np.zeros(1, np.float32))
dot[4, 64](out, cuda.to_device(a), cuda.to_device(b))
assert np.isclose(out[0], (a * b).astype(np.float64).sum(), rtol=2e-6)
