"""Numbers as Numba types them.

NumPy and Numba promote differently: `float32 * 0.5` is a float32 to NumPy and a float64 to
Numba; `int32 + int32` is an int32 to NumPy and an int64 to Numba. A value here is either one
number for all lanes (int, float and bool are int64, float64 and bool; anything else is a NumPy
scalar) or a NumPy array with one number per lane.

Source: Numba's typing, as tests/simt/test_simt_arithmetic.py reads it from numba.cuda itself.

Known differences. Here a variable has the type of the value last assigned to it; Numba finds one
type for every value that could reach a use, even along a path that no thread takes. Float % and //
are NumPy's; Numba's can differ where a quotient is almost whole. Multiplication and addition are
rounded separately; Numba may fuse them. Integers to a power above 65,536 wrap; Numba computes those
as floats, and casting a float that is too large to an integer differs between CPU and GPU.
"""

import ast
import math
import operator
from collections.abc import Callable
from functools import cache

import numpy as np

BOOL, INT64, UINT64 = np.dtype(bool), np.dtype(np.int64), np.dtype(np.uint64)
FLOAT16, FLOAT32, FLOAT64 = (np.dtype(f"float{bits}") for bits in (16, 32, 64))
TYPES = {np.dtype(code).type: np.dtype(code) for code in "?bhilqBHILQefd"}
TYPES |= {bool: BOOL, int: INT64, float: FLOAT64}
DTYPES = frozenset(TYPES.values())  # all that a kernel can compute with
LOWEST = -(1 << 63)  # of int64
OF_PYTHON = frozenset((BOOL, INT64, FLOAT64))  # kept as Python numbers where all lanes agree

Value = bool | int | float | np.generic | np.ndarray


def dtype_of(value: Value) -> np.dtype:
    kind = type(value)
    if kind is np.ndarray:  # first, because it is the most common case and this function is hot
        return value.dtype
    if kind in TYPES:
        return TYPES[kind]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype
    raise TypeError(f"{value} is not a number")


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
    """Converts as C does: integers wrap, floats are truncated towards zero."""
    old = dtype_of(value)
    if old is dtype or old == dtype:
        return value
    if old == FLOAT16 and dtype.kind in "iu":
        value = np.rint(value)  # Numba's conversion of half precision rounds
    if not isinstance(value, np.ndarray):
        value = np.array(value, old)
    converted = value.astype(dtype)
    return converted if converted.ndim else plain(converted[()])


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f"


def with_float(a: np.dtype, b: np.dtype) -> np.dtype:
    """The type of an operation with at least one float."""
    kinds = [d if _is_float(d) else _float_for(d) for d in (a, b)]
    return np.promote_types(*kinds)


def _float_for(integer: np.dtype) -> np.dtype:
    """What an integer becomes next to a float: Numba picks the nearest conversion."""
    if integer in (BOOL, np.int8):
        return FLOAT16
    return FLOAT32 if integer in (np.uint8, np.int16) else FLOAT64


def arithmetic_type(a: np.dtype, b: np.dtype) -> np.dtype:
    """Integers become 64 bits wide, unsigned only if both are. Of two floats, the wider type."""
    if _is_float(a) or _is_float(b):
        return with_float(a, b)
    return UINT64 if a.kind == b.kind == "u" else INT64


def _divided_type(a: np.dtype, b: np.dtype) -> np.dtype:
    return with_float(a, b) if _is_float(a) or _is_float(b) else FLOAT64


def _at_least_float32(a: np.dtype, b: np.dtype) -> np.dtype:
    """// and % have no half-precision form."""
    found = arithmetic_type(a, b)
    return FLOAT32 if found == FLOAT16 else found


def _power_type(a: np.dtype, b: np.dtype) -> np.dtype:
    """A float to an integer power keeps its type; for a bool, Numba may choose a float."""
    if a == BOOL and b == np.int32:
        return FLOAT32
    if _is_float(a) and not _is_float(b):
        return np.promote_types(a, FLOAT32)
    return _at_least_float32(a, b)


def _bits_type(a: np.dtype, b: np.dtype) -> np.dtype:
    if _is_float(a) or _is_float(b):
        raise TypeError(f"bit operations need integers, not {a} and {b}")
    return BOOL if a == b == BOOL else arithmetic_type(a, b)


def _shift_type(a: np.dtype, b: np.dtype) -> np.dtype:
    _bits_type(a, b)
    return UINT64 if a.kind == "u" else INT64


def divmod_type(a: np.dtype, b: np.dtype) -> np.dtype:
    """Unlike // and %, uint64 and a signed integer become float64."""
    if _is_float(a) or _is_float(b):
        return _at_least_float32(a, b)
    return {"f": FLOAT64, "u": UINT64}.get(np.promote_types(a, b).kind, INT64)


def power(a: Value, b: Value) -> Value:
    """a ** b. Integers wrap; to a negative power, 0 gives the lowest integer, most others 0."""
    if dtype_of(a) != INT64:
        return np.power(a, b)
    negative_power = np.where(np.abs(a) == 1, np.power(a, b & 1), np.where(a == 0, LOWEST, 0))
    return np.where(b < 0, negative_power, np.power(a, np.maximum(b, 0)))[()]


def floor_divide(a: Value, b: Value) -> Value:
    """a // b. The lowest integer divided by -1 would be too large; Numba returns 0."""
    quotient = np.floor_divide(a, b)
    if dtype_of(quotient) != INT64 or (type(b) is int and b != -1):
        return quotient
    return np.where(np.equal(quotient, LOWEST) & np.equal(b, -1), 0, quotient)[()]


