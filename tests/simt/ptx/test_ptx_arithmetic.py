"""Each instruction against exact arithmetic: Python's integers and fractions."""

import math
import operator
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from simt.ptx.numbers import DTYPES
from tests.simt.ptx.small_kernels import computed

DRAW = np.random.default_rng(0)
DISTANCES = np.array([0, 1, 5, 7, 15, 16, 31, 32, 33, 63, 64, 200, 255], np.uint32)


def integers(type_: str, num: int = 40) -> np.ndarray:
    """The ends of the range and numbers of all sizes."""
    dtype = DTYPES[type_]
    limits = np.iinfo(dtype)
    ends = [0, 1, 2, 3, 31, limits.max, limits.max - 1, limits.min, limits.max // 2 + 1]
    ends += [-1, -2, -17] if limits.min < 0 else []
    bits = [int(n) >> int(s) for n, s in zip(
        DRAW.integers(limits.min, limits.max, num, dtype, endpoint=True),
        DRAW.integers(0, limits.bits, num), strict=True)]  # fmt: skip
    return DRAW.permutation(np.array(ends + bits, dtype))


def wrapped(number: int, type_: str) -> int:
    bits = 8 * DTYPES[type_].itemsize
    number &= (1 << bits) - 1
    return number - (1 << bits) if type_[0] == "s" and number >> bits - 1 else number


def clipped(number: int, type_: str) -> int:
    limits = np.iinfo(DTYPES[type_])
    return min(max(number, int(limits.min)), int(limits.max))


def of_24_bits(a: int, b: int, c: int = 0, *, half: str, type_: str) -> int:
    """mul24: of the 48 bits of a product, the low 32 or the high 32."""
    a, b = ((x + 2**23) % 2**24 - 2**23 if type_[0] == "s" else x % 2**24 for x in (a, b))
    return (a * b if half == "lo" else a * b >> 16) + c


def permuted(a: int, b: int, selector: int) -> int:
    pool, result = b << 32 | a, 0
    for place in range(4):
        nibble = selector >> 4 * place & 15
        byte = pool >> 8 * (nibble & 7) & 255
        byte = (255 if byte & 128 else 0) if nibble & 8 else byte
        result |= byte << 8 * place
    return result


def field(a: int, first: int, count: int, *, is_signed: bool) -> int:
    """bfe: beyond the register there are zeros, or copies of the sign."""
    piece = a >> first & (1 << count) - 1
    return piece - (1 << count) if is_signed and count and piece >> count - 1 else piece


def inserted(a: int, b: int, first: int, count: int) -> int:
    mask = (1 << count) - 1 << first
    return b & ~mask | a << first & mask


def leading(a: int) -> int:
    """How many bits there are up to the highest that differs from the sign."""
    return (~a if a < 0 else a).bit_length()


def pieces(number: int, type_: str, bits: int) -> list[int]:
    each = [number >> at & (1 << bits) - 1 for at in range(0, 32, bits)]
    return [x - (1 << bits) if type_ == "s32" and x >> bits - 1 else x for x in each]


def dot(a: int, b: int, c: int, name: str, types: tuple[str, str]) -> int:
    size, first = (8, 0) if name == "dp4a" else (16, 2 if name.endswith("hi") else 0)
    left, right = pieces(a, types[0], size), pieces(b, types[1], 8)[first:]
    return c + sum(p * q for p, q in zip(left, right, strict=False))


# As the specification's tables have them: for each of c's low two bits, the bytes of the result
# from the highest on.
MODES = {
    "f4e": "3210 4321 5432 6543", "b4e": "5670 6701 7012 0123", "rc8": "0000 1111 2222 3333",
    "ecl": "3210 3211 3222 3333", "ecr": "0000 1110 2210 3210", "rc16": "1010 3232 1010 3232",
}  # fmt: skip
OF_TWO = {"add": operator.add, "sub": operator.sub, "mul.lo": operator.mul, "min": min, "max": max}


def cases() -> Iterator[tuple[str, str, Callable]]:
    """An instruction, the types of its result and operands, and what it is to compute. A type n is
    that of a distance or a number of bits."""
    for t in ("u16", "s32", "s64", "u64"):
        for name, exact in OF_TWO.items():
            yield f"{name}.{t}", f"{t} {t} {t}", exact
        yield f"mad.lo.{t}", f"{t} {t} {t} {t}", lambda a, b, c: a * b + c
        yield f"sad.{t}", f"{t} {t} {t} {t}", lambda a, b, c: abs(a - b) + c
        yield f"shr.{t}", f"{t} {t} n", operator.rshift
    for t in ("u32", "s32", "u64", "s64"):
        bits = int(t[1:])
        yield f"mul.hi.{t}", f"{t} {t} {t}", lambda a, b, bits=bits: a * b >> bits
        yield f"bfind.{t}", f"u32 {t}", lambda a: leading(a) - 1
        yield (f"bfind.shiftamt.{t}", f"u32 {t}",
               lambda a, bits=bits: bits - leading(a) if leading(a) else -1)  # fmt: skip
        yield f"bfe.{t}", f"{t} {t} n n", partial(field, is_signed=t[0] == "s")
    yield "mad.hi.u32", "u32 u32 u32 u32", lambda a, b, c: (a * b >> 32) + c
    for half, t in product(("lo", "hi"), ("u32", "s32")):
        exact = partial(of_24_bits, half=half, type_=t)
        yield f"mul24.{half}.{t}", f"{t} {t} {t}", exact
        yield f"mad24.{half}.{t}", f"{t} {t} {t} {t}", exact
    for t in ("b16", "b32", "b64"):
        yield f"shl.{t}", f"{t} {t} n", operator.lshift
    for t in ("b32", "b64"):
        yield f"bfi.{t}", f"{t} {t} {t} n n", inserted
    yield "prmt.b32", "b32 b32 b32 b32", permuted
    for mode, rows in MODES.items():
        yield (f"prmt.b32.{mode}", "b32 b32 b32 b32",
               lambda a, b, c, rows=rows: permuted(a, b, int(rows.split()[c & 3], 16)))  # fmt: skip
    table = 0xF0 & 0xCC ^ ~0xAA & 0xFF
    lop3 = f"lop3.b32 {{d}}, {{0}}, {{1}}, {{2}}, {table:#x}"
    yield lop3, "b32 b32 b32 b32", lambda a, b, c: a & b ^ ~c
    yield "shf.r.wrap.b32", "b32 b32 b32 n", lambda a, b, n: (b << 32 | a) >> (n & 31)
    yield "shf.r.clamp.b32", "b32 b32 b32 n", lambda a, b, n: (b << 32 | a) >> min(n, 32)
    yield "shf.l.wrap.b32", "b32 b32 b32 n", lambda a, b, n: (b << 32 | a) << (n & 31) >> 32
    for name, *types in product(("dp4a", "dp2a.lo", "dp2a.hi"), ("u32", "s32"), ("u32", "s32")):
        yield f"{name}.{'.'.join(types)}", "b32 b32 b32 b32", partial(dot, name=name, types=types)
    for target, source in (("u8", "s32"), ("s8", "s32"), ("u16", "s16"), ("s32", "u64"),
                           ("u64", "s64"), ("s16", "u32")):  # fmt: skip
        register = {"u8": "u16", "s8": "s16"}.get(target, target)
        yield f"cvt.sat.{target}.{source}", f"{register} {source}", partial(clipped, type_=target)


INTEGER_CASES = list(cases())


@pytest.mark.parametrize(
    ("name", "types", "exact"), INTEGER_CASES, ids=[name for name, *_ in INTEGER_CASES]
)
def test_integers_are_exact_and_wrap(name: str, types: str, exact: Callable) -> None:
    result, *given = types.split()
    sizes = len(integers(given[0]))
    operands = [(t, integers(t)) if t != "n" else ("u32", DRAW.choice(DISTANCES, sizes))
                for t in given]  # fmt: skip
    operands = [(t, items[:sizes]) for t, items in operands]
    got = computed(name, result, *operands)
    rows = zip(*(items.tolist() for _, items in operands), strict=True)
    assert got.tolist() == [wrapped(exact(*row), result) for row in rows]


# Of two numbers in %r2 and %r3, and in %r4 and %r5, the low part first -> the one in %r2 and %r3.
CARRIES = {
    "add.cc.u32 %r2, %r2, %r4; addc.u32 %r3, %r3, %r5": operator.add,
    "sub.cc.u32 %r2, %r2, %r4; subc.u32 %r3, %r3, %r5": operator.sub,
    "add.cc.u32 %r2, %r2, %r4; addc.cc.u32 %r3, %r3, %r5; addc.u32 %r2, 0, 0; mov.u32 %r3, 0":
        lambda a, b: a + b >> 64,
    "sub.cc.u32 %r2, %r2, %r4; subc.cc.u32 %r3, %r3, %r5; subc.u32 %r2, 0, 0; mov.u32 %r3, %r2":
        lambda a, b: a - b >> 64,
    "mad.lo.cc.u32 %r6, %r2, %r4, %r3; madc.hi.u32 %r3, %r2, %r4, 0; mov.u32 %r2, %r6":
        lambda a, b: (a % 2**32) * (b % 2**32) + (a >> 32),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "exact"), CARRIES.items(), ids=CARRIES)
