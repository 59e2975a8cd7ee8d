"""Numbers in the simulator have the types that Numba gives them, and wrap as in C."""

import ast
import math
import operator
import re
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
from numba import cuda, int64, uint64
from numba.core import types as numba_types
from numba.np.numpy_support import from_dtype

from simt import compile_ptx, launch
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
from simt.half import COMPARISONS, HALF_FUNCTIONS
from simt.intrinsics import ATOMIC_TYPES, ATOMICS
from simt.ptx import run_ptx
from tests.simt.differential import compare
from tests.simt.helpers import kernel, zeros
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
OF_TWO = (math.atan2, math.copysign, math.fmod, math.hypot, math.nextafter, math.pow)
OF_TWO += (math.remainder,)
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


NAMES = [f"{number}-{function.__name__}" for number, (function, *_) in enumerate(TYPED)]


@pytest.mark.parametrize(("function", "apply", "allowed"), TYPED, ids=NAMES)
def test_results_have_numbas_types(function, apply, allowed: list, numba_typing) -> None:
    for dtypes in product(*allowed):
        assert ours(apply, *dtypes) == numba_typing(function, *dtypes), dtypes


def test_divmod_ranges_and_parts_have_numbas_types(numba_typing) -> None:
    for a, b in product(OF_FUNCTIONS, repeat=2):
        assert numba_typing(divmod, a, b) == f"UniTuple({divmod_type(a, b)} x 2)", (a, b)
    for dtypes in (dtypes for count in (1, 2, 3) for dtypes in product(DTYPES, repeat=count)):
        assert numba_typing(range, *dtypes) == f"range_state_{range_type(*dtypes)}", dtypes
    for dtype in FLOATS:
        parts, exponent = (dtype_of(n) for n in MATH[math.frexp](np.ones(2, dtype)))
        assert numba_typing(math.frexp, dtype) == f"Tuple({parts}, {exponent})"
        assert numba_typing(math.modf, dtype) == f"UniTuple({parts} x 2)"


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_take_the_arrays_that_numbas_take(name: str, numba_typing) -> None:
    array, function = numba_types.Array, getattr(cuda.atomic, name)
    items = {dtype: from_dtype(dtype) for dtype in DTYPES[1:]}
    types = {dtype: (array(item, 1, "C"), numba_types.int64, item) for dtype, item in items.items()}
    allowed = {dtype for dtype, three in types.items() if numba_typing(function, *three)}
    assert ATOMIC_TYPES.get(name, ATOMIC_TYPES["add"]) == allowed


HOSTILE = [-(2**63), -(2**31), -7, -2, -1, 1, 2, 3, 7, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1]


# Beside compiled code ------------------------------------------------------------------------

EDGES = [0, 0.5, 1, 1.5, 2.5, 3, 255.5, 1e-45, 5e-324, 6e-8, 1e30, 1.7e308, np.inf, np.nan]
EDGES += [
    end + step for end in (2.0**n for n in (7, 8, 15, 16, 31, 32, 63, 64)) for step in (-1, 0, 0.75)
]
EDGES += [np.nextafter(2.0**n, 0) for n in (31, 32, 63, 64)]
EDGES = np.array([*EDGES, *(-number for number in EDGES)])
NAMES = {name: getattr(numba_types, name) for name in (*INTEGERS, "float32", "complex64")}


