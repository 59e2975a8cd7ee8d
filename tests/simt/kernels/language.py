"""Language that others' kernels use: loops over arrays, tuples, methods."""

from collections import namedtuple

import numpy as np
from numba import cuda, int32

from tests.simt.kernels.example import example, fault, one_and_result

SIZES = (2, 3)
WEIGHTS = np.array([[3, 1, 4], [1, 5, 9]], np.int32)


def numbers_and_none(rng):
    return *one_and_result((8, 3), 6)(rng), None


def looped(points, out, missing):
    weighted = sum(i * (points[2 * i - 9] @ WEIGHTS[i - 5]) for i in (5, 6))
    inner = (points[:, :2] % 3 != 1).sum()
    return {1: [points.sum(axis=1).min(), inner, weighted, 83, 7, 0]}


@example(1, 32, numbers_and_none, looped)
@cuda.jit
def loops_over_arrays_and_tuples(points, out, missing):
    rows, columns = points.shape[-2:][::-1][:2][::-1]
    if (cuda.laneid + 1) % cuda.warpsize == 0:
        lowest = float("inf")
        for x, y, z in points:
            lowest = min(lowest, x + y + z)
            for number in (x, y):
                if number % 3 in [0, 2] and number not in [-1, -2]:
                    out[1] += 1
        out[0] = points.dtype.type(lowest)
        for i, (row, weights) in enumerate(zip(points[1::2], WEIGHTS), 5):  # noqa: B905
            for x, weight in zip(row, weights):  # noqa: B905
                out[2] += i * x * weight
        for step in [10, 1]:
            out[3] += step * (rows if step == 10 else columns)
        for x in points[::-3, 1]:
            if x in (10, 11):
                break
        else:
            out[4] = 7
        assert out[4] == 7
        if missing is not None or not (rows, columns) or ():
            out[5] = 2


@cuda.jit(device=True)
def changed_by(change, counts, value):
    change(counts, 0, value)


@example(2, 32, lambda rng: (np.full(1, 1000, np.int32),), lambda counts: {0: [1000 - 2 * 496]})
@cuda.jit
def an_atomic_operation_as_argument(counts):
    changed_by(cuda.atomic.sub, counts, cuda.threadIdx.x)


# Functions inside a kernel -----------------------------------------------------------------------


def inside(a, out):
    i = np.arange(128)
    t = i % 64
    turned = a.reshape(2, 64)[:, ::-1].ravel() // 2 + (10 * i).astype(np.int8)
    return {1: [i + 5 + 2, np.where(t > 9, i * 100, t + 1), turned]}


@example(2, 64, one_and_result(128, (3, 128)), inside)
@cuda.jit
def functions_inside(a, out):
    t, i = cuda.threadIdx.x, cuda.grid(1)
    n = 3
    last = -1
    sizes = SIZES
    kind = np.int8

    def plus(x, y=2):
        return x + n + y

    n = 5
    out[0, i] = plus(i)
    n = t + 1
    times = lambda x: x * n  # noqa: E731
    if t > 9:
        n = 100
        out[1, i] = times(i)
    else:
        out[1, i] = times(1)

    def neighbour(x):
        tile, own = cuda.shared.array(64, int32), cuda.local.array(sizes, a.dtype)
        tile[t] = x
        cuda.syncthreads()
        own[1, last] = tile[63 - t] / 2
        return own[1, 2] + kind(10 * i)

    never_called = lambda j: last + SIZES + j  # noqa: E731, F841
    out[2, i] = neighbour(a[i])


@fault(1, 64, one_and_result(64), "init")
@cuda.jit
def around_it_not_all_have_assigned(a, out):
    t = cuda.threadIdx.x
    if t > 3:
        n = 3

    def plus(x):
        return x + n  # FAULT

    out[t] = plus(a[t])


# Tuples ------------------------------------------------------------------------------------------

Line = namedtuple("Line", "slope offset points")
UNIT = Line(1.0, 0.0, 2)


def arrays_in_tuples(rng):
    a, b = rng.integers(0, 10, (2, 64)).astype(np.float32)
    return Line(2.0, np.float32(0.5), 5), (a, (b, 3)), np.zeros((64, 4), np.float32)


def on_a_line(line, arrays, out):
    a, (b, n) = arrays
    odd, one = np.arange(64) % 2 == 1, np.ones(64)
    found = [2 * a + 0.5 + n, np.where(odd, 5 * one, a + 1), np.where(odd, b, 2), 7 * one]
    return {2: np.stack(found, axis=1)}


@example(2, 32, arrays_in_tuples, on_a_line)
@cuda.jit
def named_tuples_and_vectors(line, arrays, out):
    i = cuda.grid(1)
    a, more = arrays
    more[0][i] += 1
    vector = cuda.float4(0, cuda.float32x2(a[i] + 1, UNIT.points), 7)
    other = cuda.float32x4(cuda.float3(1.5, line.points, more[0][i] - 1), UNIT.slope)
    chosen = other if i % 2 else vector
    out[i, 0] = line.slope * a[i] + line.offset + more[1] + UNIT.offset + len(line) - 3
    out[i, 1], out[i, 2], out[i, 3] = chosen.y, chosen.z, vector.w


# Methods -----------------------------------------------------------------------------------------


def bytes_and_shorts(rng):
    return rng.integers(0, 256, 64, np.uint8), np.arange(64, dtype=np.int16), np.zeros((4, 64))


def as_numpy_has_them(data, shorts, out):
    i = np.arange(64)
    halves = shorts.reshape(4, 2, 8)
    return {2: [data.view(np.uint32)[i // 4], halves[i // 32, 1, i % 8], i % 6, shorts]}


@example(2, 32, bytes_and_shorts, as_numpy_has_them)
@cuda.jit
def other_shapes_and_types(data, shorts, out):
    i = cuda.grid(1)
    out[0, i] = data[16:].view(np.uint32)[i // 4 - 4] if i > 15 else data.view(np.uint32)[i // 4]
    cube = shorts.reshape((4, -1, 8))
    out[1, i] = cube.reshape(8, 8)[2 * (i // 32) + 1, i % 8]
    tile = cuda.shared.array((4, 8), int32)
    tile.reshape(32)[cuda.threadIdx.x] = i
    cuda.syncthreads()
    out[2, i] = tile[cuda.threadIdx.x // 8, i % 8] % 6
    pair = shorts[2 * (i // 2) :]
    out[3, i] = pair[:2].view(np.int32)[0] >> 16 * (i % 2) & 0xFFFF


@fault(1, 32, bytes_and_shorts, "race")
@cuda.jit
def race_through_a_view(data, shorts, out):
    t = cuda.threadIdx.x
    data[t] = 1  # FIRST
    out[0, t] = data.view(np.uint32)[7]  # FAULT
