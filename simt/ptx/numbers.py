"""Arithmetic as a GPU does it, on NumPy arrays with one number per thread.

Source: NVIDIA, "Parallel Thread Execution ISA", chapter "Instruction Set".
"""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial

import ml_dtypes
import numpy as np
from numba import float32, float64, vectorize
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from simt.arithmetic import clamped

DTYPES = {
    **{f"{kind}{8 * n}": np.dtype(f"u{n}") for kind in "ub" for n in (1, 2, 4, 8)},
    **{f"s{8 * n}": np.dtype(f"i{n}") for n in (1, 2, 4, 8)},
    **{"f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64)},
    **{"bf16": np.dtype("u2"), "pred": np.dtype(bool)},
    **{"f16x2": np.dtype("u4"), "bf16x2": np.dtype("u4")},
    **{"e4m3x2": np.dtype("u2"), "e5m2x2": np.dtype("u2")},
}
# Computed in float32. Source of those of 8 bits: Micikevicius and others, "FP8 Formats for Deep
# Learning" (2022).
NARROW = {
    **{"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)},
    **{"e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2)},
}
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def size_of(type_: str) -> int:
    """Bytes of a type. Raises ValueError for one that isn't known."""
    if type_ not in DTYPES:
        raise ValueError(f"the type .{type_} isn't known")
    return DTYPES[type_].itemsize


@lru_cache(maxsize=1024)  # a large array is written byte by byte
def literal(text: str, dtype: np.dtype) -> np.generic:
    """A number as the text writes it; a float in hexadecimal is its bits, also for integers.

    Raises ValueError for what isn't a number."""
    if found := re.fullmatch(r"0([fd])([0-9A-Fa-f]+)", text):
        bits = np.array(int(found[2], 16), "u4" if found[1] == "f" else "u8")
        if dtype.kind == "f":
            return dtype.type(bits.view(f"f{bits.itemsize}"))
        return bits.view(dtype)[()]  # its bits, in mov.b32
    if dtype.kind == "f":
        return dtype.type(float(text))
    bits = int(text.rstrip("U"), 0) & (1 << 8 * dtype.itemsize) - 1
    return np.array(bits, f"u{dtype.itemsize}").view(dtype)[()]


# Floating point ----------------------------------------------------------------------------------


@intrinsic
def _fused(_context: object, a: object, b: object, c: object) -> tuple[Signature, object]:
    return a(a, a, a), lambda _context, builder, _signature, args: builder.fma(*args)


@vectorize([float32(float32, float32, float32), float64(float64, float64, float64)])
def fma(a: object, b: object, c: object) -> object:
    """a * b + c, rounded once."""
    return _fused(a, b, c)


def add_to_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b in float64, rounded to odd: rounding that again to fewer bits is as good as once.

    If the sum isn't exact, of the two neighbours it lies between, the result is the one whose
    last bit is 1. Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums"
    (2008).
    """
    near = a + b
    part = near - a
    error = (a - (near - part)) + (b - part)  # exact (Knuth's two-sum)
    bits = near.view(np.int64).copy()
    inexact = (error != 0) & np.isfinite(near) & np.isfinite(error)
    too_far = inexact & (np.signbit(error) != np.signbit(near))
    bits[too_far] -= 1  # towards zero
    bits[inexact] |= 1
    return bits.view(np.float64)


# By how much an exact result is above a number r, given as fractions; of sqrt, its square.
ABOVE = {
    **{"add": lambda r, a, b: a + b - r, "sub": lambda r, a, b: a - b - r},
    **{"mul": lambda r, a, b: a * b - r, "fma": lambda r, a, b, c: a * b + c - r},
    **{"div": lambda r, a, b: a / b - r, "rcp": lambda r, a: 1 / a - r},
    **{"sqrt": lambda r, a: a - r * r, "cvt": lambda r, a: a - r},
}
SUMS = ("add", "sub", "fma")
TOWARDS = {"rz": 0, "rm": -np.inf, "rp": np.inf}


def rounded(name: str, how: str, function: Callable) -> Callable:
    """A function that rounds to nearest, rounded as .rz, .rm or .rp do; `name` is in ABOVE."""
    sign_above = np.vectorize(partial(_sign_above, ABOVE[name]), otypes=[np.int64])

    def compute(*values: np.ndarray) -> np.ndarray:
        near = np.asarray(function(*values))
        if how == "rm" and name in SUMS:  # in which x - x is -0
            first, *others, last = values
            near = -np.asarray(function(-first, *others, -last))
        if name in SUMS and near.dtype == np.float32:  # the same, but faster
            factor, sign = values[1] if name == "fma" else 1, -1.0 if name == "sub" else 1.0
            product = np.atleast_1d(np.multiply(values[0], factor, dtype=np.float64))  # exact
            pair = np.broadcast_arrays(product, values[-1] * sign)
            side = np.sign(add_to_odd(*pair) - near)
        else:
            side = sign_above(near, *values)
        away = {"rz": side * np.sign(near) < 0, "rm": side < 0, "rp": side > 0}[how]
        return np.where(away, np.nextafter(near, near.dtype.type(TOWARDS[how])), near)

    return compute


def _sign_above(above: Callable, near: float, *values: float) -> int:
    """1 if the exact result is above the nearest float, -1 if below, 0 if it is that."""
    is_too_large = near in (np.inf, -np.inf)
    try:
        found = above(Fraction(0 if is_too_large else near), *map(Fraction, values))
    except (ValueError, OverflowError, ZeroDivisionError):  # of NaN, infinity, 0: nothing to round
        return 0
    found = -found if is_too_large else found
    return (found > 0) - (found < 0)


def lesser(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The number if the other is NaN; -0 is less than +0."""
    return np.where((a == b) & np.signbit(a), a, np.fmin(a, b))


def greater(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The number if the other is NaN; +0 is greater than -0."""
    return np.where((a == b) & np.signbit(b), a, np.fmax(a, b))


def or_nan(function: Callable) -> Callable:
    """The same with .NaN: NaN if either number is."""
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), a + b, function(a, b))


def narrow(type_: str) -> np.dtype | None:
    """The narrow float that "f16" is, or that "f16x2" is a pair of; None: the type is another."""
    return NARROW.get(type_.removesuffix("x2"))


def decoded(bits: np.ndarray, type_: str) -> np.ndarray:
    """Narrow floats as float32; pairs of them as [n, 2], the lower half first."""
    floats = np.atleast_1d(bits).view(narrow(type_)).astype(np.float32)
    return floats.reshape(-1, 2) if type_.endswith("x2") else floats


def encoded(number: np.ndarray, type_: str) -> np.ndarray:
    """The bits of the nearest narrow floats, ties to even, as `decoded` takes them; of 8 bits, the
    nearest finite ones (.satfinite). NaN becomes all ones behind the sign."""
    dtype, number = narrow(type_), np.asarray(number)
    if number.dtype.kind in "iu":
        upper, lower = np.divmod(number, number.dtype.type(1 << number.dtype.itemsize * 4 - 1))
        scale = 2.0 ** (number.dtype.itemsize * 4 - 1)
        number = add_to_odd(upper * scale, lower.astype(np.float64))
    if number.dtype != np.float32:
        number = narrowed_to_odd(number.astype(np.float64))
    near, size = np.array(number, ndmin=1), dtype.itemsize
    if size == 1:
        most = float(ml_dtypes.finfo(dtype).max)
        near = np.clip(near, -most, most)
    bits = near.astype(dtype).view(f"u{size}")
    bits = np.where(np.isnan(number), bits.dtype.type(np.iinfo(f"i{size}").max), bits)
    return bits.view(f"u{2 * size}").reshape(-1) if type_.endswith("x2") else bits


def flushed(number: np.ndarray) -> np.ndarray:
    """.ftz: subnormal numbers become zero, with their sign."""
    is_subnormal = np.abs(number) < np.finfo(number.dtype).smallest_normal
    return np.where(is_subnormal, np.copysign(number.dtype.type(0), number), number)


def flushed_sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As atomics compute it in global memory."""
    return flushed(flushed(a) + flushed(b))


def exp2(number: np.ndarray) -> np.ndarray:
    """ex2.approx: a GPU's is within 2 units in the last place of this."""
    return np.exp2(np.asarray(number, np.float64)).astype(np.float32)


def saturated(number: np.ndarray) -> np.ndarray:
    """.sat: within 0 and 1; NaN becomes 0."""
    return np.clip(np.where(np.isnan(number), 0, number), 0, 1)


ROUNDINGS = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}


def to_integer(number: np.ndarray, type_: str, rounding: str, nan: int) -> np.ndarray:
    """A float as an integer: out of range becomes the nearest there is; NaN has bits of its own."""
    return clamped(ROUNDINGS[rounding](np.asarray(number, np.float64)), DTYPES[type_], nan)


# Integers ----------------------------------------------------------------------------------------


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, rounded towards zero. A GPU's result for b = 0 is unspecified; here it is 0."""
    return (a - np.fmod(a, b)) // b


def high_half(a: np.ndarray, b: np.ndarray, type_: str) -> np.ndarray:
    """The upper half of the product, which has twice the bits."""
    bits = 8 * size_of(type_)
    if bits == 64:
        products = np.multiply(np.asarray(a).astype(object), np.asarray(b).astype(object))
        return np.asarray(products // (1 << 64)).astype(DTYPES[type_])
    wide = DTYPES[WIDER[type_]]
    product = np.multiply(np.asarray(a).astype(wide), np.asarray(b).astype(wide))
    return (product >> wide.type(bits)).astype(DTYPES[type_])


def shifted_left(a: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Distances of at least the width give 0, as PTX says; NumPy says nothing."""
    width = 8 * a.dtype.itemsize
    near = np.minimum(distance, width - 1).astype(a.dtype)
    return np.where(np.asarray(distance) < width, a << near, a.dtype.type(0))


def shifted_right(a: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Copies of the sign come in from the left if a is signed, else zeros."""
    width = 8 * a.dtype.itemsize
    near = a >> np.minimum(distance, width - 1).astype(a.dtype)
    is_near = (np.asarray(distance) < width) | (a.dtype.kind == "i")
    return np.where(is_near, near, a.dtype.type(0))


def lut3(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: int) -> np.ndarray:
    """lop3: any function of three bits, given as its eight results."""
    result = np.zeros(np.broadcast(a, b, c).shape, np.uint32)
    for number in range(8):
        if table >> number & 1:
            bits = [x if number & weight else ~x for x, weight in ((a, 4), (b, 2), (c, 1))]
            result |= bits[0] & bits[1] & bits[2]
    return result


def permuted_bytes(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """prmt: each nibble of the selector takes a byte of the eight in b:a, or copies its sign."""
    a, b, selector = np.broadcast_arrays(*map(np.atleast_1d, (a, b, selector)))
    pool = np.stack([a, b], axis=1).view(np.uint8)
    nibbles = selector[:, None] >> np.arange(0, 16, 4, dtype=np.uint32)
    found = np.take_along_axis(pool, (nibbles & 7).astype(np.int64), axis=1)
    signs = np.where(found & 0x80, np.uint8(0xFF), np.uint8(0))
    return np.where(nibbles & 8, signs, found).view(np.uint32)[:, 0]


def reversed_bits(a: np.ndarray) -> np.ndarray:
    a = np.atleast_1d(a)
    each = np.unpackbits(a.view(np.uint8).reshape(len(a), -1), axis=1, bitorder="little")
    return np.packbits(each[:, ::-1], axis=1, bitorder="little").view(a.dtype)[:, 0]


def count_ones(a: np.ndarray) -> np.ndarray:
    return np.bitwise_count(a).astype(np.uint32)


def leading_one(a: np.ndarray) -> np.ndarray:
    """bfind: the number of the highest bit that differs from the sign; all ones if none does."""
    zeros = count_leading_zeros(np.where(a < 0, ~a, a).view(f"u{a.itemsize}"))
    return np.uint32(8 * a.itemsize - 1) - zeros


def shift_to_leading_one(a: np.ndarray) -> np.ndarray:
    """bfind.shiftamt: how far that bit is from the highest place."""
    found = leading_one(a)
    return np.where(found < 64, np.uint32(8 * a.itemsize - 1) - found, found)


def count_leading_zeros(a: np.ndarray) -> np.ndarray:
    width = 8 * a.dtype.itemsize
    smeared = a
    for distance in (1, 2, 4, 8, 16, 32):
        if distance < width:
            smeared = smeared | smeared >> a.dtype.type(distance)
    return np.uint32(width) - count_ones(smeared)


def bits_of(a: np.ndarray, first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """bfe: `count` bits from bit `first` on; if a is signed, the last of them is the sign."""
    width = 8 * a.dtype.itemsize
    first, count = (np.asarray(x).astype(np.int64) & 255 for x in (first, count))
    above = np.clip(width - first - count, 0, width)  # bits to the left of the field
    field = shifted_left(a, above)
    # What lies beyond the register is 0, or the sign.
    field = np.where(first + count > width, a, field)
    down = np.where(first + count > width, np.minimum(first, width), width - count)
    result = shifted_right(field, down)
    return np.where(count == 0, a.dtype.type(0), result)


def with_bits(a: np.ndarray, b: np.ndarray, first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """bfi: b, with the low `count` bits of a put in at bit `first`."""
    width = 8 * a.dtype.itemsize
    one, all_ = a.dtype.type(1), ~a.dtype.type(0)
    first, count = (np.asarray(x).astype(np.int64) & 255 for x in (first, count))
    low = np.where(count >= width, all_, shifted_left(np.full(count.shape, one), count) - one)
    mask = shifted_left(low, first)
    return b & ~mask | shifted_left(a, first) & mask


def fma_of_halves(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of numbers with at most 11 bits, in float64 and rounded to odd."""
    return add_to_odd(np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64))


def narrowed_to_odd(number: np.ndarray) -> np.ndarray:
    """float64 to float32, rounded to odd again."""
    near = number.astype(np.float32)
    bits = near.view(np.uint32).copy()
    inexact = np.isfinite(near) & (near != number)
    bits[inexact & (np.abs(near) > np.abs(number))] -= np.uint32(1)
    bits[inexact] |= np.uint32(1)
    return bits.view(np.float32)


# Matrices ----------------------------------------------------------------------------------------


def matrix_product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """d = a * b + c of each warp, as mma.m16n8k4, m16n8k8 and m16n8k16 spread them over its lanes.

    a        [threads, 2 * steps, items] float32: a matrix of 16 x k, with so many items in a
             register; k is steps * 4 * items
    b        [threads, steps, items] float32: a matrix of k x 8
    c        [threads, 4] float32: a matrix of 16 x 8
    returns  [threads, 4] float64

    Lane 4 * i + j has items of rows i and i + 8 of a, c and d, and of column i of b.
    """
    steps, items = b.shape[1:]
    depth = steps * 4 * items
    a = a.astype(np.float64).reshape(-1, 8, 4, steps, 2, items).transpose(0, 4, 1, 3, 2, 5)
    b = b.astype(np.float64).reshape(-1, 8, 4, steps, items).transpose(0, 3, 2, 4, 1)
    c = c.reshape(-1, 8, 4, 2, 2).transpose(0, 3, 1, 2, 4).reshape(-1, 16, 8)
    # The products are exact. The order in which a GPU adds them, and how it rounds, isn't
    # documented; here the sum is computed in float64, and rounded where it is written.
    d = a.reshape(-1, 16, depth) @ b.reshape(-1, depth, 8) + c
    return d.reshape(-1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(-1, 4)
