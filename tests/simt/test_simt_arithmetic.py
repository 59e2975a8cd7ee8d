"""Numbers in the simulator have the types that Numba gives them, and wrap as in C."""

import ast
import math
import operator
import sys
import warnings
from collections import Counter
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
from numba import cuda, njit
from numba.core import types as numba_types
from numba.core.types import Array, int64
from numba.np.numpy_support import from_dtype

from simt import Unsupported, launch, simulate
from simt.arithmetic import (
    MATH,
    OPERATORS,
    binary,
    cast,
    divmod_type,
    dtype_of,
    invert,
    negative,
    plain,
    range_type,
    widened,
)
from simt.intrinsics import ATOMIC_TYPES, ATOMICS
from simt.ptx import run_ptx
from tests.simt.differential import compare
from tests.simt.kernels.example import from_text

DTYPES = [np.dtype(name) for name in ("bool", "int8", "int16", "int32", "int64")]
DTYPES += [np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")]
DTYPES += [np.dtype(name) for name in ("float16", "float32", "float64")]
COMPLEX = [np.dtype("complex64"), np.dtype("complex128")]
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
    for a, b in product(DTYPES + COMPLEX, repeat=2):
        assert ours(apply, a, b) == numba_typing(python, a, b), (a, b)


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
    for dtype in OF_FUNCTIONS + COMPLEX:
        if (function, dtype.kind) == (float, "b"):
            continue  # Numba has none
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


OF_NUMPY = [f for f in MATH if isinstance(f, np.ufunc)]


@pytest.mark.parametrize("function", OF_NUMPY, ids=lambda ufunc: ufunc.__name__)
def test_functions_of_numpy_have_numbas_types(function: np.ufunc, numba_typing) -> None:
    for dtypes in product([d for d in DTYPES if d != np.float16], repeat=function.nin):
        assert ours(MATH[function], *dtypes) == numba_typing(function, *dtypes), dtypes


@pytest.mark.needs("numba-cuda")
def test_numba_compiles_no_other_function_of_numpy_that_math_has() -> None:
    from numba.cuda.ufuncs import get_ufunc_info

    def compiles(function: np.ufunc) -> bool:
        try:
            return bool(get_ufunc_info(function))
        except KeyError:
            return False

    ufuncs = {one for one in vars(np).values() if isinstance(one, np.ufunc)}
    in_both = {one for one in ufuncs if getattr(math, one.__name__, None) in MATH}
    assert {one for one in in_both if compiles(one)} <= set(OF_NUMPY)
    assert all(map(compiles, OF_NUMPY))
    assert np.exp in in_both - set(OF_NUMPY)
    assert not compiles(np.exp)


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


def through_float64(number: int, types: tuple[str, str]) -> int:
    """As numba.cuda returns a power of integers with Python 3.11."""
    limits = np.iinfo("uint64" if all(name.startswith("u") for name in types) else "int64")
    return min(max(int(float(number)), limits.min), limits.max)


@pytest.mark.rest(keep=["int64 int64-*", "uint32 int64-*", "int64 uint64-*", "uint64 uint32-*"])
@pytest.mark.parametrize("node", RIGHT, ids=lambda node: node.__name__)
@of_each_pair
def test_integers_compute_as_numba_does_on_a_cpu(node: type, types: tuple[str, str]) -> None:
    python, apply = OPERATORS[node][0], binary(node)
    compiled = njit(error_model="numpy")(lambda a, b: python(a, b))
    left, right = pairs_of(types, RIGHT[node])
    expected = [compiled(a, b) for a, b in zip(left, right, strict=True)]
    if node is ast.Pow and sys.version_info < (3, 12):
        expected = [through_float64(number, types) for number in expected]
    with np.errstate(all="ignore"):
        assert apply(left, right).tolist() == expected
        one_by_one = zip(map(plain, left), map(plain, right), strict=True)
        assert [apply(a, b) for a, b in one_by_one] == expected


@cuda.jit
def divided(quotients, remainders, a, b):
    i = cuda.grid(1)
    if i < a.size:
        quotients[i], remainders[i] = divmod(a[i], b[i])


@pytest.mark.rest(keep=["uint32 int64"])
@pytest.mark.parametrize(
    "types",
    [t for t in product(OF_32_AND_64_BITS, repeat=2) if divmod_type(*map(np.dtype, t)).kind != "f"],
    ids=lambda types: " ".join(types),
)
def test_divmod_of_integers_computes_as_numba_does_on_a_cpu(types: tuple[str, str]) -> None:
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


# Beside compiled code ------------------------------------------------------------------------

EDGES = [0, 0.5, 1, 1.5, 2.5, 3, 255.5, 1e-45, 5e-324, 6e-8, 1e30, 1.7e308, np.inf, np.nan]
EDGES += [
    end + step for end in (2.0**n for n in (7, 8, 15, 16, 31, 32, 63, 64)) for step in (-1, 0, 0.75)
]
EDGES += [np.nextafter(2.0**n, 0) for n in (31, 32, 63, 64)]
EDGES = np.array([*EDGES, *(-number for number in EDGES)])
INTEGERS = [d.name for d in DTYPES if d.kind in "iu"]
NAMES = {name: getattr(numba_types, name) for name in (*INTEGERS, "float32")}


def both(lines: dict[str, np.ndarray], **arrays: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each line of a kernel with a place for its results, which it calls `out`: what the
    simulator and what compiled code makes of it. Each thread takes an item of the arrays, as t."""
    count = len(next(iter(arrays.values())))
    body = [line.replace("out", f"out{n}") for n, line in enumerate(lines)]
    names = ", ".join([*(f"out{n}" for n in range(len(lines))), *arrays])
    inside = "\n    ".join(["if t < a.size:", *body])
    one = from_text("one", names, f"t = cuda.grid(1)\n{inside}", NAMES | {"np": np})
    where, found = (-(-count // 128), 128), []
    for run in (launch, run_ptx):
        out = [place.copy() for place in lines.values()]
        run(one, *where, *out, *arrays.values(), checks=())
        found.append(out)
    return [*zip(*found, strict=True)]


def assert_same_bits(lines: dict[str, np.ndarray], **arrays: np.ndarray) -> None:
    for line, (simulated, compiled) in zip(lines, both(lines, **arrays), strict=True):
        np.testing.assert_array_equal(simulated, compiled, line)  # NaN is equal to NaN
        np.testing.assert_array_equal(np.signbit(simulated), np.signbit(compiled), line)


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_a_float_becomes_the_integer_that_compiled_code_makes_of_it(name: str) -> None:
    with np.errstate(over="ignore"):
        a = EDGES.astype(name)
    places = {d: np.zeros(len(a), d) for d in INTEGERS}
    lines = {f"out[t] = {d}(a[t])": places[d] for d in INTEGERS}
    lines |= {f"out[t] = a[t]  # {d}": places[d] for d in INTEGERS}
    lines |= {
        f"cuda.atomic.max(out, t, a[t])  # {d}": places[d] for d in ("int32", "uint32", "int64")
    }
    lines |= {"out[t] = int(a[t])": places["int64"], "out[t] = np.uint16(a[t])": places["uint16"]}
    if name != "float16":
        lines |= {"out[t] = round(a[t])": places["int64"]}
    assert_same_bits(lines, a=a)


@pytest.mark.parametrize(
    ("value", "types", "expected"),
    [
        (2 * 10.0 - 100, "float64 uint8", 0),
        (300.0, "float32 uint8", 44),
        (-200.0, "float32 int8", 56),
        (1e10, "float64 int8", -1),
        (3e9, "float64 int32", 2**31 - 1),
        (-2.5, "float64 uint32", 0),
        (-2.5, "float64 int32", -2),
        (np.inf, "float32 int64", 2**63 - 1),
        (-np.inf, "float64 int64", -(2**63)),
        (2.0**63, "float64 uint64", 2**63),
        (1e30, "float32 uint64", 2**64 - 1),
        (np.nan, "float32 int32", 0),
        (np.nan, "float64 int32", -(2**31)),
        (300.0, "float16 uint8", 255),
        (2.5, "float16 int8", 2),
    ],
)
def test_a_float_out_of_range_becomes_the_same_integer_on_every_machine(
    value: float, types: str, expected: int
) -> None:
    """NumPy raises where the processor decides."""
    old, new = map(np.dtype, types.split())
    with np.errstate(all="raise"):
        assert cast(old.type(value), new) == expected
        assert cast(np.array([0, value], old), new).tolist() == [0, expected]


PAIRS = np.array([*product([*EDGES[::2], 0.007, 0.1, 12345.678], repeat=2)])


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_remainders_and_quotients_of_floats_are_those_of_compiled_code(name: str) -> None:
    with np.errstate(over="ignore"):
        a, b = PAIRS.T.astype(name)
    forms = ("a[t] % b[t]", "a[t] // b[t]", "divmod(a[t], b[t])[0]", "divmod(a[t], b[t])[1]")
    assert_same_bits({f"out[t] = {form}": np.zeros_like(a) for form in forms}, a=a, b=b)


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("types", ["float32 float32", "float64 float32", "int32 float32"])
def test_the_larger_and_the_smaller_in_numpy_are_those_of_compiled_code(types: str) -> None:
    with np.errstate(over="ignore"):
        a, b = map(cast, PAIRS.T, map(np.dtype, types.split()))
    forms = ("maximum", "minimum", "fmax", "fmin")
    lines = {f"out[t] = np.{form}(a[t], b[t])": np.zeros(len(a)) for form in forms}
    lines |= {"out[t] = np.isnan(a[t])": np.zeros(len(a), bool)}
    for line, (simulated, compiled) in zip(lines, both(lines, a=a, b=b), strict=True):
        np.testing.assert_array_equal(simulated, compiled, line)


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("types", ["int64 uint64", "uint64 int64"])
def test_divmod_of_unsigned_and_signed_64_bits_goes_through_float64(types: str) -> None:
    a, b = pairs_of(types.split(), HOSTILE)
    forms = ("divmod(a[t], b[t])[0]", "divmod(a[t], b[t])[1]")
    assert_same_bits({f"out[t] = {form}": np.zeros(len(a)) for form in forms}, a=a, b=b)


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("name", ["int64", "uint64", "float32", "float64"])
def test_a_power_is_multiplied_as_in_compiled_code(name: str) -> None:
    bases = [0, 1, 2, 3, 7, 10, 2**53 + 1] if name.startswith("u") else [-3, -1, 0, 1, 3, 7]
    powers = [0, 1, 2, 38, 40, 63, 70_000] + [-1, -3, -70_001] * (name != "uint64")
    a, b = np.meshgrid(np.array(bases, name), np.array(powers))
    a, b = a.ravel() * a.dtype.type(1 if a.dtype.kind != "f" else 0.37), b.ravel()
    b = b.astype(np.uint32 if name == "uint64" else np.int64)
    forms = ("a[t] ** b[t]", "a[t] ** 38", "a[t] ** 3", "pow(a[t], b[t])")
    assert_same_bits({f"out[t] = {form}": np.zeros_like(a) for form in forms}, a=a, b=b)


def test_a_power_of_integers_goes_through_float64_with_python_3_11() -> None:
    rounded = 1350851717672992000
    with np.errstate(all="ignore"):
        assert binary(ast.Pow)(3, 38) == (rounded if sys.version_info < (3, 12) else 3**38)
        assert binary(ast.Pow)(np.array([10]), np.array([70_000]))[0] == 2**63 - 1
        assert binary(ast.Pow)(np.array([-1.0]), np.array([-128], np.int8)) == 1


@pytest.mark.needs("numba-cuda")
def test_round_of_an_integer_goes_through_float64() -> None:
    numbers = np.array([2**53 + 1, 2**63 - 1, -(2**53) - 1, 5])
    lines = {"out[t] = round(a[t])": numbers, "out[t] = round(b[t])": numbers}
    assert_same_bits(lines, a=numbers, b=numbers.view(np.uint64))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_range_counts_in_numbas_types(count: int, numba_typing) -> None:
    for dtypes in product(DTYPES, repeat=count):
        assert numba_typing(range, *dtypes) == f"range_state_{range_type(*dtypes)}", dtypes


@pytest.mark.needs("numba-cuda")
def test_ranges_of_all_types_turn_as_in_compiled_code() -> None:
    a, b = np.array([2.9, -3.5, 9, 0.5, 0]), np.array([5, 9, -4, 2, 0], np.int8)
    big = np.array([7, 12, 2, 1, 0], np.uint64)
    bounds = ["a[t]", "a[t], 5.5", "5, a[t], -1", "b[t]", "c[t]", "c[t], b[t], -1", "b[t], c[t], 2"]
    assert_same_bits(
        {
            f"for i in range({one}): out[t] += (i + 1) * float32(0.1)": np.zeros(len(a))
            for one in bounds
        },
        a=a, b=b, c=big,
    )  # fmt: skip


def test_a_range_whose_step_is_0_is_refused() -> None:
    one = from_text("one", "out, a", "for i in range(5, out[0], a[0]): out[0] = i", {})
    with pytest.raises(Unsupported, match="thread 0 of thread block 0 gives range a step of 0"):
        launch(one, 1, 1, np.zeros(1, np.int64), np.zeros(1, np.int64))


@pytest.mark.needs("numba-cuda")
def test_random_expressions_have_the_bits_of_compiled_code_and_of_the_cpu() -> None:
    outcomes = Counter(outcome for outcome, _ in compare(seed=0, count=60))
    assert sum(outcomes[name] for name in outcomes if "CPU" not in name) == 60
    assert outcomes["the same bits"] > 40
    assert not any("differs" in name for name in outcomes)


def test_a_variable_of_three_types_keeps_the_value_of_each_lane() -> None:
    body = "t = cuda.threadIdx.x\nif t < 8: x = 1\nelif t < 16: x = 2.5\nelse: x = float32(0.5)"
    one = from_text("one", "out", f"{body}\nout[t] = x", NAMES)
    out = np.zeros(32)
    launch(one, 1, 32, out)
    assert out.tolist() == [1] * 8 + [2.5] * 8 + [0.5] * 16
