"""Branches and loops, grids, and names that stand for one thing here and another there.

Random kernels (tests/simt/simt_programs.py) try divergence; here is what they do not write.
"""

import numpy as np
from numba import cuda

from tests.simt.kernels.example import example

N = 100  # two blocks of 64 threads, the second one not full


def each(answer):
    """An example on an array of N numbers; answer makes one number of each of them."""

    def arguments(rng):
        return rng.integers(-50, 50, N, np.int32), np.zeros(N, np.int32)

    return example(2, 64, arguments, lambda a, out: {1: [answer(x) for x in a.tolist()]})


@each(lambda x: next((d for d in range(2, 12) if x % d == 0), 50))
@cuda.jit
def break_leaves_the_inner_loop_only(a, out):
    i = cuda.grid(1)
    if i < N:
        smallest = 0
        for sign in range(-1, 2, 2):
            for divisor in range(2, 12):
                if (sign * a[i]) % divisor == 0:
                    smallest += divisor
                    break
            else:
                smallest += 50
        out[i] = smallest // 2


@each(lambda x: (x > 0) + 2 * (x > 5) + 4 * (-20 <= x < 9))
@cuda.jit
def conditions_read_no_further(a, out):
    """Threads from N on would read outside of a."""
    i = cuda.grid(1)
    total = 1 if i < N and a[i] > 0 else 0
    if not (i >= N or a[i] <= 5):
        total += 2
    if -1 < N - 1 - i < N and i < N > a[i] * 0 and -20 <= a[i] < 9:
        total += 4
    if i < N:
        out[i] = total


# Grids ---------------------------------------------------------------------------------------


def places_and_sizes(out):
    """Thread and block of each element of out, whose axes are z, y and x; then what all have."""
    z, y, x = np.indices(out.shape[:3])
    places = np.stack([x % 4, y % 2, z % 4, x // 4, y // 2, z // 4], -1)
    sizes = np.broadcast_to([4, 2, 4, 2, 2, 1, 8, 4, 32], (*x.shape, 9))
    lanes = (x % 4 + 4 * (y % 2) + 8 * (z % 4))[..., None]
    return {0: np.concatenate([places, sizes, lanes], -1)}


@example((2, 2, 1), (4, 2, 4), lambda rng: (np.full((4, 4, 8, 16), 99),), places_and_sizes)
@cuda.jit
def grid_of_three_dimensions(out):
    x, y, z = cuda.grid(3)
    width, height = cuda.gridsize(2)
    mine = out[z, y, x]
    mine[0], mine[1], mine[2] = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    mine[3], mine[4], mine[5] = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    mine[6], mine[7], mine[8] = cuda.blockDim.x, cuda.blockDim.y, cuda.blockDim.z
    mine[9], mine[10], mine[11] = cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z
    mine[12], mine[13], mine[14], mine[15] = width, height, cuda.warpsize, cuda.laneid


# Names, as Numba allows ----------------------------------------------------------------------

BIG = 2**53 + 1  # no float64 holds it


def big(rng):
    return rng.integers(-99, 99, N) + BIG, np.zeros(N, np.int64)


@example(2, 64, big, lambda a, out: {1: a * 3 // 2 + 5})
@cuda.jit
def variables_of_one_branch_and_of_two_types(a, out):
    i = cuda.grid(1)
    number = 0.0
    if i < N:
        number = a[i]
        out[i] = number * 3 // 2
        more = 5
    if i < N:
        out[i] += more


@example(1, 128, lambda rng: (rng.standard_normal(N), np.zeros(N)), lambda a, out: {1: a * 8 + 6})
@cuda.jit
def names_change_places_and_kinds_after_a_return(a, out):
    i = cuda.grid(1)
    parts = (0, 0)
    if i >= N:
        return
    source, target = a, out
    for _ in range(3):
        target[i] = source[i] * 2
        source, target = target, source
    parts = (1, 2, 3)
    out[i] += parts[0] + parts[1] + parts[2]
