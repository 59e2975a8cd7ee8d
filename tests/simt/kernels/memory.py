"""Arrays: rows and slices; scalars."""

import numpy as np
from numba import cuda

from tests.simt.kernels.example import example, one_and_result


def numbers(rng, *shape):
    return rng.integers(-99, 99, shape, np.int32)


def unwritten(*shape):
    return np.full(shape, 99, np.int32)


@example(
    1,
    32,
    lambda rng: (rng.standard_normal(32, np.float32), np.float32(0.1), 3, 0.1, np.zeros((2, 32))),
    lambda a, single, count, double, out: {
        0: a + np.float32(3),
        4: np.stack([(a * single).astype(np.float64), a.astype(np.float64) * double]),
    },
)
@cuda.jit
def scalars_keep_their_types(a, single, count, double, out):
    i = cuda.grid(1)
    out[0, i] = a[i] * single
    out[1, i] = a[i] * double
    a[i] += count


@example(2, 32, lambda rng: (np.zeros(64, np.int8),), lambda out: {0: np.arange(64) * 2})
@cuda.jit
def neighbouring_bytes_written_twice_by_their_owner(out):
    i = cuda.grid(1)
    out[i] = i
    out[i] += i


# Rows and slices -----------------------------------------------------------------------------


@cuda.jit(device=True)
def sum_of(array):
    total = 0
    for k in range(array.size):
        total += array[k]
    return total


def sums_of_parts(a, out):
    parts = a[:, :3], a[:, 1:-1], a.T, a[:, 2:99], a[:, 5:2]
    return {1: np.stack([part.sum(1) for part in parts], 1)}


@example(1, 8, lambda rng: (numbers(rng, 8, 8), unwritten(8, 5)), sums_of_parts)
@cuda.jit
def slices_are_views_cut_as_in_python(a, out):
    i = cuda.threadIdx.x
    row = a[i]
    out[i, 0] = sum_of(a[i, :3])
    out[i, 1] = sum_of(row[1:-1])
    out[i, 2] = sum_of(a[:, i])
    out[i, 3] = sum_of(row[2:99])
    out[i, 4] = sum_of(row[5:2])


def in_parts(a, out):
    out = np.zeros((2, 8))
    out[0, 2:5], out[1, 1::3] = (1, 2, 3), 5
    return {1: out}


@example(1, 2, one_and_result(2, (2, 8)), in_parts)
@cuda.jit
def tuples_are_stored_in_slices(a, out):
    i = cuda.threadIdx.x
    out[i] = 0
    if i == 0:
        out[i, 2:5] = (1, 2, 3)
    else:
        out[i][1::3] = 5, 5, 5


def of_each_lane(a, out):
    t = np.arange(32)
    return {1: a[np.where(t % 3 == 1, 2, 0), t] + np.array([a[0, :n].sum() for n in t])}


@example(1, 32, one_and_result((3, 32), 32), of_each_lane)
@cuda.jit
def row_and_length_of_each_lane(a, out):
    t = cuda.threadIdx.x
    row = a[0]
    head = row[:0]
    if t > 0:
        head = row[:t]
    if t % 3 == 1:
        row = a[2]
    out[t] = row[t]
    for i in range(head.size):
        out[t] += head[i]
