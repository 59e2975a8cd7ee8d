"""Numbers: what Numba makes of operators, of operands of two types, of casts and of functions.

Each kernel computes its expressions of x, y and z, which are elements of the arrays a, b and c. The
results stand in 64 bits, wider than most of them need, so that a rounding or a wrap shows.
"""

import math
from collections.abc import Callable

import numba
import numpy as np

from simt.arithmetic import MATH
from tests.simt.kernels.example import Arguments, example, from_text

N = 100  # two blocks of 64 threads, the second one not full
OFFSET = -7
WEYL = 0x9E3779B97F4A7C15  # an unsigned number of 64 bits
NAMES = {"numba": numba, "np": np, "math": math, "OFFSET": OFFSET, "WEYL": WEYL}
Draw = Callable[[np.random.Generator], np.ndarray]


def wide(numbers: np.ndarray) -> np.ndarray:
    kinds = {"f": np.float64, "c": np.complex128}
    return numbers.astype(kinds.get(numbers.dtype.kind, np.int64))


def each(
    name: str, draws: tuple[Draw, ...], expressions: dict[str, Callable], rtol: float = 0.0
) -> None:
    """Registers a kernel: row k of its last argument is the k-th expression.

    draws        one array of N numbers each, for x, y and z
    expressions  in CUDA -> the same of NumPy arrays x, y and z
    """

    def answer(*arrays: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.stack([wide(function(*arrays)) for function in expressions.values()])

    def arguments(rng: np.random.Generator) -> Arguments:
        inputs = [draw(rng) for draw in draws]
        return *inputs, np.full_like(answer(*inputs), 99)

    arrays = "abc"[: len(draws)]
    lines = ["i = cuda.grid(1)", f"if i < {N}:"]
    lines += [f"    {x} = {array}[i]" for x, array in zip("xyz", arrays, strict=False)]
    lines += [f"    out[{k}, i] = {text}" for k, text in enumerate(expressions)]
    kernel = from_text(name, ", ".join([*arrays, "out"]), "\n".join(lines), NAMES)
    answers = lambda *args: {len(draws): answer(*args[:-1])}  # noqa: E731
    example(2, 64, arguments, answers, rtol=rtol)(kernel)


def floats(dtype: type = np.float32) -> Draw:
    return lambda rng: rng.standard_normal(N).astype(dtype)


def complexes(dtype: type) -> Draw:
    return lambda rng: (rng.standard_normal(N) + 1j * rng.standard_normal(N)).astype(dtype)


def integers(dtype: type = np.int32) -> Draw:
    """Numbers of the whole range of the type, its ends and zero among them."""
    lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max

    def draw(rng: np.random.Generator) -> np.ndarray:
        numbers = rng.integers(lowest, highest, N, dtype, endpoint=True)
        numbers[rng.choice(N, 3, replace=False)] = lowest, 0, highest
        return numbers

    return draw


def small(dtype: type = np.int32) -> Draw:
    """Numbers from -9 to 9 without 0."""
    return lambda rng: (rng.integers(1, 10, N) * rng.choice([-1, 1], N)).astype(dtype)


# Operators -----------------------------------------------------------------------------------

each(
    "float32_with_literals",
    (floats(),),
    {
        "x * 0.1": lambda x: wide(x) * 0.1,
        "x * numba.float32(0.1)": lambda x: x * np.float32(0.1),
        "x * -3": lambda x: wide(x) * -3,
        "x + OFFSET": lambda x: wide(x) + OFFSET,
        "x**2": lambda x: x * x,
        "cuda.fma(x, x, -(x * x))": lambda x: np.float32(wide(x) * wide(x) - wide(x * x)),
    },
)
each(
    "float32_with_integers",
    (floats(), integers(), integers(np.int16)),
    {
        "x + y": lambda x, y, z: wide(x) + y,
        "z / x": lambda x, y, z: z.astype(np.float32) / x,
    },
)
each(
    "uint32_with_uint32_is_uint64",
    (integers(np.uint32), integers(np.uint32)),
    {
        "(x - y) >> 1": lambda x, y: (wide(x) - y).astype(np.uint64) >> 1,
        "numba.uint64(x) * WEYL": lambda x, y: x.astype(np.uint64) * np.uint64(WEYL),
    },
)
each(
    "signs_shifts_and_casts",
    (integers(), integers(np.uint32), lambda rng: floats()(rng) * 1000),
    {
        "-y": lambda x, y, z: -y,
        "~numba.uint8(x)": lambda x, y, z: ~x.astype(np.uint8),
        "y << 4": lambda x, y, z: wide(y) * 16,
        "(1 << 63) / 2": lambda x, y, z: np.full(N, 2.0**62),
        "divmod(x, WEYL)[0]": lambda x, y, z: np.floor(x / WEYL),
        "bool(x) + (z > 1)": lambda x, y, z: (x != 0) * 1 + (z > 1),
    },
)

# Functions -----------------------------------------------------------------------------------

OF_TWO = (math.atan2, math.copysign, math.fmod, math.hypot, math.nextafter, math.pow)
OF_TWO += (math.remainder,)
OTHERS = (math.frexp, math.ldexp, math.modf)
OF_ONE = [f for f in MATH if f.__module__ == "math" and f not in (math.acosh, *OF_TWO, *OTHERS)]


def one_by_one(function: Callable, *numbers: np.ndarray) -> np.ndarray:
    return np.vectorize(function, otypes=[float])(*numbers)


each(
    "math_functions",
    (lambda rng: rng.uniform(0.1, 0.9, N).astype(np.float32), floats()),
    {f"math.{f.__name__}(x)": lambda x, y, f=f: one_by_one(f, x) for f in OF_ONE}
    | {f"math.{f.__name__}(x, y)": lambda x, y, f=f: one_by_one(f, x, y) for f in OF_TWO}
    | {"math.acosh(1 / x)": lambda x, y: np.arccosh(1 / wide(x))}
    | {f"math.frexp(y)[{i}]": lambda x, y, i=i: np.frexp(y)[i] for i in (0, 1)}
    | {f"math.modf(y)[{i}]": lambda x, y, i=i: np.modf(y)[i] for i in (0, 1)}
    | {"math.ldexp(x, 3)": lambda x, y: x * 8, "np.arctan2(x, y)": np.arctan2},
    rtol=1e-5,
)


def of_bits(function: Callable[[str], int]) -> Callable[[np.ndarray], np.ndarray]:
    """A function of the bits of each number, as text."""
    return lambda x: np.array(
        [function(np.binary_repr(int(n), x.dtype.itemsize * 8)) for n in x], np.uint64
    )


BITS = {
    "cuda.popc(x)": of_bits(lambda bits: bits.count("1")),
    "cuda.ffs(x)": of_bits(lambda bits: len(bits) - bits.rfind("1") if "1" in bits else 0),
    "cuda.clz(x)": of_bits(lambda bits: (bits + "1").find("1")),
    "cuda.brev(x)": of_bits(lambda bits: int(bits[::-1], 2)),
}
each("bits_of_32", (integers(np.uint32),), BITS)
each("bits_of_64", (integers(np.uint64),), BITS)


# Complex numbers -----------------------------------------------------------------------------

each(
    "complex_numbers_of_both_sizes",
    (complexes(np.complex64), complexes(np.complex128), small(np.int16)),
    {
        "x * x + y": lambda x, y, z: x * x + y,
        "numba.float32(z) / x": lambda x, y, z: z.astype(np.float32) / x,
        "-x": lambda x, y, z: -x,
        "x.conjugate() * 2j": lambda x, y, z: x.real * 2j + x.imag * 2,
        "abs(y) + x.real": lambda x, y, z: np.hypot(y.real, y.imag) + x.real,
        "x.imag * z.real + z.imag": lambda x, y, z: x.imag * z,
        "complex(z, x.real)": lambda x, y, z: z + 1j * x.real,
        "complex(x.imag)": lambda x, y, z: x.imag,
        "np.complex64(y)": lambda x, y, z: y.astype(np.complex64),
        "y ** x": lambda x, y, z: np.exp(x * np.log(y)),
        "x == x * 1": lambda x, y, z: np.full(N, True),
        "y if z > 2 else x": lambda x, y, z: np.where(z > 2, y, x),
        "1 if x * (z - 3) else 2": lambda x, y, z: np.where(z == 3, 2, 1),
    },
    rtol=1e-6,
)
