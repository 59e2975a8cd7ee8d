"""A histogram whose counts in shared memory begin with whatever was there before."""

import numpy as np
from numba import cuda, int32

BINS = 8


@cuda.jit
def histogram(counts, letters):
    here = cuda.shared.array(BINS, int32)
    t = cuda.threadIdx.x
    cuda.atomic.add(here, letters[cuda.grid(1)] % BINS, 1)  # FAULT init
    cuda.syncthreads()
    if t < BINS:
        cuda.atomic.add(counts, t, here[t])


letters = np.frombuffer(b"whatever was there before is counted, too, somewhere." * 4, np.uint8)
counts = np.zeros(BINS, np.int32)
histogram[4, letters.size // 4](counts, letters)
assert np.array_equal(counts, np.bincount(letters % BINS, minlength=BINS))