# Python's operator, NumPy's, and the type that both operands are converted to
OPERATORS: dict[type, tuple[Callable, Callable, Callable]] = {
    ast.Add: (operator.add, np.add, arithmetic_type),
    ast.Sub: (operator.sub, np.subtract, arithmetic_type),
    ast.Mult: (operator.mul, np.multiply, arithmetic_type),
    ast.Div: (operator.truediv, np.true_divide, _divided_type),
    ast.FloorDiv: (operator.floordiv, floor_divide, _at_least_float32),
    ast.Mod: (operator.mod, np.remainder, _at_least_float32),
    ast.Pow: (operator.pow, power, _power_type),
    ast.LShift: (operator.lshift, np.left_shift, _shift_type),
    ast.RShift: (operator.rshift, np.right_shift, _shift_type),
    ast.BitAnd: (operator.and_, np.bitwise_and, _bits_type),
    ast.BitOr: (operator.or_, np.bitwise_or, _bits_type),
    ast.BitXor: (operator.xor, np.bitwise_xor, _bits_type),
    ast.Lt: (operator.lt, np.less, np.promote_types),
    ast.LtE: (operator.le, np.less_equal, np.promote_types),
    ast.Gt: (operator.gt, np.greater, np.promote_types),
    ast.GtE: (operator.ge, np.greater_equal, np.promote_types),
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
    types: dict[tuple[np.dtype, np.dtype], np.dtype] = {}  # each is looked up once

    def apply(a: Value, b: Value) -> Value:
        if on_integers and type(a) is int and type(b) is int and not (divides and b == 0):
            result = python(a, b)
            if type(result) is bool or -(1 << 63) <= result < 1 << 63:
                return result
            return 0 if divides else wrapped(result)  # as in floor_divide
        pair = of_a, of_b = dtype_of(a), dtype_of(b)
        target = types.get(pair)
        if target is None:
            target = types[pair] = type_rule(*pair)
        if of_a is not target:
            a = cast(a, target)
        if of_b is not target:
            b = cast(b, target)
        result = ufunc(a, b)
        return result if type(result) is np.ndarray else plain(result)

    return apply


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
    return plain(value if _is_float(dtype) else cast(value, wide))


def truth(value: Value) -> Value:
    """bool(value), for each lane."""
    return cast(value, BOOL)


def logical_not(value: Value) -> Value:
    return plain(np.logical_not(value))


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
            target = np.promote_types(*pair)
            a, b = cast(first, target), cast(other, target)
            as_in_c = all(dtype in (FLOAT32, FLOAT64) for dtype in pair)
            first = plain(ufunc(a, b) if as_in_c else np.where(compare(b, a), b, a)[()])
        return first

    return function


def to_int(value: Value) -> Value:
    dtype = dtype_of(value)
    return cast(value, INT64) if _is_float(dtype) or dtype == BOOL else value


def to_float(value: Value) -> Value:
    return value if _is_float(dtype_of(value)) else cast(value, FLOAT64)


def round_to_int(value: Value) -> Value:
    return cast(np.rint(value), INT64) if _is_float(dtype_of(value)) else cast(value, INT64)


@cache
def _float_type(*dtypes: np.dtype) -> np.dtype:
    return np.result_type(*(d if _is_float(d) else FLOAT64 for d in dtypes))


def keeps_type(ufunc: Callable) -> Callable[..., Value]:
    """A function of math: floats keep their type, integers become float64."""

    def function(*values: Value) -> Value:
        target = _float_type(*[dtype_of(v) for v in values])
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

    return np.vectorize(apply, otypes=[float])


def _in_parts(ufunc: Callable) -> Callable[[Value], tuple[Value, Value]]:
    """modf or frexp: two results, of which the first keeps its type."""

    def function(value: Value) -> tuple[Value, Value]:
        return tuple(plain(part) for part in ufunc(cast(value, _float_type(dtype_of(value)))))

    return function


SAME_IN_NUMPY = (
    *("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "sin", "cos", "tan"),
    *("sinh", "cosh", "tanh", "fabs", "fmod", "hypot", "copysign", "degrees", "radians"),
    *("floor", "ceil", "trunc"),  # they return floats, unlike Python's
)
MATH: dict[Callable, Callable[..., Value]] = {
    **{getattr(math, name): keeps_type(getattr(np, name)) for name in SAME_IN_NUMPY},
    math.asin: keeps_type(np.arcsin),
    math.acos: keeps_type(np.arccos),
    math.atan: keeps_type(np.arctan),
    math.atan2: keeps_type(np.arctan2),
    math.asinh: keeps_type(np.arcsinh),
    math.acosh: keeps_type(np.arccosh),
    math.atanh: keeps_type(np.arctanh),
    math.pow: keeps_type(np.power),
    math.exp2: keeps_type(np.exp2),
    math.gamma: keeps_type(
        _one_by_one(lambda x: math.gamma(x) if x else math.copysign(math.inf, x))
    ),
    math.lgamma: keeps_type(_one_by_one(math.lgamma, math.inf)),
    math.nextafter: keeps_type(np.nextafter),
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
    abs: lambda value: plain(np.absolute(value)),
    round: round_to_int,
    int: to_int,
    float: to_float,
    bool: truth,
}
