"""Numbers: what Numba makes of literals, of operands of two types and of bits.

The results stand in 64 bits, wider than most of them need, so that a rounding or a wrap shows.
test_simt_arithmetic.py compares all operators and functions with compiled code.
"""

from functools import partial

import numba
import numpy as np
from numba import cuda

from tests.simt.kernels.example import Arguments, example

OFFSET = -7
WEYL = 0x9E3779B97F4A7C15  # an unsigned number of 64 bits


def drawn(results: int, dtype: type, rng: np.random.Generator) -> Arguments:
    """Small float32 numbers, integers of all 32 bits, and a place for some results of each."""
    integers = rng.integers(0, 2**32, 64).astype(np.uint32)
    integers[:2] = 0, 2**32 - 1
    return rng.standard_normal(64).astype(np.float32), integers, np.zeros((results, 64), dtype)


def with_literals(a, b, out):
    x, square = a.astype(float), a * a
    lost = (x * x - square).astype(np.float32)
    return {2: [x * 0.1, a * np.float32(0.1), x - 7, square, lost, 0 * x + 2.0**62]}


@example(1, 64, partial(drawn, 6, np.float64), with_literals)
@cuda.jit
def float32_with_literals(a, b, out):
    t = cuda.threadIdx.x
    x = a[t]
    out[0, t] = x * 0.1
    out[1, t] = x * numba.float32(0.1)
    out[2, t] = x + OFFSET
    out[3, t] = x**2
    out[4, t] = cuda.fma(x, x, -(x * x))
    out[5, t] = (1 << 63) / 2


def with_integers(a, b, out):
    signed = b.astype(np.int32)
    return {2: [a.astype(float) + signed, b.astype(np.int16).astype(np.float32) / a]}


@example(1, 64, partial(drawn, 2, np.float64), with_integers)
@cuda.jit
def float32_with_integers(a, b, out):
    t = cuda.threadIdx.x
    out[0, t] = a[t] + numba.int32(b[t])
    out[1, t] = numba.int16(b[t]) / a[t]


def as_uint64(a, b, out):
    wide = b.astype(np.uint64)
    return {2: [(wide - wide[::-1]) >> np.uint64(1), wide * np.uint64(WEYL)]}


@example(1, 64, partial(drawn, 2, np.uint64), as_uint64)
@cuda.jit
def uint32_with_uint32_is_uint64(a, b, out):
    t = cuda.threadIdx.x
    out[0, t] = (b[t] - b[63 - t]) >> 1
    out[1, t] = numba.uint64(b[t]) * WEYL


def bits(a, b, out):
    texts = [np.binary_repr(n, 32) for n in b]
    first = [32 - text.rfind("1") if "1" in text else 0 for text in texts]
    return {2: [[text.count("1") for text in texts], first]}


@example(1, 64, partial(drawn, 2, np.int64), bits)
@cuda.jit
def bits_of_32(a, b, out):
    t = cuda.threadIdx.x
    out[0, t] = cuda.popc(b[t])
    out[1, t] = cuda.ffs(b[t])
