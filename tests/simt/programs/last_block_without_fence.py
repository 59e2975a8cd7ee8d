"""As last_block.py, but a block's sum may arrive after its count. (Its threads are its blocks.)"""

import numpy as np
from numba import cuda

GRID = 8


@cuda.jit
def total(out, sums, done, a):
    block = cuda.blockIdx.x
    sums[block] = a[block, 0] + a[block, 1]
    if cuda.atomic.add(done, 0, 1) == GRID - 1:
        for other in range(GRID):
            out[0] += sums[other]  # FAULT race


a = np.arange(2 * GRID).reshape(GRID, 2)
out = np.zeros(1, np.int64)
total[GRID, 1](out, np.zeros(GRID, np.int64), np.zeros(1, np.int32), a)
assert out[0] == a.sum()
