"""Forces between bodies, a tile at a time, which is overwritten while others still read it."""

import math

import numpy as np
from numba import cuda, float32


@cuda.jit
def forces(out, x):
    tile = cuda.shared.array(64, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    mine, total = x[i], float32(0)
    for start in range(0, x.size, 64):
        tile[t] = x[start + t]  # FAULT race
        cuda.syncthreads()
        for k in range(64):
            apart = tile[k] - mine
            total += apart / math.sqrt(apart * apart + float32(0.01)) ** 3
    out[i] = total


x = np.random.default_rng(0).random(128, np.float32)
out = np.zeros_like(x)
forces[2, 64](out, x)
apart = np.subtract.outer(x, x)
assert np.allclose(out, -(apart / (apart**2 + 0.01) ** 1.5).sum(1), rtol=1e-3, atol=1e-2)
