"""Pi from random points in a square, drawn by the generators that come with Numba."""

import numpy as np
from numba import cuda
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32


@cuda.jit
def pi(out, states, num_points):
    thread = cuda.grid(1)
    inside = 0
    for _ in range(num_points):
        x = xoroshiro128p_uniform_float32(states, thread)
        y = xoroshiro128p_uniform_float32(states, thread)
        if x * x + y * y <= 1:
            inside += 1
    out[thread] = 4 * inside / num_points


out = np.zeros(128)
pi[2, 64](out, create_xoroshiro128p_states(128, seed=1), 100)
assert abs(out.mean() - np.pi) < 0.05
assert 0.1 < out.std() < 0.25
