"""Numbers in the simulator have the types that Numba gives them, and wrap as in C."""

import ast
import math
import operator
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
from numba import cuda, njit
from numba.core import types as numba_types
from numba.np.numpy_support import from_dtype

from simt import Unsupported, launch
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
from tests.simt.kernels.arithmetic import OF_TWO
from tests.simt.kernels.example import from_text

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = [np.dtype("float32"), np.dtype("float64")]
DTYPES = [*map(np.dtype, ("bool", *INTEGERS, "float16")), *FLOATS]
COMPLEX = [np.dtype("complex64"), np.dtype("complex128")]
WITHOUT_HALF = [d for d in DTYPES if d != np.float16]
# Numba without numba-cuda has no min, max and int of half precision.
OF_FUNCTIONS = DTYPES if find_spec("numba_cuda") else WITHOUT_HALF
NUMBERS = OF_FUNCTIONS + COMPLEX


@pytest.fixture(scope="module")
def numba_typing() -> Callable[..., str | None]:
    """Numba's own rules: an operator and types in, the type of the result out."""
    from numba.cuda.target import CUDATypingContext

    context = CUDATypingContext()
    context.refresh()

    def result(function: object, *types: object) -> str | None:
        args = tuple(from_dtype(t) if isinstance(t, np.dtype) else t for t in types)
        try:
            return str(context.resolve_function_type(function, args, {}).return_type)
        except Exception:  # Numba has many errors for "no such operation"
            return None

    return result


@np.errstate(all="ignore")
def ours(apply: Callable, *dtypes: np.dtype) -> str | None:
    """The type that the simulator computes, in lanes and where all lanes agree."""
    try:
        lanes = apply(*(np.ones(2, d) for d in dtypes))
        same = apply(*(cast(1, d) for d in dtypes))
    except TypeError:
        return None
    assert dtype_of(lanes) == dtype_of(same)
    return str(dtype_of(lanes))


OF_NUMPY = [f for f in MATH if isinstance(f, np.ufunc)]
IN_PARTS = (math.frexp, math.modf, math.ldexp)
OF_MATH = [f for f in MATH if f.__module__ == "math" and f not in IN_PARTS]
# A function, the simulator's for it, and the types that each argument may have
TYPED = [
    *((python, binary(node), [DTYPES + COMPLEX] * 2) for node, (python, *_) in OPERATORS.items()),
    (operator.neg, negative, [NUMBERS]),
    (operator.pos, widened, [NUMBERS]),
    (operator.invert, invert, [NUMBERS]),
    (float, MATH[float], [NUMBERS[1:]]),  # Numba has none of a bool
    *((f, MATH[f], [NUMBERS]) for f in (abs, int, bool, round)),
    *((f, MATH[f], [OF_FUNCTIONS[1:]] * 2) for f in (min, max)),
    *((complex, MATH[complex], [WITHOUT_HALF[1:]] * count) for count in (1, 2)),
    *((f, MATH[f], [FLOATS] * (2 if f in OF_TWO else 1)) for f in OF_MATH),
    *((f, MATH[f], [WITHOUT_HALF] * f.nin) for f in OF_NUMPY),
]


@pytest.mark.parametrize(("function", "apply", "allowed"), TYPED, ids=lambda x: f"{x}"[:30])
def test_results_have_numbas_types(function, apply, allowed: list, numba_typing) -> None:
    for dtypes in product(*allowed):
        assert ours(apply, *dtypes) == numba_typing(function, *dtypes), dtypes


def test_divmod_and_ranges_have_numbas_types(numba_typing) -> None:
    for a, b in product(OF_FUNCTIONS, repeat=2):
        assert numba_typing(divmod, a, b) == f"UniTuple({divmod_type(a, b)} x 2)", (a, b)
    for dtypes in (dtypes for count in (1, 2, 3) for dtypes in product(DTYPES, repeat=count)):
        assert numba_typing(range, *dtypes) == f"range_state_{range_type(*dtypes)}", dtypes


@pytest.mark.parametrize("dtype", FLOATS)
def test_parts_of_a_float_have_numbas_types(dtype: np.dtype, numba_typing) -> None:
    exponent, of_modf = ([dtype_of(n) for n in MATH[f](np.ones(2, dtype))] for f in IN_PARTS[:2])
    assert numba_typing(math.frexp, dtype) == "Tuple({}, {})".format(*exponent)
    assert numba_typing(math.modf, dtype) == "UniTuple({} x 2)".format(*set(of_modf))
    assert ours(MATH[math.ldexp], dtype, np.dtype(np.int32)) == str(dtype)


