"""A lock, for which one thread of each thread block waits."""

import numpy as np
from numba import cuda


@cuda.jit
def largest(best, lock, values):
    if cuda.threadIdx.x == 0:
        place = cuda.blockIdx.x
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        if values[place] > best[0]:
            best[0], best[1] = values[place], place
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


values = np.random.default_rng(0).random(10)
best = np.array([-1.0, -1.0])
largest[10, 32](best, np.zeros(1, np.int32), values)
assert best.tolist() == [values.max(), values.argmax()]
