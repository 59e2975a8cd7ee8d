"""Pascal's triangle, row by row. All thread blocks wait until a row is complete."""

import math

import numpy as np
from numba import cuda


@cuda.jit("void(int64[:, ::1])")
def triangle(rows):
    column = cuda.grid(1)
    grid = cuda.cg.this_grid()
    for i in range(1, len(rows)):
        if column > 0:
            rows[i, column] = rows[i - 1, column - 1] + rows[i - 1, column]
        grid.sync()


rows = np.zeros((20, 48), np.int64)
rows[:, 0] = 1
triangle[3, 16](rows)
assert rows.tolist() == [[math.comb(i, k) for k in range(48)] for i in range(20)]
