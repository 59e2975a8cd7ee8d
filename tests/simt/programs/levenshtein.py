"""The edit distance of two words: a thread for each row of the table, diagonal by diagonal."""

import numpy as np
from numba import cuda


@cuda.jit
def fill(table, a, b):
    row = cuda.threadIdx.x
    for diagonal in range(a.size + b.size + 1):
        column = diagonal - row
        if 0 <= column <= b.size:
            if row == 0 or column == 0:
                table[row, column] = diagonal
            else:
                change = table[row - 1, column - 1] + (a[row - 1] != b[column - 1])
                gap = min(table[row - 1, column], table[row, column - 1]) + 1
                table[row, column] = min(change, gap)
        cuda.syncthreads()


a, b = (np.frombuffer(word, np.uint8) for word in (b"intention", b"execution"))
table = np.zeros((10, 10), np.int32)
fill[1, 10](table, a, b)
assert table[-1].tolist() == [9, 8, 8, 8, 8, 8, 8, 7, 6, 5]
