"""Numbers in the simulator have the types that Numba gives them, and wrap as in C."""

import ast
import math
import operator
import warnings
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
from numba import cuda, njit
from numba.core.types import Array, int64
from numba.np.numpy_support import from_dtype

from pa_tutorial.simt import simulate
from pa_tutorial.simt.arithmetic import (
    MATH,
    OPERATORS,
    binary,
    cast,
    divmod_type,
    dtype_of,
    invert,
    negative,
    plain,
    widened,
)
from pa_tutorial.simt.intrinsics import ATOMIC_TYPES, ATOMICS

DTYPES = [np.dtype(name) for name in ("bool", "int8", "int16", "int32", "int64")]
DTYPES += [np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")]
DTYPES += [np.dtype(name) for name in ("float16", "float32", "float64")]
# Numba without numba-cuda has no min, max and int of half precision.
OF_FUNCTIONS = [d for d in DTYPES if find_spec("numba_cuda") or d != np.float16]


@pytest.fixture(scope="module")
def numba_typing():
    """Numba's own rules: an operator and types in, the type of the result out."""
    from numba.cuda.target import CUDATypingContext

    context = CUDATypingContext()
    context.refresh()

    def result(function: object, *dtypes: np.dtype) -> str | None:
        args = tuple(from_dtype(d) for d in dtypes)
        try:
            return str(context.resolve_function_type(function, args, {}).return_type)
        except Exception:  # Numba has many errors for "no such operation"
            return None

    return result


def ours(apply: object, *dtypes: np.dtype) -> str | None:
    """The type that the simulator computes, in lanes and where all lanes agree."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lanes = apply(*(np.ones(2, d) for d in dtypes))
            same = apply(*(cast(1, d) for d in dtypes))
    except TypeError:
        return None
    assert dtype_of(lanes) == dtype_of(same)
    return str(dtype_of(lanes))


@pytest.mark.parametrize("node", OPERATORS, ids=lambda node: node.__name__)
def test_operators_have_numbas_types(node: type, numba_typing) -> None:
    python = OPERATORS[node][0]
    apply = binary(node)
    for a in DTYPES:
        for b in DTYPES:
            expected = numba_typing(python, a, b)
            assert ours(apply, a, b) == expected, (a, b)


def test_divmod_has_numbas_types(numba_typing) -> None:
    for a, b in product(OF_FUNCTIONS, repeat=2):
        assert numba_typing(divmod, a, b) == f"UniTuple({divmod_type(a, b)} x 2)", (a, b)


@pytest.mark.parametrize(
    ("function", "apply"),
    [
        (operator.neg, negative),
        (operator.pos, widened),
        (operator.invert, invert),
        *((f, MATH[f]) for f in (abs, int, float, bool, round)),
    ],
)
def test_functions_of_one_number_have_numbas_types(function, apply, numba_typing) -> None:
    for dtype in OF_FUNCTIONS:
        if (function, dtype.kind) in ((float, "b"), (abs, "b"), (round, "b")):
            continue  # Numba has none, or turns the bool into some integer first
        assert ours(apply, dtype) == numba_typing(function, dtype), dtype


@pytest.mark.parametrize("function", [min, max])
def test_minimum_and_maximum_have_numbas_types(function, numba_typing) -> None:
    for a in OF_FUNCTIONS[1:]:
        for b in OF_FUNCTIONS[1:]:
            assert ours(MATH[function], a, b) == numba_typing(function, a, b), (a, b)


IN_PARTS = (math.frexp, math.modf)
OF_TWO = (math.fmod, math.hypot, math.copysign, math.pow, math.atan2, math.nextafter)
OF_TWO += (math.remainder,)


@pytest.mark.parametrize(
    "function", [f for f in MATH if f.__module__ == "math" and f not in (*IN_PARTS, math.ldexp)]
)
def test_functions_of_math_keep_the_type_of_a_float(function, numba_typing) -> None:
    count = 2 if function in OF_TWO else 1
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        expected = numba_typing(function, *[dtype] * count)
        assert ours(MATH[function], *[dtype] * count) == expected, dtype


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_take_the_arrays_that_numbas_take(name: str) -> None:
    from numba.cuda.target import CUDATypingContext

    context = CUDATypingContext()
    context.refresh()
    allowed = set()
    for dtype in DTYPES[1:]:
        item = from_dtype(dtype)
        arguments = Array(item, 1, "C"), int64, item
        if context.resolve_function_type(getattr(cuda.atomic, name), arguments, {}) is not None:
            allowed.add(dtype)
    assert ATOMIC_TYPES.get(name, ATOMIC_TYPES["add"]) == allowed


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float64)])
def test_parts_of_a_float_have_numbas_types(dtype: np.dtype, numba_typing) -> None:
    assert numba_typing(math.frexp, dtype) == f"Tuple({dtype}, int32)"
    assert numba_typing(math.modf, dtype) == f"UniTuple({dtype} x 2)"
    one = np.ones(2, dtype)
    assert [dtype_of(part) for part in MATH[math.frexp](one)] == [dtype, np.int32]
    assert [dtype_of(part) for part in MATH[math.modf](one)] == [dtype, dtype]
    assert ours(MATH[math.ldexp], dtype, np.dtype(np.int32)) == str(dtype)


def test_compare_of_unsigned_and_signed_64_bits_goes_through_float64() -> None:
    big = np.uint64(2**63 + 1)
    assert binary(ast.Eq)(big, 2**63 - 1)  # both are 2.0 ** 63 as a float64


HOSTILE = [-(2**63), -(2**31), -7, -2, -1, 1, 2, 3, 7, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1]
OF_32_AND_64_BITS = ("int32", "uint32", "int64", "uint64")
RIGHT = {
    **dict.fromkeys((ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod), HOSTILE),
    ast.LShift: [0, 1, 5, 31, 63],
    ast.RShift: [0, 1, 5, 31, 63],
    ast.Pow: [-3, -2, -1, 0, 1, 2, 3, 40, 100],
}
of_each_pair = pytest.mark.parametrize(
    "types", [*product(OF_32_AND_64_BITS, repeat=2)], ids=lambda types: " ".join(types)
)


def pairs_of(types: tuple[str, str], numbers: list[int]) -> list[np.ndarray]:
    """Each hostile number beside each of `numbers`, as these types have them."""
    low = -(2**63) if types[1].startswith("i") or numbers is HOSTILE else 0
    both = [0, *HOSTILE], [number for number in numbers if number >= low]
    columns = [cast(np.array(c), np.dtype(t)) for c, t in zip(both, types, strict=True)]
    return [column.ravel() for column in np.meshgrid(*columns)]


@pytest.mark.parametrize("node", RIGHT, ids=lambda node: node.__name__)
@of_each_pair
def test_integers_compute_as_numba_does_on_a_cpu(node: type, types: tuple[str, str]) -> None:
    python, apply = OPERATORS[node][0], binary(node)
    compiled = njit(error_model="numpy")(lambda a, b: python(a, b))
    left, right = pairs_of(types, RIGHT[node])
    expected = [compiled(a, b) for a, b in zip(left, right, strict=True)]
    with np.errstate(all="ignore"):
        assert apply(left, right).tolist() == expected
        one_by_one = zip(map(plain, left), map(plain, right), strict=True)
        assert [apply(a, b) for a, b in one_by_one] == expected


@cuda.jit
def divided(quotients, remainders, a, b):
    i = cuda.grid(1)
    if i < a.size:
        quotients[i], remainders[i] = divmod(a[i], b[i])


@of_each_pair
def test_divmod_computes_as_numba_does_on_a_cpu(types: tuple[str, str]) -> None:
    left, right = pairs_of(types, HOSTILE)
    left, right = left[right != 0], right[right != 0]
    compiled = njit(error_model="numpy")(lambda a, b: divmod(a, b))
    expected = [compiled(a, b) for a, b in zip(left, right, strict=True)]
    found = np.zeros((2, left.size), divmod_type(left.dtype, right.dtype))
    with simulate(checks=()):
        divided[1, 256](*found, left, right)
    assert [*zip(*found.tolist(), strict=True)] == expected


@pytest.mark.parametrize("name", [d.name for d in DTYPES if d.kind in "iu"])
@pytest.mark.parametrize(("python", "apply"), [(operator.neg, negative), (operator.invert, invert)])
def test_signs_and_bits_change_as_numba_changes_them(name: str, python, apply) -> None:
    numbers = cast(np.array([0, *HOSTILE]), np.dtype(name))
    compiled = njit(lambda a: python(a))
    expected = [compiled(number) for number in numbers]
    with np.errstate(all="ignore"):
        assert apply(numbers).tolist() == expected


@pytest.mark.parametrize("value", [300, -1, 2**31, -(2**31) - 1, 2**40 + 5])
@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64"])
def test_casts_of_integers_wrap(value: int, name: str) -> None:
    bits = 8 * np.dtype(name).itemsize
    expected = value % 2**bits
    if name.startswith("int") and expected >= 2 ** (bits - 1):
        expected -= 2**bits
    assert cast(value, np.dtype(name)) == expected
    assert cast(np.array([value]), np.dtype(name))[0] == expected