@pytest.mark.needs("numba-cuda")
def test_numba_compiles_no_other_function_of_numpy_that_math_has() -> None:
    from numba.cuda.ufuncs import get_ufunc_info

    ufuncs = {one for one in vars(np).values() if isinstance(one, np.ufunc)}
    for function in {one for one in ufuncs if getattr(math, one.__name__, None) in MATH}:
        if function not in OF_NUMPY:
            with pytest.raises(KeyError):
                get_ufunc_info(function)
    assert all(map(get_ufunc_info, OF_NUMPY))


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_take_the_arrays_that_numbas_take(name: str, numba_typing) -> None:
    array, function = numba_types.Array, getattr(cuda.atomic, name)
    items = {dtype: from_dtype(dtype) for dtype in DTYPES[1:]}
    types = {dtype: (array(item, 1, "C"), numba_types.int64, item) for dtype, item in items.items()}
    allowed = {dtype for dtype, three in types.items() if numba_typing(function, *three)}
    assert ATOMIC_TYPES.get(name, ATOMIC_TYPES["add"]) == allowed


HOSTILE = [-(2**63), -(2**31), -7, -2, -1, 1, 2, 3, 7, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1]
OF_32_AND_64_BITS = ("int32", "uint32", "int64", "uint64")
WITH_HOSTILE = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Eq)
RIGHT = {
    **dict.fromkeys(WITH_HOSTILE, HOSTILE),
    ast.LShift: [0, 1, 5, 31, 63],
    ast.RShift: [0, 1, 5, 31, 63],
    ast.Pow: [-3, -2, -1, 0, 1, 2, 3, 40, 100],
}


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
@pytest.mark.parametrize("types", [*product(OF_32_AND_64_BITS, repeat=2)], ids=" ".join)
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


# Beside compiled code ------------------------------------------------------------------------

EDGES = [0, 0.5, 1, 1.5, 2.5, 3, 255.5, 1e-45, 5e-324, 6e-8, 1e30, 1.7e308, np.inf, np.nan]
EDGES += [
    end + step for end in (2.0**n for n in (7, 8, 15, 16, 31, 32, 63, 64)) for step in (-1, 0, 0.75)
]
EDGES += [np.nextafter(2.0**n, 0) for n in (31, 32, 63, 64)]
EDGES = np.array([*EDGES, *(-number for number in EDGES)])
NAMES = {name: getattr(numba_types, name) for name in (*INTEGERS, "float32")}