def assert_same_bits(lines: dict[str, np.ndarray], rtol: float = 0, **arrays: np.ndarray) -> None:
    """For each line of a kernel with a place for its results, which it calls `out`: the simulator
    makes what compiled code does. Each thread takes an item of the arrays, as t."""
    count = len(next(iter(arrays.values())))
    body = [line.replace("out", f"out{n}") for n, line in enumerate(lines)]
    names = ", ".join([*(f"out{n}" for n in range(len(lines))), *arrays])
    inside = "\n    ".join(["if t < a.size:", *body])
    one = from_text("one", names, f"t = cuda.grid(1)\n{inside}", NAMES | {"np": np, "math": math})
    where = -(-count // 128), 128
    simulated, compiled = ([place.copy() for place in lines.values()] for _ in range(2))
    launch(one, *where, *simulated, *arrays.values(), checks=())
    run_ptx(one, *where, *compiled, *arrays.values(), checks=())
    for line, ours, theirs in zip(lines, simulated, compiled, strict=True):
        for part in (np.real, np.imag):  # NaN is equal to NaN
            a, b = part(ours), part(theirs)
            np.testing.assert_allclose(a, b, rtol, 1e-30 * rtol, err_msg=line)
            assert rtol or (np.signbit(a) == np.signbit(b)).all(), line


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
WHOLE_PAIRS = np.array([(a, b) for a in [0, *HOSTILE] for b in HOSTILE])
TYPES_OF_FLOATS = ("float32 float32", "float64 float64", "float64 float32")
LARGER_AND_SMALLER = ("np.maximum", "np.minimum", "np.fmax", "np.fmin", "max", "min")
OF_INTEGERS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Eq)


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize(
    "types", [*TYPES_OF_FLOATS, "int32 int64", "uint32 uint64", "int64 uint64"]
)
def test_operators_compute_as_compiled_code_does(types: str) -> None:
    """In lanes, and where all lanes agree. divmod of uint64 and a signed integer goes through
    float64, unlike // and %."""
    of_floats = "float" in types
    with np.errstate(over="ignore"):
        pairs = (PAIRS if of_floats else WHOLE_PAIRS).T
        a, b = map(cast, pairs, map(np.dtype, types.split()))
    forms = [f"a[t] {sign} b[t]" for sign in ("/", "//", "%")]
    forms += ["divmod(a[t], b[t])[0]", "divmod(a[t], b[t])[1]"]
    if of_floats:  # of 0 and -0, any is the larger
        forms += [f"{name}(a[t], b[t]) + 0.0" for name in LARGER_AND_SMALLER]
        forms += ["max(b[t], 1, a[t]) + 0.0", "min(b[t], 1, a[t]) + 0.0"]
    else:
        a, b = a[b != 0], b[b != 0]
        forms += [f"a[t] {sign} b[t]" for sign in ("+", "-", "*", "==")]
        forms += ["a[t] << (b[t] & 63)", "a[t] >> (b[t] & 63)"]
        for apply in map(binary, OF_INTEGERS):
            one_by_one = zip(map(plain, a), map(plain, b), strict=True)
            with np.errstate(all="ignore"):
                assert [apply(*one) for one in one_by_one] == apply(a, b).tolist()
    places = [np.zeros(len(a), dtype) for dtype in ("float64", "int64")[: 2 - of_floats]]
    lines = {f"out[t] = {form}  # {place.dtype}": place for form in forms for place in places}
    assert_same_bits(lines, a=a, b=b)


OF_FLOATS = [f"math.{f.__name__}(a[t])" for f in OF_MATH if f not in (*OF_TWO, math.acosh)]
OF_FLOATS += [f"math.{f.__name__}(a[t], b[t])" for f in OF_TWO]
OF_FLOATS += [f"math.{f}(b[t])[{part}]" for f in ("frexp", "modf") for part in (0, 1)]
OF_FLOATS += ["math.acosh(1 / a[t])", "math.ldexp(a[t], 3)", "np.arctan2(a[t], b[t])"]


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-6), (np.float64, 1e-13)])
def test_functions_compute_as_compiled_code_does(dtype: type, rtol: float) -> None:
    draw = np.random.default_rng(0)
    a, b = draw.uniform(0.1, 0.9, 64).astype(dtype), draw.standard_normal(64).astype(dtype)
    assert_same_bits({f"out[t] = {form}": np.zeros(64) for form in OF_FLOATS}, rtol, a=a, b=b)


