"""Numbers as Numba types them.

NumPy and Numba promote differently: `float32 * 0.5` is a float32 to NumPy and a float64 to
Numba; `int32 + int32` is an int32 to NumPy and an int64 to Numba. A value here is either one
number for all lanes (int, float and bool are int64, float64 and bool; anything else is a NumPy
scalar) or a NumPy array with one number per lane.

Source: Numba's typing, as tests/simt/test_simt_arithmetic.py reads it from numba.cuda itself.

Known differences. Here a variable has the type of the value last assigned to it; Numba finds one
type for every value that could reach a use, even along a path that no thread takes. Multiplication
and addition are rounded separately; Numba may fuse them. Float % and // are those that compute a
remainder as a - floor(a / b) * b; for GPUs of compute capability 10 and above, the compiler fuses
this, and an infinite b leaves a as it is. A conversion out of range is undefined to the compiler:
uint8(300.0) is 44 here and in an array, but compiled code may compute with 300 before it stores
that, and may convert a number at once to an integer, past the float that it becomes on the way. So
is an int64 that overflows: it wraps, but compiled code may take x - y >= x for y <= 0. The last
digits of quotients and powers of complex numbers may differ.
"""

import ast
import math
import operator
import sys
from collections.abc import Callable
from functools import cache

import numpy as np

BOOL, INT8, INT32, INT64, UINT64 = map(np.dtype, ("bool", "i1", "i4", "i8", "u8"))
FLOAT16, FLOAT32, FLOAT64 = (np.dtype(f"float{bits}") for bits in (16, 32, 64))
COMPLEX64, COMPLEX128 = np.dtype("complex64"), np.dtype("complex128")
TYPES = {np.dtype(code).type: np.dtype(code) for code in "?bhilqBHILQefdFD"}
TYPES |= {bool: BOOL, int: INT64, float: FLOAT64, complex: COMPLEX128}
DTYPES = frozenset(TYPES.values())  # all that a kernel can compute with
LOWEST = -(1 << 63)  # of int64
LARGEST_POWER = 1 << 16  # that Numba computes by multiplying
RANGES = INT32, INT64, UINT64  # what range can count in, in the order in which Numba tries them
OF_PYTHON = frozenset((BOOL, INT64, FLOAT64))  # kept as Python numbers where all lanes agree

Value = bool | int | float | complex | np.generic | np.ndarray


class Misuse(TypeError):
    """A kernel uses a value in a way that isn't allowed. Its statement makes it an Unsupported."""


def dtype_of(value: Value) -> np.dtype:
    kind = type(value)
    if kind is np.ndarray:  # first, because it is the most common case and this function is hot
        return value.dtype
    if kind in TYPES:
        return TYPES[kind]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype
    raise Misuse(f"{value} is not a number")


def plain(value: Value) -> Value:
    """A NumPy scalar as a Python number where Python has the type: it is faster."""
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.generic) and value.dtype in OF_PYTHON:
        return value.item()
    if type(value) is int and not LOWEST <= value <= ~LOWEST:
        if not 0 <= value < 1 << 64:
            raise OverflowError(f"{value} needs more than 64 bits")
        return np.uint64(value)  # as Numba types such a number
    return value


def cast(value: Value, dtype: np.dtype) -> Value:
    """Converts as a GPU does: integers wrap, floats become the nearest integer there is."""
    old = dtype_of(value)
    if old is dtype or old == dtype:
        return value
    if old.kind == "c" and dtype.kind not in "cb":
        raise Misuse(f"a {old} can't become {dtype}: take its .real or abs")
    if not isinstance(value, np.ndarray):
        value = np.array(value, old)
    to_integer = old.kind == "f" and dtype.kind in "iu"
    converted = _whole(value, dtype) if to_integer else value.astype(dtype)
    return converted if converted.ndim else plain(converted[()])