def assert_same_bits(lines: dict[str, np.ndarray], **arrays: np.ndarray) -> None:
    """For each line of a kernel with a place for its results, which it calls `out`: the simulator
    makes what compiled code does. Each thread takes an item of the arrays, as t."""
    count = len(next(iter(arrays.values())))
    body = [line.replace("out", f"out{n}") for n, line in enumerate(lines)]
    names = ", ".join([*(f"out{n}" for n in range(len(lines))), *arrays])
    inside = "\n    ".join(["if t < a.size:", *body])
    one = from_text("one", names, f"t = cuda.grid(1)\n{inside}", NAMES | {"np": np})
    where = -(-count // 128), 128
    simulated, compiled = ([place.copy() for place in lines.values()] for _ in range(2))
    launch(one, *where, *simulated, *arrays.values(), checks=())
    run_ptx(one, *where, *compiled, *arrays.values(), checks=())
    for line, ours, theirs in zip(lines, simulated, compiled, strict=True):
        np.testing.assert_array_equal(ours, theirs, line)  # NaN is equal to NaN
        np.testing.assert_array_equal(np.signbit(ours), np.signbit(theirs), line)


def edges_of(name: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        return EDGES.astype(name) if "f" in name else cast(np.array([0, *HOSTILE]), np.dtype(name))


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("name", ["float16", "float32", "float64", "uint8", "int64", "uint64"])
def test_a_number_becomes_the_integer_that_compiled_code_makes_of_it(name: str) -> None:
    a = edges_of(name)
    places = {d: np.zeros(len(a), d) for d in INTEGERS}
    lines = {f"out[t] = {d}(a[t])": places[d] for d in INTEGERS}
    lines |= {f"out[t] = a[t]  # {d}": places[d] for d in INTEGERS}
    lines |= {"out[t] = int(a[t])": places["int64"], "out[t] = np.uint16(a[t])": places["uint16"]}
    if name != "float16":
        lines |= {"out[t] = round(a[t])": places["int64"]}
    if "int" in name:
        lines |= {"out[t] = -a[t]": places["int64"], "out[t] = ~a[t]": places["int64"]}
    else:
        atomic = "cuda.atomic.max(out, t, a[t])"
        lines |= {f"{atomic}  # {d}": places[d] for d in ("int32", "uint32", "int64")}
    assert_same_bits(lines, a=a)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_a_float_out_of_range_becomes_the_same_integer_on_every_machine(name: str) -> None:
    """NumPy raises where the processor decides."""
    a = edges_of(name)
    with np.errstate(all="raise"):
        for dtype in map(np.dtype, INTEGERS):
            assert cast(a, dtype).tolist() == [cast(number, dtype) for number in a]


PAIRS = np.array([*product([*EDGES[::2], 0.007, 0.1, 12345.678], repeat=2)])


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize(
    "types", ["float32 float32", "float64 float64", "uint32 int64", "int64 uint64"]
)
def test_remainders_and_quotients_are_those_of_compiled_code(types: str) -> None:
    """divmod of uint64 and a signed integer goes through float64, unlike // and %."""
    dtypes = [*map(np.dtype, types.split())]
    with np.errstate(over="ignore"):
        columns = PAIRS.T if "float" in types else pairs_of(types.split(), HOSTILE)
        a, b = (column.astype(dtype) for column, dtype in zip(columns, dtypes, strict=True))
    if "float" not in types:
        a, b = a[b != 0], b[b != 0]
    forms = ["a[t] % b[t]", "a[t] // b[t]", "divmod(a[t], b[t])[0]", "divmod(a[t], b[t])[1]"]
    forms += ["a[t] / b[t]"] * ("float" in types)
    out = np.zeros(len(a), divmod_type(*dtypes))
    assert_same_bits({f"out[t] = {form}": out for form in forms}, a=a, b=b)


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("types", ["float32 float32", "float64 float32", "int32 float32"])
def test_the_larger_and_the_smaller_are_those_of_compiled_code(types: str) -> None:
    with np.errstate(over="ignore"):
        a, b = map(cast, PAIRS.T, map(np.dtype, types.split()))
    functions = ("np.maximum", "np.minimum", "np.fmax", "np.fmin", "max", "min")
    lines = {f"out[t] = {name}(a[t], b[t]) + 0.0": np.zeros(len(a)) for name in functions}
    lines |= {f"out[t] = {name}(b[t], 1, a[t]) + 0.0": np.zeros(len(a)) for name in functions[4:]}
    assert_same_bits(lines, a=a, b=b)  # of 0 and -0, any is the larger


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("name", ["int64", "uint64", "float32", "float64"])
def test_a_power_is_multiplied_as_in_compiled_code(name: str) -> None:
    """Negative powers of 8 bits, too: -128 has no opposite there."""
    bases = [0, 1, 2, 3, 7, 10, 2**53 + 1] if name == "uint64" else [-3, -1, 0, 1, 3, 7]
    powers = [0, 1, 2, 38, 40, 63, 70_000] + [-1, -3, -128, -70_001] * (name != "uint64")
    a, b = np.meshgrid(np.array(bases, name), np.array(powers))
    a, b = a.ravel() * a.dtype.type(1 if a.dtype.kind != "f" else 0.37), b.ravel()
    b = b.astype(np.uint32 if name == "uint64" else np.int64)
    forms = ("a[t] ** b[t]", "a[t] ** 38", "a[t] ** int8(b[t])", "pow(a[t], b[t])")
    assert_same_bits({f"out[t] = {form}": np.zeros_like(a) for form in forms}, a=a, b=b)


@pytest.mark.needs("numba-cuda")
def test_ranges_of_all_types_turn_as_in_compiled_code() -> None:
    a, b = np.array([2.9, -3.5, 9, 0.5, 0]), np.array([5, 9, -4, 2, 0], np.int8)
    big = np.array([7, 12, 2, 1, 0], np.uint64)
    bounds = ["a[t]", "a[t], 5.5", "5, a[t], -1", "b[t]", "c[t]", "c[t], b[t], -1", "b[t], c[t], 2"]
    lines = [f"for i in range({one}): out[t] += (i + 1) * float32(0.1)" for one in bounds]
    assert_same_bits({line: np.zeros(len(a)) for line in lines}, a=a, b=b, c=big)


def test_a_range_whose_step_is_0_is_refused() -> None:
    one = from_text("one", "out, a", "for i in range(5, out[0], a[0]): out[0] = i", {})
    with pytest.raises(Unsupported, match=r"thread 0 of .* a step of 0"):
        launch(one, 1, 1, np.zeros(1, np.int64), np.zeros(1, np.int64))


@pytest.mark.needs("numba-cuda")
def test_random_expressions_have_the_bits_of_compiled_code_and_of_the_cpu() -> None:
    outcomes = Counter(outcome for outcome, _ in compare(seed=0, count=60))
    assert sum(outcomes[name] for name in outcomes if "CPU" not in name) == 60
    assert outcomes["the same bits"] > 40
    assert not any("differs" in name for name in outcomes)
