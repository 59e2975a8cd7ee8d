"""A histogram in global memory, but threads that meet at a bin lose counts."""

import numpy as np
from numba import cuda


@cuda.jit
def histogram(counts, numbers):
    i = cuda.grid(1)
    if i < numbers.size:
        counts[numbers[i]] += 1  # FAULT race


numbers = np.random.default_rng(0).integers(0, 10, 1000)
counts = np.zeros(10, np.int64)
histogram.forall(numbers.size)(counts, numbers)
assert np.array_equal(counts, np.bincount(numbers))