def test_a_carry_goes_from_one_instruction_to_the_next(steps: str, exact: Callable) -> None:
    a, b = integers("u64"), integers("u64")
    b[::2] = a[::2]  # so that some differences are 0
    taken_apart = "mov.b64 {{%r2, %r3}}, {0}; mov.b64 {{%r4, %r5}}, {1}; "
    put_together = "; mov.b64 {d}, {{%r2, %r3}}"
    got = computed(taken_apart + steps + put_together, "u64", ("u64", a), ("u64", b))
    rows = zip(a.tolist(), b.tolist(), strict=True)
    assert got.tolist() == [wrapped(exact(*row), "u64") for row in rows]


def test_a_carry_is_each_threads_own_and_stays_where_nothing_sets_it() -> None:
    a = np.uint32([0, 1, 2**32 - 1])
    lines = "setp.ne.u32 %p1, {0}, 1; mov.u32 %r20, 5; @%p1 add.cc.u32 %r20, {0}, 1; "
    got = computed(lines + "add.u32 %r21, %r20, %r20; addc.u32 {d}, %r20, 0", "u32", ("u32", a))
    assert got.tolist() == [1, 5, 1]


# Floating point ----------------------------------------------------------------------------------

FLOATS = {
    **{"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64},
    **{"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2},
}
# Digits, the exponent of the least number, and what is too large to be one.
RANGES = {
    "f16": (11, -24, 2.0**16), "bf16": (8, -133, 2.0**128), "f32": (24, -149, 2.0**128),
    "f64": (53, -1074, Fraction(2) ** 1024), "e4m3": (4, -9, 512), "e5m2": (3, -16, 2.0**16),
}  # fmt: skip
WAYS = {"rn": round, "rz": math.trunc, "rm": math.floor, "rp": math.ceil}


def floats(dtype: type, num: int = 200) -> np.ndarray:
    """Numbers of any size, subnormal ones too, without NaN and infinity."""
    size = np.dtype(dtype).itemsize
    bits = DRAW.integers(0, 1 << 8 * size, 4 * num, dtype=np.uint64).astype(f"u{size}")
    found = bits.view(dtype)
    with np.errstate(invalid="ignore"):  # which a NaN of bfloat16 is
        return found[np.isfinite(found)][:num]


def near(dtype: type, num: int = 200) -> np.ndarray:
    """Numbers around 1, so that sums cancel and round."""
    return (DRAW.standard_normal(num) * 2.0 ** DRAW.integers(-12, 12, num)).astype(dtype)


def rounded(exact: Fraction, type_: str, how: Callable = round) -> float:
    """To the nearest number of a type, ties to even; or as another function makes integers."""
    if exact == 0:
        return 0.0
    digits, least, largest = RANGES[type_]
    exponent = math.floor(math.log2(abs(exact.numerator)) - math.log2(exact.denominator))
    while Fraction(2) ** (exponent + 1) <= abs(exact):
        exponent += 1
    while Fraction(2) ** exponent > abs(exact):
        exponent -= 1
    step = Fraction(2) ** max(exponent - digits + 1, least)
    number = how(exact / step) * step
    if abs(number) >= largest:
        if how == math.trunc or how == (math.floor if exact > 0 else math.ceil):
            return math.copysign(float(np.finfo(FLOATS[type_]).max), -1 if exact < 0 else 1)
        return math.inf if exact > 0 else -math.inf
    return float(number)


def same(got: np.ndarray, want: list[float]) -> bool:
    return np.array_equal(got.astype(np.float64) + 0.0, np.array(want) + 0.0, equal_nan=True)


def root(x: Fraction) -> Fraction:
    """The square root, or a number between the same two floats."""
    whole = math.isqrt(x.numerator * x.denominator << 400)
    is_exact = whole**2 == x.numerator * x.denominator << 400
    return Fraction(2 * whole + (not is_exact), x.denominator << 201)


EXACT = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "fma": lambda x, y, z: x * y + z, "div": lambda x, y: x / y, "rcp": lambda x: 1 / x,
    "sqrt": root,
}  # fmt: skip
ROUNDED = [*product(EXACT, ("f32", "f64"), WAYS),
           *product(("add", "sub", "mul", "fma"), ("f16", "bf16"), ["rn"])]  # fmt: skip


@pytest.mark.parametrize(("name", "type_", "how"), ROUNDED)
def test_a_result_is_rounded_once_to_nearest_or_to_one_side(
    name: str, type_: str, how: str
) -> None:
    """Of all sizes, so that some are too large, too small, or exact."""
    exact, dtype = EXACT[name], FLOATS[type_]
    count = exact.__code__.co_argcount
    operands = [np.concatenate([floats(dtype), near(dtype)]) for _ in range(count)]
    operands[-1][::5] = 2.0 ** DRAW.integers(-3, 3, len(operands[-1][::5]))
    operands[0][:2] = ml_dtypes.finfo(dtype).max
    if name == "sqrt":
        operands = [np.abs(operands[0])]
    if name == "fma":
        a, b, c = operands
        with np.errstate(all="ignore"):
            c[::3] = -(a * b)[::3]  # all but the error of the product cancels
        c[~np.isfinite(c)] = 0
    got = computed(f"{name}.{how}.{type_}", type_, *((type_, x) for x in operands))
    rows = zip(*(x.astype(np.float64).tolist() for x in operands), strict=True)
    want = [rounded(exact(*map(Fraction, row)), type_, WAYS[how]) for row in rows]
    assert same(got.view(dtype), want)


# Of the last of each, a part would be lost on the way through float32 or float64.
HARD = {
    "f32": [65519.99, 65520, np.inf],
    "f64": [1 + 2.0**-11 + 2.0**-40, -1 - 2.0**-8 - 2.0**-40, 1 + 2.0**-11, 2.0**-25 + 2.0**-60],
    "s32": [2**30 + 2**22 + 1, 2**30 + 2**22, -(2**30) - 2**22 - 1, 2049, 0],
    "s64": [2**60 + 2**52 + 1, -(2**60) - 2**52 - 1, 2**60 + 2**52, -1, 0, 2**63 - 1],
}
CONVERTED = [*product(("f16", "bf16"), HARD, ["rn"]),
             *((*types, how) for types in (("f32", "f64"), ("f32", "s64"), ("f64", "u64"))
               for how in WAYS)]  # fmt: skip


@pytest.mark.parametrize(("target", "source", "how"), CONVERTED)
def test_a_conversion_is_rounded_once(target: str, source: str, how: str) -> None:
    dtype = DTYPES[source]
    drawn = [*floats(dtype), *near(dtype)] if source[0] == "f" else integers(source)
    a = np.array([*HARD.get(source, ()), *drawn], dtype)
    got = computed(f"cvt.{how}.{target}.{source}", target, (source, a))
    assert same(
        got.view(FLOATS[target]),
        [rounded(Fraction(x), target, WAYS[how]) if math.isfinite(x) else x for x in a.tolist()],
    )


@pytest.mark.parametrize("type_", ["e4m3", "e5m2"])
def test_floats_of_8_bits_have_their_values_and_are_rounded_to_nearest(type_: str) -> None:
    """Every number there is, every tie between two, numbers beside them, and all sizes; what is too
    large becomes the largest."""
    dtype, codes = FLOATS[type_], np.arange(256, dtype=np.uint8)
    pairs = np.stack([codes, DRAW.permutation(codes)], 1)
    given = "u16", pairs.view(np.uint16)[:, 0]
    got = computed(f"cvt.rn.f16x2.{type_}x2", "f16x2", given).view(np.float16)
    assert same(got, pairs.view(dtype).astype(np.float64).reshape(-1).tolist())

    numbers = codes[:128].view(dtype).astype(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    ties = (numbers[1:] + numbers[:-1]) / 2
    beside = [np.nextafter(ties, np.float32(side)) for side in (0, np.inf)]
    sizes = np.concatenate([numbers, ties, *beside, near(np.float32), np.float32([np.inf, 1e6])])
    a = sizes * DRAW.choice(np.float32([-1, 1]), len(sizes))
    b, nan = DRAW.permutation(-a), ("f32", np.float32([np.nan]))
    narrowed = f"cvt.rn.satfinite.{type_}x2.f32"
    got = computed(narrowed, "u16", ("f32", a), ("f32", b)).view(dtype).astype(np.float64)
    most, both = float(numbers[-1]), np.stack([b, a], 1).reshape(-1)
    want = [rounded(Fraction(x), type_) for x in both.clip(-most, most).tolist()]
    assert same(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(both))
    assert computed(narrowed, "u16", nan, nan).tolist() == [0x7F7F]


INF, NAN = math.inf, math.nan
ZEROS = [0.0, -0.0, -0.0, NAN, 1], [-0.0, 0.0, -0.0, 1, NAN]
# Of the last, 1 - 2^-12 is the sum, which is nearer to 1 than any half.
FACTORS = [1, -1, 1, NAN, 3, 2.0**-7], [-2, 2, 1, 1, 1, -(2.0**-5)], [1, 1, -1, 1, 5, 1]
LEAST = [2.0**-126, -(2.0**-126), 1e-40, -1e-40]
NUMBERS = [1, INF, NAN]
# An instruction -> its operands and its results. With ftz, subnormal numbers of float32 are zeros;
# a zero is negative where it is rounded down.
EDGES = {
    **{f"min.{t}": (*ZEROS, [-0.0, -0.0, -0.0, 1, 1]) for t in ("f16", "f32", "f64")},
    **{f"max.{t}": (*ZEROS, [0.0, 0.0, -0.0, 1, 1]) for t in ("f16", "f32", "f64")},
    **{f"min.NaN.{t}": (*ZEROS, [-0.0, -0.0, -0.0, NAN, NAN]) for t in ("f16", "f32")},
    **{f"max.NaN.{t}": (*ZEROS, [0.0, 0.0, -0.0, NAN, NAN]) for t in ("f16", "f32")},
    "fma.rn.relu.f16": (*FACTORS, [0, 0, 0, NAN, 8, 1]),
    "fma.rn.sat.f16": (*FACTORS, [0, 0, 0, 0, 1, 1]),
    "add.sat.f16": (FACTORS[0], FACTORS[2], [1, 0, 0, 0, 1, 1]),
    "cvt.sat.f32.f32": ([-1, 0.25, 7, NAN, INF, 1e-40, -1e-40], [0, 0.25, 1, 0, 1, 1e-40, 0]),
    "add.ftz.f32": (LEAST, [0] * 4, [2.0**-126, -(2.0**-126), 0, 0]),
    "mul.ftz.f32": (LEAST, [0.5] * 4, [0, -0.0, 0, -0.0]),
    "cvt.rn.ftz.f32.f64": ([2.0**-126 * (1 - 2.0**-30), 2.0**-127], [2.0**-126, 0]),
}
for how, t in product(("rz", "rm", "rp"), ("f32", "f64")):
    zero = -0.0 if how == "rm" else 0.0
    EDGES[f"div.{how}.{t}"] = [1, -1, INF, INF, 0], [0, 0, 2, INF, 0], [INF, -INF, INF, NAN, NAN]
    EDGES[f"add.{how}.{t}"] = NUMBERS, [-1, -INF, 1], [zero, NAN, NAN]
    EDGES[f"fma.{how}.{t}"] = NUMBERS, [1, 1, 1], [-1, -INF, 1], [zero, NAN, NAN]


@pytest.mark.parametrize("name", EDGES)
def test_zeros_nan_infinity_and_subnormal_numbers(name: str) -> None:
    *given, want = EDGES[name]
    types = re.findall(r"f\d+", name)
    operands = ((types[-1], np.array(x, DTYPES[types[-1]])) for x in given)
    got = computed(name, types[0], *operands).tolist()
    assert str(got) == str(np.array(want, DTYPES[types[0]]).tolist())  # which tells -0 from 0


def test_two_halves_are_computed_apart() -> None:
    low, high = near(np.float16), near(np.float16)
    both = np.stack([low, high], 1).view(np.uint32)[:, 0]
    got = computed("add.f16x2", "f16x2", ("f16x2", both), ("f16x2", both))
    assert np.array_equal(got.view(np.float16).reshape(-1, 2), np.stack([low, high], 1) * 2)


@pytest.mark.parametrize("type_", ["f32", "f64"])
def test_kinds_of_floats(type_: str) -> None:
    """Zeros count as normal numbers."""
    least = float(np.finfo(DTYPES[type_]).smallest_normal)
    a = np.array([0, -0.0, least, -least / 2, -1, math.inf, -math.inf, math.nan], DTYPES[type_])
    kinds = {
        "finite": [1, 1, 1, 1, 1, 0, 0, 0], "infinite": [0, 0, 0, 0, 0, 1, 1, 0],
        "number": [1, 1, 1, 1, 1, 1, 1, 0], "notanumber": [0, 0, 0, 0, 0, 0, 0, 1],
        "normal": [1, 1, 1, 0, 1, 0, 0, 0], "subnormal": [0, 0, 0, 1, 0, 0, 0, 0],
    }  # fmt: skip
    for kind, want in kinds.items():
        test = f"testp.{kind}.{type_} %p1, {{0}}; selp.b32 {{d}}, 1, 0, %p1"
        assert computed(test, "u32", (type_, a)).tolist() == want
