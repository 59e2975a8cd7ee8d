"""min, max, round, the functions of math, NaN and infinity, fma and the counts of bits."""

import math

import numba
import numpy as np
from numba import cuda

from simt_kernels.arithmetic import N, each, floats, integers, small, wide
from simt_kernels.example import example


@each(
    lambda a, b: np.stack(
        [
            np.minimum(a, b),
            np.maximum(wide(a), 0.3),
            np.clip(wide(a), -1.5, b % 3),
            wide(abs(a)),
            abs(b),
        ]
    ),
    lambda rng: floats()(rng) * 4,
    small(),
)
@cuda.jit
def smallest_largest_absolute(a, b, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = min(a[i], b[i])
        out[1, i] = max(0.3, a[i])
        out[2, i] = min(max(a[i], -1.5), b[i] % 3)
        out[3, i] = abs(a[i])
        out[4, i] = abs(b[i])


@example(
    1,
    N,
    lambda rng: (integers()(rng), np.zeros(N, np.int64), np.zeros(N, np.int64)),
    lambda a, out, rest: {1: a // 7, 2: a % 7},
)
@cuda.jit
def divmod_gives_both(a, out, rest):
    t = cuda.threadIdx.x
    out[t], rest[t] = divmod(a[t], 7)


@each(lambda a: np.rint(a).astype(np.int64), lambda rng: small(np.float32)(rng) / 2)
@cuda.jit
def round_goes_half_to_even(a, out):
    i = cuda.grid(1)
    if i < N:
        out[i] = round(a[i])


@each(lambda a: np.ones((5, N)), lambda rng: abs(floats()(rng)) + 1)
@cuda.jit
def math_of_float32_is_float32(a, out):
    i = cuda.grid(1)
    if i < N:
        x = a[i]
        out[0, i] = math.exp(x) == numba.float32(math.exp(x))
        out[1, i] = math.sqrt(x) == numba.float32(math.sqrt(x))
        out[2, i] = math.log(x) == numba.float32(math.log(x))
        out[3, i] = math.sin(x) == numba.float32(math.sin(x))
        out[4, i] = math.pow(x, x) == numba.float32(math.pow(x, x))


def math_answer(a):
    x, positive = wide(a), abs(wide(a)) + 1
    rows = [np.exp(x), np.log(positive), np.sqrt(positive), np.sin(x), np.cos(x), np.tanh(x)]
    return np.stack([*rows, positive**x, np.floor(x), np.ceil(x), abs(x)]).astype(np.float32)


@each(math_answer, floats(), rtol=1e-5)
@cuda.jit
def math_functions(a, out):
    i = cuda.grid(1)
    if i < N:
        x = a[i]
        positive = math.fabs(x) + numba.float32(1)
        out[0, i] = math.exp(x)
        out[1, i] = math.log(positive)
        out[2, i] = math.sqrt(positive)
        out[3, i] = math.sin(x)
        out[4, i] = math.cos(x)
        out[5, i] = math.tanh(x)
        out[6, i] = math.pow(positive, x)
        out[7, i] = math.floor(x)
        out[8, i] = math.ceil(x)
        out[9, i] = math.fabs(x)


def special(rng):
    return rng.choice(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -3e38], np.float32), N)


@each(
    lambda a: wide(np.stack([np.isnan(a), np.isinf(a), np.isfinite(a), a != a, a < 1, a <= a])),
    special,
)
@cuda.jit
def not_a_number_and_infinity(a, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = math.isnan(a[i])
        out[1, i] = math.isinf(a[i])
        out[2, i] = math.isfinite(a[i])
        out[3, i] = a[i] != a[i]
        out[4, i] = a[i] < 1
        out[5, i] = a[i] <= a[i]


@each(
    lambda a, b: wide(
        np.stack([np.fmax(a, b), np.fmin(b, a), np.maximum(a, 0), np.fmax(a, 0).clip(0)])
    ),
    special,
    floats(),
)
@cuda.jit
def largest_of_nan(a, b, out):
    """Of one type, NaN loses; of a float and an integer, the first one is kept beside NaN."""
    i = cuda.grid(1)
    if i < N:
        out[0, i] = max(a[i], b[i])
        out[1, i] = min(b[i], a[i])
        out[2, i] = max(a[i], 0)
        out[3, i] = max(0, a[i])


@each(
    lambda a: np.where(np.isnan(a) | (a == 0), np.float32(np.nan), np.copysign(np.inf, a)), special
)
@cuda.jit
def float_division_by_zero_is_infinite(a, out):
    i = cuda.grid(1)
    if i < N:
        out[i] = a[i] / numba.float32(0)


@each(lambda a: (wide(a) * wide(a) - wide(a * a)).astype(np.float32), floats())
@cuda.jit
def fma_rounds_once(a, out):
    i = cuda.grid(1)
    if i < N:
        square = a[i] * a[i]
        out[i] = cuda.fma(a[i], a[i], -square)


def bits_answer(a):
    """popc, ffs, clz and brev, from the bits as text."""
    bits = [np.binary_repr(int(x), a.dtype.itemsize * 8) for x in a]
    ones = [b.count("1") for b in bits]
    lowest = [len(b) - b.rfind("1") if "1" in b else 0 for b in bits]
    leading = [(b + "1").find("1") for b in bits]
    backwards = [int(b[::-1], 2) for b in bits]
    return np.array([ones, lowest, leading, backwards], np.uint64)


@each(bits_answer, integers(np.uint32))
@cuda.jit
def bits_of_32(a, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = cuda.popc(a[i])
        out[1, i] = cuda.ffs(a[i])
        out[2, i] = cuda.clz(a[i])
        out[3, i] = cuda.brev(a[i])


@each(bits_answer, integers(np.uint64))
@cuda.jit
def bits_of_64(a, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = cuda.popc(a[i])
        out[1, i] = cuda.ffs(a[i])
        out[2, i] = cuda.clz(a[i])
        out[3, i] = cuda.brev(a[i])
