"""Device functions, closures as template constants, and grids of one to three dimensions."""

import numpy as np
from numba import cuda

from simt_kernels.control import N, each, numbers
from simt_kernels.example import example


@cuda.jit(device=True)
def sign(x):
    if x > 0:
        return 1
    if x < 0:
        return -1
    return 0


@cuda.jit(device=True)
def quotient_and_remainder(x, y):
    return x // y, x % y


@cuda.jit(device=True)
def towards_zero(x, y):
    quotient, remainder = quotient_and_remainder(abs(x), y)
    return sign(x) * quotient, sign(x) * remainder


@each(lambda x: 100 * int(x / 7) + int(np.fmod(x, 7)), numbers)
@cuda.jit
def device_functions_call_each_other_and_return_tuples(a, out):
    i = cuda.grid(1)
    if i < N:
        quotient, remainder = towards_zero(a[i], 7)
        out[i] = 100 * quotient + remainder


@cuda.jit(device=True)
def scaled(x, factor=3, offset=1):
    return factor * x + offset


@cuda.jit(device=True)
def twice(function, x):
    return function(function(x))


@each(lambda x: 10 * (9 * x + 4) + 2 * x + 5 + abs(x), numbers)
@cuda.jit
def defaults_and_functions_as_arguments(a, out):
    i = cuda.grid(1)
    if i < N:
        again = scaled
        out[i] = 10 * twice(again, a[i]) + scaled(a[i], offset=5, factor=2) + twice(abs, a[i])


def make_polynomial(COEFFICIENTS, DEGREE):
    @cuda.jit
    def closure_constants_and_an_indexed_tuple(a, out):
        i = cuda.grid(1)
        if i < N:
            total = 0
            for power in range(DEGREE + 1):
                total = total * a[i] + COEFFICIENTS[power]
            out[i] = total + COEFFICIENTS[-1]

    return closure_constants_and_an_indexed_tuple


each(lambda x: 3 * x**3 - x + 8, numbers)(make_polynomial((3, 0, -1, 4), 3))


@example(
    (3, 2),
    (16, 4),
    lambda rng: (np.full((7, 41), 99, np.int32),),
    lambda out: {0: np.add.outer(1000 * np.arange(7), np.arange(41)).astype(np.int32)},
)
@cuda.jit
def grid_of_two_dimensions(out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = 1000 * row + column


def six_numbers(out):
    """Thread and block of each element of out, whose axes are z, y and x."""
    z, y, x = np.indices(out.shape[:3])
    return {0: np.stack([x % 4, y % 2, z % 4, x // 4, y // 2, z // 4], -1).astype(np.int32)}


@example((2, 2, 1), (4, 2, 4), lambda rng: (np.full((4, 4, 8, 6), 99, np.int32),), six_numbers)
@cuda.jit
def grid_of_three_dimensions(out):
    x, y, z = cuda.grid(3)
    out[z, y, x, 0] = cuda.threadIdx.x
    out[z, y, x, 1] = cuda.threadIdx.y
    out[z, y, x, 2] = cuda.threadIdx.z
    out[z, y, x, 3] = cuda.blockIdx.x
    out[z, y, x, 4] = cuda.blockIdx.y
    out[z, y, x, 5] = cuda.blockIdx.z


@example(
    (4, 3, 2),
    (8, 2, 1),
    lambda rng: (np.full(8, 99, np.int32),),
    lambda out: {0: np.array([8, 2, 1, 4, 3, 2, 32, 6], np.int32)},
)
@cuda.jit
def sizes_of_block_and_grid(out):
    x, y, z = cuda.grid(3)
    if x == 0 and y == 0 and z == 0:
        width, height = cuda.gridsize(2)
        out[0] = cuda.blockDim.x
        out[1] = cuda.blockDim.y
        out[2] = cuda.blockDim.z
        out[3] = cuda.gridDim.x
        out[4] = cuda.gridDim.y
        out[5] = cuda.gridDim.z
        out[6] = width
        out[7] = height


@example(
    2,
    48,
    lambda rng: (rng.integers(-99, 99, 250), np.full(250, 99)),
    lambda a, out: {1: 2 * a},
)
@cuda.jit
def grid_stride_loop(a, out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = 2 * a[i]
