"""The product of two matrices of any shape, tile by tile."""

import numpy as np
from numba import cuda, float32

TILE = 8


@cuda.jit
def multiply(c, a, b):
    rows = cuda.shared.array((TILE, TILE), float32)
    columns = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    i, j = cuda.grid(2)
    total = float32(0)
    for start in range(0, a.shape[1], TILE):
        rows[x, y] = columns[x, y] = 0
        if i < a.shape[0] and start + y < a.shape[1]:
            rows[x, y] = a[i, start + y]
        if start + x < b.shape[0] and j < b.shape[1]:
            columns[x, y] = b[start + x, j]
        cuda.syncthreads()
        for k in range(TILE):
            total += rows[x, k] * columns[k, y]
        cuda.syncthreads()
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = total


rng = np.random.default_rng(0)
a, b = rng.random((21, 13), np.float32), rng.random((13, 10), np.float32)
c = cuda.device_array((21, 10), np.float32)
multiply[(3, 2), (TILE, TILE)](c, cuda.to_device(a), cuda.to_device(b))
assert np.allclose(c.copy_to_host(), a @ b, rtol=1e-5)