@pytest.mark.needs("numba-cuda")
def test_half_precision_is_that_of_compiled_code() -> None:
    """rtol is one bit of the result: the GPU's exp, log and the like are approximations."""
    draw = np.random.default_rng(0)
    arrays = dict(zip("abc", draw.uniform(0.1, 4, (3, 64)).astype(np.float16), strict=True))
    of_two = dict.fromkeys(("add", "sub", "mul", "div", "max", "min", *COMPARISONS), "a[t], b[t]")
    given = of_two | {"fma": "a[t], b[t], c[t]"}
    names = [name.removeprefix("fp16.h") for name in HALF_FUNCTIONS]
    calls = [f"cuda.fp16.h{name}({given.get(name, 'a[t]')})" for name in names]
    lines = {f"out[t] = {call}": np.zeros(64, np.float16) for call in calls}
    assert_same_bits(lines, 1e-3, **arrays)


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("name", ["int32", "uint32", "int64", "uint64"])
def test_bits_are_counted_and_turned_as_in_compiled_code(name: str) -> None:
    functions = ("popc", "ffs", "clz", "brev")[: 4 if "u" in name else 2]
    places = {f"out[t] = cuda.{f}(a[t])": np.zeros(14, np.int64) for f in functions}
    assert_same_bits(places, a=edges_of(name))


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


@pytest.mark.needs("numba-cuda")
def test_random_expressions_have_the_bits_of_compiled_code_and_of_the_cpu() -> None:
    outcomes = Counter(outcome for outcome, _ in compare(seed=0, count=60))
    assert sum(outcomes[name] for name in outcomes if "CPU" not in name) == 60
    assert outcomes["the same bits"] > 40
    assert not any("differs" in name for name in outcomes)


# Complex numbers -----------------------------------------------------------------------------

INF, NAN = float("inf"), float("nan")
EXTREMES = [1, 1e-30j, 3e30 + 1e-30j, complex(INF, 1), complex(2, -INF), -0.0 - 2j, complex(NAN)]
FORMS = "a[t] + b[t]", "a[t] * b[t]", "a[t] / b[t]", "abs(a[t]) - b[t]"
OF_COMPLEX = (
    *("-a[t] + a[t].real", "a[t].conjugate() * 2j", "a[t].imag * t.real + t.imag", "a[t] == b[t]"),
    *("complex(t, a[t].real)", "complex(a[t].imag)", "complex64(b[t])", "t + a[t] / (1 + t)"),
    *("a[t] if t % 3 else b[t]", "1 if a[t] * (t % 3) else 2", "a[t] ** b[t]"),
)


def places(forms: tuple[str, ...], count: int) -> dict[str, np.ndarray]:
    return {f"out[t] = {form}": np.zeros(count, np.complex128) for form in forms}


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("dtypes", [("c8", "c8"), ("c16", "c16"), ("c8", "f8"), ("i2", "c8")])
def test_complex_numbers_are_those_of_compiled_code(dtypes: tuple[str, str]) -> None:
    numbers = [1, 2, -3, 300] if "i2" in dtypes else EXTREMES
    columns = np.array([*product(numbers, repeat=2)]).T
    a, b = (np.real(c) if dtype[0] != "c" else c for c, dtype in zip(columns, dtypes, strict=True))
    a, b = a.astype(dtypes[0]), np.where(b == 0, 1, b).astype(dtypes[1])
    with np.errstate(all="ignore"):
        assert_same_bits(places(FORMS, len(a)), 1e-5, a=a, b=b)


@pytest.mark.needs("numba-cuda")
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_powers_parts_and_choices_of_complex_numbers_are_those_of_compiled_code(
    dtype: type,
) -> None:
    numbers = [1, 2j, -3 + 0.5j, 0.1 - 4j, -1, 0]
    powers = [0, 1, 2, -1, 0.5, 2 - 1j, 1j, -1.5 + 0.25j]
    a, b = np.array([*product(numbers, powers)]).T.astype(dtype)
    with np.errstate(all="ignore"):
        assert_same_bits(places(OF_COMPLEX, len(a)), 1e-5, a=a, b=b)


def test_complex_products_are_rounded_part_by_part_on_every_processor() -> None:
    """Fused, as NumPy computes arrays on some, the real part of the square wouldn't be 0."""
    z = ((np.arange(32) + 0.1) / 7 * (1 + 1j)).astype(np.complex64)
    out = np.ones(32, np.complex64)
    launch(kernel("z, out", "out[t] = z[t] * z[t]"), 1, 32, z, out)
    assert not out.real.any()
    assert (out.imag == 2 * z.real * z.imag).all()


