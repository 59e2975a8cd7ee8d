"""Functions of numbers that apply to arrays."""

import math

import numpy as np
from numba import cuda, vectorize


@vectorize(["float32(float32, float32)"], target="cuda")
def distance(x, y):
    return math.sqrt(x * x + y * y)


x, y = np.random.default_rng(0).random((2, 300), np.float32)
assert np.allclose(distance(x, y), np.hypot(x, y), rtol=1e-6)
there = distance(cuda.to_device(x), cuda.to_device(y))
assert np.allclose(there.copy_to_host(), np.hypot(x, y), rtol=1e-6)
