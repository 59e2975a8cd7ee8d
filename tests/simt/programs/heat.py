"""Heat spreads over a plate. Shared memory has a tile, and a border of its neighbours."""

import numpy as np
from numba import cuda, float32

TILE = 8
WITH_BORDER = TILE + 2, TILE + 2


@cuda.jit
def spread(after, before, rate):
    tile = cuda.shared.array(WITH_BORDER, float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for i in range(tx, TILE + 2, TILE):
        for j in range(ty, TILE + 2, TILE):
            row, column = cuda.blockIdx.x * TILE + i - 1, cuda.blockIdx.y * TILE + j - 1
            inside = 0 <= row < before.shape[0] and 0 <= column < before.shape[1]
            tile[i, j] = before[row, column] if inside else 0
    cuda.syncthreads()
    x, y = cuda.grid(2)
    if x < before.shape[0] and y < before.shape[1]:
        around = tile[tx, ty + 1] + tile[tx + 2, ty + 1] + tile[tx + 1, ty] + tile[tx + 1, ty + 2]
        after[x, y] = tile[tx + 1, ty + 1] * (1 - 4 * rate) + rate * around


plate = np.random.default_rng(0).random((20, 13), np.float32)
before, after = cuda.to_device(plate), cuda.device_array_like(plate)
for _ in range(4):
    spread[(3, 2), (TILE, TILE)](after, before, np.float32(0.2))
    before, after = after, before
    wide = np.pad(plate, 1)
    around = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
    plate = plate / 5 + around / 5
assert np.allclose(before.copy_to_host(), plate, rtol=1e-5)
