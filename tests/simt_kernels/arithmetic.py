"""Types: what Numba makes of +, //, >>, **, -, ~ and of operands of two types.

Most kernels write into a wider array than their result needs, so that a rounding shows.
"""

import numba
import numpy as np
from numba import cuda

from simt_kernels.example import example

N = 100  # two blocks of 64 threads, the second one not full


def each(answer, *draws, rtol=0.0):
    """An example on arrays of N numbers; `out`, the last argument, is shaped and typed as answer.

    answer  the inputs -> what out must hold
    draws   one function of a random generator for each input
    """

    def arguments(rng):
        inputs = [draw(rng) for draw in draws]
        return *inputs, np.full_like(answer(*inputs), 99)

    return example(2, 64, arguments, lambda *args: {len(draws): answer(*args[:-1])}, rtol=rtol)


def floats(dtype=np.float32):
    return lambda rng: rng.standard_normal(N).astype(dtype)


def integers(dtype=np.int32):
    """Numbers of the whole range of the type, its ends and zero among them."""
    lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max

    def draw(rng):
        numbers = rng.integers(lowest, highest, N, dtype, endpoint=True)
        numbers[rng.choice(N, 3, replace=False)] = lowest, 0, highest
        return numbers

    return draw


def small(dtype=np.int32):
    """Numbers from -9 to 9 without 0."""
    return lambda rng: (rng.integers(1, 10, N) * rng.choice([-1, 1], N)).astype(dtype)


def wide(numbers):
    return numbers.astype(np.float64 if numbers.dtype.kind == "f" else np.int64)


@each(lambda a: wide(a) * 0.1, floats())
@cuda.jit
def float32_times_literal_is_float64(a, out):
    i = cuda.grid(1)
    if i < N:
        out[i] = a[i] * 0.1


@each(lambda a: wide(a * np.float32(0.1)), floats())
@cuda.jit
def float32_times_cast_literal_is_float32(a, out):
    i = cuda.grid(1)
    if i < N:
        out[i] = a[i] * numba.float32(0.1)


@each(lambda a, b: wide(a) + b, floats(), integers())
@cuda.jit
def float32_plus_int32_is_float64(a, b, out):
    i = cuda.grid(1)
    if i < N:
        out[i] = a[i] + b[i]


@each(
    lambda a, b: wide(np.stack([a + b.astype(np.float32), b.astype(np.float32) / a])),
    floats(),
    integers(np.int16),
)
@cuda.jit
def float32_with_int16_is_float32(a, b, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = a[i] + b[i]
        out[1, i] = b[i] / a[i]


OFFSET = -7


@each(
    lambda a, minus_one: np.stack([wide(a) * -3, wide(a) + OFFSET, wide(a) * -2, -wide(a)]),
    floats(),
    lambda rng: -1,
)
@cuda.jit
def float_with_negative_integer(a, minus_one, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = a[i] * -3
        out[1, i] = a[i] + OFFSET
        for k in range(-2, -1):
            out[2, i] = a[i] * k
        out[3, i] = a[i] * minus_one


@each(lambda a, b: np.stack([wide(a) + b, wide(a) - b, wide(a) * b]), integers(), integers())
@cuda.jit
def int32_with_int32_is_int64(a, b, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = a[i] + b[i]
        out[1, i] = a[i] - b[i]
        out[2, i] = a[i] * b[i]


@each(
    lambda a, b: np.stack([wide(a) + b, wide(a) - b, wide(a) // b, wide(a) % b]).astype(np.uint64),
    integers(np.uint32),
    lambda rng: integers(np.uint32)(rng) >> 8 | 1,
)
@cuda.jit
def uint32_with_uint32_is_uint64(a, b, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = a[i] + b[i]
        out[1, i] = a[i] - b[i]
        out[2, i] = a[i] // b[i]
        out[3, i] = a[i] % b[i]


@each(
    lambda a, b, c: np.stack([wide(array) for array in (-a, -b, ~b, ~c)]),
    integers(),
    integers(np.uint32),
    integers(np.uint8),
)
@cuda.jit
def minus_and_not_come_before_widening(a, b, c, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = -a[i]
        out[1, i] = -b[i]
        out[2, i] = ~b[i]
        out[3, i] = ~c[i]


@each(lambda a, b: wide(a) / wide(b), integers(np.int64), small())
@cuda.jit
def true_division_of_integers_is_float64(a, b, out):
    i = cuda.grid(1)
    if i < N:
        out[i] = a[i] / b[i]


@each(
    lambda a, b: np.stack([np.floor(a / b), a - b * np.floor(a / b)]).astype(np.int64),
    integers(),
    small(),
)
@cuda.jit
def floor_division_and_modulo_of_negative_integers(a, b, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = a[i] // b[i]
        out[1, i] = a[i] % b[i]


@each(
    lambda a, b: np.stack([np.floor(a / b), a - b * np.floor(a / b)]),
    lambda rng: small(np.float32)(rng) / 4,
    small(np.float32),
)
@cuda.jit
def floor_division_and_modulo_of_negative_floats(a, b, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = a[i] // b[i]
        out[1, i] = a[i] % b[i]


@each(
    lambda a, b: np.stack([wide(a) * 2**31, wide(a) // 8, wide(b) * 16, wide(b) // 16]),
    integers(),
    integers(np.uint32),
)
@cuda.jit
def shifts_of_int32_and_uint32(a, b, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = a[i] << 31
        out[1, i] = a[i] >> 3
        out[2, i] = b[i] << 4
        out[3, i] = b[i] >> 4


@each(lambda a, b: wide(np.stack([a & b, a | b, a ^ b, -1 - a])), integers(), integers())
@cuda.jit
def bit_operations_of_negative_integers(a, b, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = a[i] & b[i]
        out[1, i] = a[i] | b[i]
        out[2, i] = a[i] ^ b[i]
        out[3, i] = ~a[i]


@each(
    lambda a, b: np.stack([wide(a * a), np.sqrt(wide(abs(a))), wide(b) * b * b, np.exp2(abs(b))]),
    floats(),
    small(),
    rtol=1e-12,
)
@cuda.jit
def powers_with_literals(a, b, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = a[i] ** 2
        out[1, i] = abs(a[i]) ** 0.5
        out[2, i] = b[i] ** 3
        out[3, i] = 2 ** abs(b[i])


@each(
    lambda a, b: wide(np.stack([a + b, a - b, a * b, -a])), floats(np.float16), floats(np.float16)
)
@cuda.jit
def float16_with_float16_is_float16(a, b, out):
    i = cuda.grid(1)
    if i < N:
        out[0, i] = a[i] + b[i]
        out[1, i] = a[i] - b[i]
        out[2, i] = a[i] * b[i]
        out[3, i] = -a[i]


def mixed_bits_answer(a):
    product = (a.astype(np.uint64) * np.uint64(6364136223846793005)).astype(np.int64)
    return product >> 33 ^ product


@each(mixed_bits_answer, integers(np.int64))
@cuda.jit
def int64_product_wraps(a, out):
    i = cuda.grid(1)
    if i < N:
        product = a[i] * 6364136223846793005
        out[i] = (product >> 33) ^ product