def _whole(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Floats as integers. The compiler turns float32 and float64 into 8 bits by way of 16, and
    rounds only half precision. The instruction, cvt, has bits of its own for some NaN."""
    half, bits = value.dtype == FLOAT16, 8 * dtype.itemsize
    if bits == 8 and not half:
        return _whole(value, np.dtype(f"{dtype.kind}2")).astype(dtype)
    nan = 1 << bits - 1 if bits == 64 or value.dtype == FLOAT64 else 0
    whole = np.asarray(np.rint(value) if half else np.trunc(value), np.float64)
    return clamped(whole, dtype, nan)


def clamped(whole: np.ndarray, dtype: np.dtype, nan: int) -> np.ndarray:
    """Whole floats as integers: out of range becomes the nearest there is, NaN these bits. NumPy
    casts only what is in range: the rest would differ from one processor to another."""
    limits = np.iinfo(dtype)
    below, above = whole < float(limits.min), whole >= float(limits.max)
    is_inside = ~(below | above | np.isnan(whole))
    if np.count_nonzero(is_inside) == whole.size:
        return whole.astype(dtype)
    inside = np.where(is_inside, whole, 0).astype(dtype)
    limit = np.where(below, dtype.type(limits.min), dtype.type(limits.max))
    found = np.where(below | above, limit, inside)
    return np.where(np.isnan(whole), np.array(nan, f"u{dtype.itemsize}").view(dtype), found)


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f"


def _has_float(*dtypes: np.dtype) -> bool:
    """Is one of them a float, or made of two?"""
    return any(dtype.kind in "fc" for dtype in dtypes)


def _not_complex(rule: Callable[[np.dtype, np.dtype], np.dtype]) -> Callable:
    """The same rule, for an operator that complex numbers don't have."""

    def of_real(a: np.dtype, b: np.dtype) -> np.dtype:
        if "c" in (a.kind, b.kind):
            raise Misuse(f"complex numbers have no such operator: {a}, {b}")
        return rule(a, b)

    return of_real


def with_float(a: np.dtype, b: np.dtype) -> np.dtype:
    """The type of an operation with at least one float, or one that is complex."""
    kinds = [d if _has_float(d) else _float_for(d) for d in (a, b)]
    return np.promote_types(*kinds)


def _float_for(integer: np.dtype) -> np.dtype:
    """What an integer becomes next to a float: Numba picks the nearest conversion."""
    if integer in (BOOL, np.int8):
        return FLOAT16
    return FLOAT32 if integer in (np.uint8, np.int16) else FLOAT64


def arithmetic_type(a: np.dtype, b: np.dtype) -> np.dtype:
    """Integers become 64 bits wide, unsigned only if both are. Of two floats, the wider type."""
    if _has_float(a, b):
        return with_float(a, b)
    return UINT64 if a.kind == b.kind == "u" else INT64


def _divided_type(a: np.dtype, b: np.dtype) -> np.dtype:
    return with_float(a, b) if _has_float(a, b) else FLOAT64


def _at_least_float32(a: np.dtype, b: np.dtype) -> np.dtype:
    """// and % have no half-precision form."""
    found = arithmetic_type(a, b)
    return FLOAT32 if found == FLOAT16 else found


def _power_type(a: np.dtype, b: np.dtype) -> np.dtype:
    """A float to an integer power keeps its type; for a bool, Numba may choose a float."""
    if a == BOOL and b == np.int32:
        return FLOAT32
    if _is_float(a) and not _has_float(b):
        return np.promote_types(a, FLOAT32)
    return _at_least_float32(a, b)


def _bits_type(a: np.dtype, b: np.dtype) -> np.dtype:
    if _has_float(a, b):
        raise Misuse(f"bit operations need integers, not {a} and {b}")
    return BOOL if a == b == BOOL else arithmetic_type(a, b)


def _shift_type(a: np.dtype, b: np.dtype) -> np.dtype:
    _bits_type(a, b)
    return UINT64 if a.kind == "u" else INT64


def divmod_type(a: np.dtype, b: np.dtype) -> np.dtype:
    """Unlike // and %, uint64 and a signed integer become float64."""
    if _is_float(a) or _is_float(b):
        return _at_least_float32(a, b)
    return {"f": FLOAT64, "u": UINT64}.get(np.promote_types(a, b).kind, INT64)


@cache
def range_type(*dtypes: np.dtype) -> np.dtype:
    """The type of the numbers that range(...) gives: of Numba's three, the nearest conversion."""
    return min(RANGES, key=lambda to: sum(_conversion(dtype, to) for dtype in dtypes))


def _conversion(dtype: np.dtype, to: np.dtype) -> int:
    """How little Numba likes a conversion: one that loses something counts more than any others."""
    if dtype == to:
        return 0
    if not np.can_cast(dtype, to):
        return 100
    return 1 if dtype.kind == to.kind else 10


def power(a: Value, b: Value) -> Value:
    """a ** b. To an integer power, Numba multiplies, and divides 1 by that for a negative one.

    With Python 3.11, an integer passes through float64, too: `1.0 / r if invert else r` has one
    type there. A later Python compiles it to two returns.
    """
    if dtype_of(b).kind == "c":
        return _complex_power(np.asarray(a), np.asarray(b))
    if _is_float(dtype_of(b)):
        return np.power(a, b)
    if type(b) is int and 0 <= b <= LARGEST_POWER:
        return cast(_returned(_multiplied(a, b)), dtype_of(a))
    wide, is_far = cast(a, FLOAT64), np.greater(b, LARGEST_POWER) | np.less(b, -LARGEST_POWER)
    times = np.abs(cast(np.where(is_far, 0, b), INT64))  # -128 has no opposite of 8 bits
    product = _multiplied(a, times)
    inverse = np.divide(1.0, cast(product, FLOAT64))
    if not _is_float(dtype_of(a)):
        inverse = np.where(np.abs(wide) == 1, inverse, np.where(wide == 0, float(LOWEST), 0.0))
        is_far &= np.greater(b, 0) | (np.abs(wide) == 1)
    is_product = ~(np.less(b, 0) | is_far)
    floats = np.where(is_far, np.power(wide, cast(b, FLOAT64)), inverse)
    product, floats = (cast(part, dtype_of(a)) for part in (_returned(product), floats[()]))
    return np.where(is_product, product, floats)[()]


def _returned(product: Value) -> Value:
    return cast(product, FLOAT64) if sys.version_info < (3, 12) else product


def _multiplied(a: Value, times: Value) -> Value:
    """a to a power that isn't negative, in the order in which Numba multiplies."""
    a, product = np.asarray(a), dtype_of(a).type(1)
    multiply = complex_product if a.dtype.kind == "c" else np.multiply
    while np.count_nonzero(times):
        odd = times & 1
        factor = np.where(odd, a, product.dtype.type(1)) if isinstance(odd, np.ndarray) else a
        product = multiply(product, factor) if np.count_nonzero(odd) else product
        a, times = multiply(a, a), times >> 1
    return product


def _complex_power(a: np.ndarray, b: np.ndarray) -> Value:
    """Through its length and phase, also for a square, and with Numba's special cases."""
    phase, size = np.angle(a), np.abs(a)
    length, turned = size**b.real, phase * b.real
    grows = b.imag != 0
    length = np.where(grows, length / np.exp(phase * b.imag), length)
    turned = np.where(grows, turned + b.imag * np.log(size), turned)
    found = length * (np.cos(turned) + 1j * np.sin(turned))
    found = np.where((a.real == 0) & (b.real == 0), 0, found)
    return np.where(b == 0, 1, found).astype(a.dtype)[()]


def floor_divide(a: Value, b: Value) -> Value:
    """a // b. The lowest integer divided by -1 would be too large; Numba returns 0."""
    if _is_float(dtype_of(b)):
        return _floor_of_floats(np.asarray(a), np.asarray(b))
    quotient = np.floor_divide(a, b)
    if dtype_of(quotient) != INT64 or (type(b) is int and b != -1):
        return quotient
    return np.where(np.equal(quotient, LOWEST) & np.equal(b, -1), 0, quotient)[()]


def remainder(a: Value, b: Value) -> Value:
    """a % b"""
    if not _is_float(dtype_of(b)):
        return np.remainder(a, b)
    b = np.asarray(b)
    rest, turns = _fmod(np.asarray(a), b)
    return np.where(turns, rest + b, np.where(rest == 0, np.copysign(rest, b), rest))[()]


def _floor_of_floats(a: np.ndarray, b: np.ndarray) -> Value:
    rest, turns = _fmod(a, b)
    quotient = (a - rest) / b
    quotient = np.where(turns, quotient - 1, quotient)
    floor = np.floor(quotient)
    floor = np.where(quotient - floor > 0.5, floor + 1, floor)
    floor = np.where(quotient == 0, a * (quotient * quotient) / b, floor)
    return np.where(b == 0, a / b, floor)[()]


def _fmod(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """C's fmod, as it is compiled: inexact once a / b is. And where its sign isn't that of b."""
    size = np.abs(b)
    rest = np.abs(a) - np.floor(np.abs(a) / size) * size
    rest = np.where(a < 0, -rest, rest)
    return rest, (rest != 0) & ((b < 0) != (rest < 0))


# Python's operator, NumPy's, and the type that both operands are converted to
OPERATORS: dict[type, tuple[Callable, Callable, Callable]] = {
    ast.Add: (operator.add, np.add, arithmetic_type),
    ast.Sub: (operator.sub, np.subtract, arithmetic_type),
    ast.Mult: (operator.mul, np.multiply, arithmetic_type),
    ast.Div: (operator.truediv, np.true_divide, _divided_type),
    ast.FloorDiv: (operator.floordiv, floor_divide, _not_complex(_at_least_float32)),
    ast.Mod: (operator.mod, remainder, _not_complex(_at_least_float32)),
    ast.Pow: (operator.pow, power, _power_type),
    ast.LShift: (operator.lshift, np.left_shift, _shift_type),
    ast.RShift: (operator.rshift, np.right_shift, _shift_type),
    ast.BitAnd: (operator.and_, np.bitwise_and, _bits_type),
    ast.BitOr: (operator.or_, np.bitwise_or, _bits_type),
    ast.BitXor: (operator.xor, np.bitwise_xor, _bits_type),
    ast.Lt: (operator.lt, np.less, _not_complex(np.promote_types)),
    ast.LtE: (operator.le, np.less_equal, _not_complex(np.promote_types)),
    ast.Gt: (operator.gt, np.greater, _not_complex(np.promote_types)),
    ast.GtE: (operator.ge, np.greater_equal, _not_complex(np.promote_types)),
    ast.Eq: (operator.eq, np.equal, np.promote_types),
    ast.NotEq: (operator.ne, np.not_equal, np.promote_types),
}
DIVISIONS = frozenset((ast.FloorDiv, ast.Mod))
# These turn two int64 into an int64, which is fast with Python's own numbers.
ON_INTEGERS = frozenset(OPERATORS) - {ast.Div, ast.Pow, ast.LShift, ast.RShift}


def binary(kind: type) -> Callable[[Value, Value], Value]:
    """The operation of a syntax node, as a function of two values."""
    python, ufunc, type_rule = OPERATORS[kind]
    on_integers, divides = kind in ON_INTEGERS, kind in DIVISIONS
    # Of two types: what the values become, and what computes; looked up once
    types: dict[tuple[np.dtype, np.dtype], tuple[np.dtype, np.dtype, Callable]] = {}

    def apply(a: Value, b: Value) -> Value:
        if on_integers and type(a) is int and type(b) is int and not (divides and b == 0):
            result = python(a, b)
            if type(result) is bool or -(1 << 63) <= result < 1 << 63:
                return result
            return 0 if divides else wrapped(result)  # as in floor_divide
        pair = of_a, of_b = dtype_of(a), dtype_of(b)
        found = types.get(pair)
        if found is None:
            target = type_rule(*pair)
            keeps = kind is ast.Pow and _is_float(target) and not _is_float(of_b)
            function = complex_product if kind is ast.Mult and target.kind == "c" else ufunc
            found = types[pair] = target, of_b if keeps else target, function
        to_a, to_b, function = found
        if of_a is not to_a:
            a = cast(a, to_a)
        if of_b is not to_b:
            b = cast(b, to_b)
        result = function(a, b)
        return result if type(result) is np.ndarray else plain(result)

    return apply


def complex_product(a: Value, b: Value) -> Value:
    """Each part's products and their sum are rounded one by one. NumPy may fuse them, as the
    processor does, but only in arrays."""
    a, b = np.asarray(a), np.asarray(b)
    found = np.empty(np.broadcast(a, b).shape, np.promote_types(a.dtype, b.dtype))
    found.real = a.real * b.real - a.imag * b.imag
    found.imag = a.real * b.imag + a.imag * b.real
    return found[()]


def wrapped(value: int) -> int:
    """An integer wrapped to 64 bits."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def negative(value: Value) -> Value:
    """-value: computed in the value's width, then 64 bits wide."""
    return widened(np.negative(cast(value, INT64) if dtype_of(value) == BOOL else value))


def invert(value: Value) -> Value:
    """~value: computed in the value's width, then 64 bits wide."""
    _bits_type(dtype_of(value), INT64)
    return plain(np.invert(value)) if dtype_of(value) == BOOL else widened(np.invert(value))


def widened(value: Value) -> Value:
    """+value: 64 bits wide."""
    dtype = dtype_of(value)
    wide = UINT64 if dtype.kind == "u" else INT64
    return plain(value if _has_float(dtype) else cast(value, wide))


def truth(value: object) -> Value:
    """bool(value), for each lane; of a tuple, whether it has parts."""
    if value is None or isinstance(value, tuple):
        return bool(value)
    return cast(value, BOOL)


def logical_not(value: object) -> Value:
    return plain(np.logical_not(truth(value)))


def merge(old: Value, new: Value, lanes: np.ndarray) -> np.ndarray:
    """`new` in the lanes that are set, `old` in the others, in a type that can hold both."""
    of_old, of_new = dtype_of(old), dtype_of(new)
    if of_old is of_new:
        return np.where(lanes, new, old)
    target = np.promote_types(of_old, of_new)
    return np.where(lanes, cast(new, target), cast(old, target))


# Python's and math's functions ---------------------------------------------------------------


def _smaller_or_larger(ufunc: Callable, compare: Callable) -> Callable[..., Value]:
    """min or max. Among float32 only or float64 only, a number wins over NaN, as in C; otherwise a
    comparison decides, and NaN wins if it is the first argument."""

    def function(first: Value, second: Value, *more: Value) -> Value:
        for other in (second, *more):
            pair = dtype_of(first), dtype_of(other)
            target = _not_complex(np.promote_types)(*pair)
            a, b = cast(first, target), cast(other, target)
            as_in_c = all(dtype in (FLOAT32, FLOAT64) for dtype in pair)
            first = plain(ufunc(a, b) if as_in_c else np.where(compare(b, a), b, a)[()])
        return first

    return function


def to_int(value: Value) -> Value:
    dtype = dtype_of(value)
    return cast(value, INT64) if _has_float(dtype) or dtype == BOOL else value


def to_float(value: Value) -> Value:
    return value if _is_float(dtype_of(value)) else cast(value, FLOAT64)


def to_complex(real: Value, imag: Value | None = None) -> Value:
    """complex64 of float32 only."""
    if imag is None and dtype_of(real).kind == "c":
        return cast(real, COMPLEX128)
    is_single = all(dtype_of(part) == FLOAT32 for part in (real, real if imag is None else imag))
    floats, dtype = (FLOAT32, COMPLEX64) if is_single else (FLOAT64, COMPLEX128)
    parts = (cast(part, floats) for part in (real, 0.0 if imag is None else imag))
    return np.stack(np.broadcast_arrays(*parts), axis=-1).view(dtype)[..., 0][()]


def part_of(value: Value, name: str) -> Value:
    """value.real or value.imag, of any number."""
    return plain(getattr(np.asarray(value), name).copy()[()])


def absolute(value: Value) -> Value:
    """abs(value); Numba takes a bool for an int8."""
    return plain(np.absolute(cast(value, INT8) if dtype_of(value) == BOOL else value))


def rounded(value: Value) -> Value:
    """round(value), through float64, even an integer."""
    return cast(np.rint(cast(value, FLOAT64)), INT64)


@cache
def _float_type(*dtypes: np.dtype) -> np.dtype:
    return np.result_type(*(d if _is_float(d) else FLOAT64 for d in dtypes))


def keeps_type(ufunc: Callable, type_rule: Callable = _float_type) -> Callable[..., Value]:
    """A function of math: floats keep their type, integers become float64. Of NumPy's functions,
    which take one more argument for the result, with another rule."""
    count = getattr(ufunc, "nin", None)

    def function(*values: Value) -> Value:
        if count not in (None, len(values)):
            raise Misuse(f"{ufunc.__name__} was given {len(values)} numbers, and takes {count}")
        target = type_rule(*[dtype_of(v) for v in values])
        return plain(cast(ufunc(*(cast(v, target) for v in values)), target))

    return function


def _one_by_one(function: Callable, without_value: float = math.nan) -> Callable:
    """For a function that NumPy lacks.

    without_value  the result where Python finds none
    """

    def apply(*values: float) -> float:
        try:
            return function(*values)
        except OverflowError:
            return math.inf
        except ValueError:
            return without_value

    of_all = np.vectorize(apply, otypes=[float])
    return lambda *values: of_all(*values)[()]  # of numbers it makes an array without axes


def _in_parts(ufunc: Callable) -> Callable[[Value], tuple[Value, Value]]:
    """modf or frexp: two results, of which the first keeps its type."""

    def function(value: Value) -> tuple[Value, Value]:
        return tuple(plain(part) for part in ufunc(cast(value, _float_type(dtype_of(value)))))

    return function


SAME_IN_NUMPY = (
    *("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "sin", "cos", "tan"),
    *("asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("exp2", "pow", "fabs", "fmod", "hypot", "copysign", "nextafter", "degrees", "radians"),
    *("floor", "ceil", "trunc"),  # they return floats, unlike Python's
)
MATH: dict[Callable, Callable[..., Value]] = {
    **{getattr(math, name): keeps_type(getattr(np, name)) for name in SAME_IN_NUMPY},
    math.gamma: keeps_type(
        _one_by_one(lambda x: math.gamma(x) if x else math.copysign(math.inf, x))
    ),
    math.lgamma: keeps_type(_one_by_one(math.lgamma, math.inf)),
    math.remainder: keeps_type(_one_by_one(math.remainder)),
    math.modf: _in_parts(np.modf),
    math.frexp: _in_parts(np.frexp),
    math.ldexp: lambda value, power: keeps_type(lambda x: np.ldexp(x, power))(value),
    math.isnan: lambda value: plain(np.isnan(to_float(value))),
    math.isinf: lambda value: plain(np.isinf(to_float(value))),
    math.isfinite: lambda value: plain(np.isfinite(to_float(value))),
    math.erf: keeps_type(_one_by_one(math.erf)),
    math.erfc: keeps_type(_one_by_one(math.erfc)),
    min: _smaller_or_larger(np.fmin, np.less),
    max: _smaller_or_larger(np.fmax, np.greater),
    abs: absolute,
    round: rounded,
    int: to_int,
    float: to_float,
    bool: truth,
    complex: to_complex,
}


# NumPy's functions of numbers -----------------------------------------------------------------


def _numpys_type(*dtypes: np.dtype) -> np.dtype:
    """Beside a float, an integer of any size takes the float's type."""
    if FLOAT16 in dtypes:
        raise Misuse("Numba compiles NumPy's functions for float32 and float64, not for float16")
    return np.result_type(*([d for d in dtypes if _is_float(d)] or dtypes))


def _numpys_float(*dtypes: np.dtype) -> np.dtype:
    """The same for a function of floats: integers of at most 16 bits become float32."""
    if any(map(_is_float, dtypes)):
        return _numpys_type(*dtypes)
    return FLOAT32 if all(dtype.itemsize < 4 for dtype in dtypes) else FLOAT64


# All those of floats that Numba compiles for a GPU
OF_FLOATS = (np.sin, np.cos, np.tan, np.arcsin, np.arccos, np.arctan, np.arctan2, np.hypot)
OF_FLOATS += (np.sinh, np.cosh, np.tanh, np.arcsinh, np.arccosh, np.arctanh)
OF_FLOATS += (np.log, np.log2, np.log10, np.degrees, np.radians, np.deg2rad, np.rad2deg)
OF_NUMBERS = np.maximum, np.minimum, np.fmax, np.fmin
MATH |= {
    **{ufunc: keeps_type(ufunc, _numpys_float) for ufunc in OF_FLOATS},
    **{ufunc: keeps_type(ufunc, _not_complex(_numpys_type)) for ufunc in OF_NUMBERS},
    np.isnan: MATH[math.isnan],
}
