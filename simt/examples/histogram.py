"""A histogram as somebody might write it who has a GPU: nothing here knows the simulator.

    python -m simt simt/examples/histogram.py --bins 16

One line is wrong. On a GPU the counts are usually a little too small.
"""

import argparse

import numpy as np
from numba import cuda, int32

BLOCK = 128
MOST_BINS = 256


@cuda.jit
def histogram(counts, numbers, low, high):
    local = cuda.shared.array(MOST_BINS, int32)
    t = cuda.threadIdx.x
    for b in range(t, counts.size, BLOCK):
        local[b] = 0
    cuda.syncthreads()

    for i in range(cuda.grid(1), numbers.size, cuda.gridsize(1)):
        b = int(counts.size * (numbers[i] - low) / (high - low))
        if 0 <= b < counts.size:
            local[b] += 1
    cuda.syncthreads()

    for b in range(t, counts.size, BLOCK):
        cuda.atomic.add(counts, b, local[b])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bins", type=int, default=32)
    bins = parser.parse_args().bins
    numbers = np.random.default_rng(0).normal(size=2_000).astype(np.float32)
    stream = cuda.stream()
    counts = cuda.to_device(np.zeros(bins, np.int32), stream=stream)
    histogram[4, BLOCK, stream](counts, cuda.to_device(numbers, stream=stream), -4.0, 4.0)
    stream.synchronize()
    print("counted", counts.copy_to_host().sum(), "of", len(numbers))


if __name__ == "__main__":
    main()
