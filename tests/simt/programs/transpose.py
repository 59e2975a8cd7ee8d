"""A transposition, tile by tile. One more column in the tile avoids bank conflicts."""

import numpy as np
from numba import cuda, float32

TILE, ROWS = 32, 8
PADDED = TILE, TILE + 1


@cuda.jit
def transpose(out, a):
    tile = cuda.shared.array(PADDED, float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x, y = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
    for k in range(ty, TILE, ROWS):
        if x + tx < a.shape[1] and y + k < a.shape[0]:
            tile[k, tx] = a[y + k, x + tx]
    cuda.syncthreads()
    for k in range(ty, TILE, ROWS):
        if y + tx < a.shape[0] and x + k < a.shape[1]:
            out[x + k, y + tx] = tile[tx, k]


a = np.arange(70 * 40, dtype=np.float32).reshape(70, 40)
out = cuda.device_array((40, 70), np.float32)
transpose[(2, 3), (TILE, ROWS)](out, cuda.to_device(a))
assert np.array_equal(out.copy_to_host(), a.T)
