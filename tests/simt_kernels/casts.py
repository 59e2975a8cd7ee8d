"""Casts, and stores into narrower arrays."""

import numba
import numpy as np
from numba import cuda

from simt_kernels.arithmetic import N, each, floats, integers, small, wide
from simt_kernels.example import example


@each(
    lambda a: np.stack(
        [wide(a.astype(t)) for t in (np.int8, np.uint8, np.uint16, np.int32, np.uint32)]
    ),
    integers(np.int64),
)
@cuda.jit
def casts_wrap(a, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = numba.int8(a[i])
        out[1, i] = np.uint8(a[i])
        out[2, i] = numba.uint16(a[i])
        out[3, i] = np.int32(a[i])
        out[4, i] = numba.uint32(a[i])


@each(lambda a: np.stack([np.trunc(a)] * 4).astype(np.int32), lambda rng: floats()(rng) * 1000)
@cuda.jit
def float_to_integer_truncates(a, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = int(a[i])
        out[1, i] = numba.int32(a[i])
        out[2, i] = np.int64(a[i])
        out[3, i] = a[i]


@each(
    lambda a, b: np.stack([wide(a) / 1.0, wide(a.astype(np.float32)), wide(b)]),
    integers(),
    floats(np.float16),
)
@cuda.jit
def integers_and_float16_to_float(a, b, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = float(a[i])
        out[1, i] = numba.float32(a[i])
        out[2, i] = np.float64(b[i])


def narrow_outputs(rng):
    outputs = [np.full(N, 99, dtype) for dtype in (np.float32, np.float16, np.int32, np.uint8)]
    return floats(np.float64)(rng), integers(np.int64)(rng), *outputs


def narrowed(a, b, *outputs):
    single = a.astype(np.float32)
    return {2: single, 3: single.astype(np.float16), 4: b.astype(np.int32), 5: b.astype(np.uint8)}


@example(2, 64, narrow_outputs, narrowed)
@cuda.jit
def stores_narrow(a, b, singles, halves, words, letters):
    i = cuda.grid(1)
    if i < N:
        singles[i] = a[i]
        halves[i] = np.float32(a[i])
        words[i] = b[i]
        letters[i] = b[i]


@each(
    lambda a: wide(np.stack([(a > 0) * 2, (a > 0) * 1 + (a > 1), a != 0, a == 0])),
    lambda rng: small()(rng) // 4,
)
@cuda.jit
def booleans_count_as_integers(a, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = (a[i] > 0) * 2
        out[1, i] = (a[i] > 0) + (a[i] > 1)
        out[2, i] = bool(a[i])
        out[3, i] = not a[i]
