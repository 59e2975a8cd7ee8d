"""Linear interpolation between sorted points, which are found by halving."""

import numpy as np
from numba import cuda


@cuda.jit(device=True, inline=True)
def last_at_most(xs, x):
    low, high = 0, len(xs) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if xs[middle] <= x else (low, middle)
    return low


@cuda.jit(fastmath=True)
def interpolate(out, at, xs, ys):
    i = cuda.grid(1)
    if i < at.size:
        k = last_at_most(xs, at[i])
        share = (at[i] - xs[k]) / (xs[k + 1] - xs[k])
        out[i] = (1 - share) * ys[k] + share * ys[k + 1]


rng = np.random.default_rng(0)
xs, ys = np.sort(rng.random(30)), rng.random(30)
at = rng.uniform(xs[0], xs[-1], 200)
out = np.zeros_like(at)
interpolate.forall(at.size)(out, at, xs, ys)
assert np.allclose(out, np.interp(at, xs, ys))
