"""Names that stand for one thing here and for another there, as Numba allows."""

import numpy as np
from numba import cuda, float32, int64, uint64

from .example import example

N = 50  # not a multiple of the block
BIG = 2**53 + 1  # no float64 holds it
WEYL = 0x9E3779B97F4A7C15  # an unsigned number of 64 bits
MASK64 = 2**64 - 1


def whole_numbers(rng):
    return rng.integers(-99, 99, N) + BIG, np.zeros(N, np.int64)


@example(2, 32, whole_numbers, lambda a, out: {1: a * 3 // 2})
@cuda.jit
def float_becomes_an_integer_in_a_branch(a, out):
    i = cuda.grid(1)
    number = 0.0
    if i < N:
        number = a[i]
        out[i] = number * 3 // 2


@example(2, 32, whole_numbers, lambda a, out: {1: a})
@cuda.jit
def unsigned_becomes_signed_after_a_return(a, out):
    i = cuda.grid(1)
    number = uint64(5)
    if i >= N:
        return
    number = int64(a[i])
    out[i] = number


def floats_and_indices(rng):
    return rng.standard_normal(N), rng.permutation(N), np.zeros(N)


@example(2, 32, floats_and_indices, lambda a, index, out: {2: a[index] + a})
@cuda.jit
def value_becomes_an_index_in_a_branch(a, index, out):
    i = cuda.grid(1)
    if i < N:
        thing = a[i]
        out[i] = thing
        if index[i] >= 0:
            thing = index[i]
            out[i] += a[thing]


@example(1, 64, floats_and_indices, lambda a, index, out: {0: a * 4, 2: a * 8})
@cuda.jit
def buffers_change_places_after_a_return(a, index, out):
    i = cuda.grid(1)
    if i >= N:
        return
    source, target = a, out
    for _ in range(3):
        target[i] = source[i] * 2
        source, target = target, source


@example(1, 64, lambda rng: (np.zeros(N, np.int64),), lambda out: {0: np.full(N, 6)})
@cuda.jit
def tuple_grows_after_a_return(out):
    i = cuda.grid(1)
    parts = (0, 0)
    if i >= N:
        return
    parts = (1, 2, 3)
    out[i] = parts[0] + parts[1] + parts[2]


@example(
    1,
    64,
    lambda rng: (rng.integers(0, 9, N), np.zeros(64, np.int64)),
    lambda a, out: {1: np.r_[a > 4, np.zeros(64 - N)]},
)
@cuda.jit
def chain_of_comparisons_reads_no_further(a, out):
    i = cuda.grid(1)
    if -1 < N - 1 - i < N and a[i] > 4:
        out[i] = 1
    if i < N > a[i]:
        out[i] += 0


def splitmix(_, out):
    state = (np.arange(N, dtype=object) * WEYL) & MASK64
    mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    return {1: (mixed ^ (mixed >> 27)).astype(np.uint64)}


@example(1, 64, lambda rng: (MASK64, np.zeros(N, np.uint64)), splitmix)
@cuda.jit
def hash_of_unsigned_64_bits(mask, out):
    i = cuda.grid(1)
    if i < N:
        state = uint64(i) * uint64(WEYL)
        mixed = (state ^ (state >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
        out[i] = (mixed ^ (mixed >> uint64(27))) & uint64(mask)


@example(
    1,
    32,
    lambda rng: (rng.standard_normal((32, 4), dtype=np.float32), np.zeros(32, np.float32)),
    lambda a, out: {1: a[::-1, 3]},
)
@cuda.jit
def shapes_of_constants_in_the_kernel(a, out):
    LANES = 32
    row = cuda.local.array(64 // 32 * 2, float32)
    tile = cuda.shared.array(LANES, dtype="float32")
    t = cuda.threadIdx.x
    for j in range(4):
        row[j] = a[t, j]
    tile[t] = row[3]
    cuda.syncthreads()
    out[t] = tile[LANES - 1 - t]


@example(
    1,
    64,
    lambda rng: (rng.standard_normal((3, N)), np.zeros(64)),
    lambda a, out: {1: np.r_[np.where(np.arange(N) % 3 == 1, a[2], a[0]), a[0, : 64 - N]]},
)
@cuda.jit
def row_and_its_length_chosen_in_a_branch(a, out):
    t = cuda.threadIdx.x
    row = a[0]
    if t % 3 == 1 and t < N:
        row = a[2]
    out[t] = row[t % N]


@example(
    1,
    32,
    lambda rng: (np.arange(32), np.zeros(32, np.int64)),
    lambda a, out: {1: np.array([a[:n].sum() for n in range(32)])},
)
@cuda.jit
def slice_of_another_length_in_each_lane(a, out):
    t = cuda.threadIdx.x
    head = a[:0]
    if t > 0:
        head = a[:t]
    for i in range(head.size):
        out[t] += head[i]


@example(
    1,
    8,
    lambda rng: (np.arange(8), np.zeros(8, np.int64)),
    lambda a, out: {1: np.array([5, 6, 7, 3, 5, 2, 0, 8])},
)
@cuda.jit
def slices_are_cut_as_in_python(a, out):
    t = cuda.threadIdx.x
    tail, middle, beyond = a[-3:], a[-5:-2], a[2:99]
    if t < 3:
        out[t] = tail[t]
    elif t < 5:
        out[t] = middle[2 * (t - 3)]
    elif t == 5:
        out[t] = beyond[0]
    elif t == 6:
        out[t] = a[5:2].size
    else:
        out[t] = beyond.size + len(tail) - 1
