"""A sparse matrix, stored by rows (CSR), times a vector: a warp for each row."""

import numpy as np
from numba import cuda, float32


@cuda.jit
def multiply(out, starts, columns, values, x):
    row, lane = cuda.grid(1) // 32, cuda.laneid
    if row >= out.size:
        return
    total = float32(0)
    for k in range(starts[row] + lane, starts[row + 1], 32):
        total += values[k] * x[columns[k]]
    for k in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, k)
    if lane == 0:
        out[row] = total


rng = np.random.default_rng(0)
dense = rng.random((13, 90), np.float32) * (rng.random((13, 90)) < 0.5)
dense[5] = 0
rows, columns = map(np.ascontiguousarray, np.nonzero(dense))
starts = np.searchsorted(rows, np.arange(14))
x, out = rng.random(90, np.float32), np.full(13, np.nan, np.float32)
multiply[4, 128](out, starts, columns, dense[rows, columns], x)
assert np.allclose(out, dense @ x, rtol=1e-5)