def test_arguments_variables_and_memory_hold_complex_numbers() -> None:
    body = """
        s = cuda.shared.array(32, complex64)
        z = 0
        if t % 2:
            z = c
        s[t] = z * d + e[0]
        cuda.syncthreads()
        out[t] += s[31 - t] / e[1]
    """
    out = np.full(32, 1j, np.complex64)
    one = kernel("out, c, d, e", body, complex64=NAMES["complex64"])
    arguments = out, 2j, np.complex64(1 - 1j), (1, 0.5)
    report = launch(one, 1, 32, *arguments, watch="end", names="z", trace=0, float64=True)
    odd = np.arange(31, -1, -1) % 2
    np.testing.assert_array_equal(out, 1j + (odd * (2j * (1 - 1j)) + 1) / 0.5)
    np.testing.assert_array_equal(report.snapshots[0]["z"], np.arange(32) % 2 * 2j)
    assert report.trace.only(kind="float64").num_instructions == 4


def test_only_a_lane_that_divides_by_zero_is_named() -> None:
    divided = kernel("a, b", "if t > 2:\n    a[t] = a[t] / b[t]")
    a, b = np.ones(32, np.complex64), np.zeros(32, np.complex64)
    with pytest.raises(ZeroDivisionError, match=r"thread 3 .* complex number by zero"):
        launch(divided, 1, 32, a, b)
    b[3:] = 2j
    launch(divided, 1, 32, a, b)
    assert a.tolist() == [1] * 3 + [-0.5j] * 29


# Which operations are in float64 --------------------------------------------------------------

# All but what moves a number or changes its type.
IN_FLOAT64 = re.compile(r"\s(?!cvt|ld|st|mov)(\w+)(?:\.\w+)*\.f64\s")
HALF = 0.5


@cuda.jit(device=True)
def scaled(x, by):
    return x * by


# body -> the operations in float64 of one thread; with out, a in float32, n an int64
COUNTS = {
    "out[t] = a[t] * float32(2)": 0,
    "out[t] = a[t] * 0.3": 1,
    "out[t] = a[t] * float32(HALF + 1)": 0,  # known before the kernel runs
    "out[t] = a[t] * n": 1,
    "out[t] += 0.3": 1,
    "out[t] = float32(a[t] * 0.3) + a[t]": 2,  # one operation, one conversion
    "out[t] = 1 if a[t] < 0.3 else 2": 1,
    "out[t] = math.sqrt(a[t])": 0,
    "out[t] = math.sqrt(n)": 1,
    "out[t] = max(a[t], 0.3)": 1,
    "out[t] = n / 3": 1,
    "out[t] = n // 3": 0,
    "out[t] = 1 if int64(n) < uint64(t) else 2": 1,  # no integer holds both
    "out[t] = scaled(a[t], 0.3)": 1,
    "s = 0.0\nfor i in range(4):\n    s += a[i]\nout[t] = s": 4,
}


def made(body: str) -> Callable:
    names = {"HALF": HALF, "math": math, "int64": int64, "uint64": uint64, "scaled": scaled}
    return kernel("out, a, n", body, **names)


@pytest.mark.parametrize("body", COUNTS)
def test_an_operation_in_float64_is_in_the_trace(body: str) -> None:
    """And the compiler makes as many, or joins two."""
    arguments = zeros(32), np.ones(32, np.float32), 5
    report = launch(made(body), 1, 32, *arguments, trace=0, float64=True)
    assert report.trace.only(kind="float64").num_instructions == COUNTS[body]
    if find_spec("numba_cuda"):
        found = IN_FLOAT64.findall(compile_ptx(made(body), *arguments))
        assert bool(COUNTS[body]) <= len(found) <= COUNTS[body], found


def test_the_lanes_at_work_in_each_warp_count_if_asked() -> None:
    arguments = made("if t < 41:\n    out[t] = a[t] * n"), 2, 64, zeros(64), zeros(64), 5
    found = launch(*arguments, trace="all", checks=(), float64=True).trace.only(kind="float64")
    assert (found.num_instructions, len(found.threads)) == (4, 82)
    assert not len(launch(*arguments, trace="all", checks=()).trace.only(kind="float64"))
