"""Each instruction against exact arithmetic: Python's integers and fractions."""

import math
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from simt.ptx.numbers import DTYPES
from tests.simt.ptx.small_kernels import computed

DRAW = np.random.default_rng(0)


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


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def high(a: int, b: int, bits: int) -> int:
    return a * b >> bits


def of_24_bits(a: int, b: int, half: str, type_: str) -> int:
    """mul24: of the 48 bits of a product, the low 32 or the high 32."""
    a, b = ((x + 2**23) % 2**24 - 2**23 if type_[0] == "s" else x % 2**24 for x in (a, b))
    return a * b if half == "lo" else a * b >> 16


def funnel(a: int, b: int, n: int) -> int:
    return (b << 32 | a) >> n


def permuted(a: int, b: int, selector: int) -> int:
    pool, result = b << 32 | a, 0
    for place in range(4):
        nibble = selector >> 4 * place & 15
        byte = pool >> 8 * (nibble & 7) & 255
        byte = (255 if byte & 128 else 0) if nibble & 8 else byte
        result |= byte << 8 * place
    return result


def field(a: int, first: int, count: int, bits: int, is_signed: bool) -> int:
    """bfe, as its specification has it: bit by bit."""
    first, count, a = first & 255, count & 255, a & (1 << bits) - 1
    top = min(first + count - 1, bits - 1)
    sign = is_signed and count > 0 and a >> top & 1
    result = 0
    for i in range(bits):
        inside = i < count and first + i < bits
        result |= (a >> first + i & 1 if inside else int(bool(sign))) << i
    return result


def inserted(a: int, b: int, first: int, count: int, bits: int) -> int:
    first, count = first & 255, count & 255
    for i in range(count):
        if first + i < bits:
            b = b & ~(1 << first + i) | (a >> i & 1) << first + i
    return b


INTEGER_CASES: list[tuple[str, str, Callable]] = [
    *((f"add.{t}", t, lambda a, b: a + b) for t in ("s16", "u32", "s64")),
    *((f"sub.{t}", t, lambda a, b: a - b) for t in ("u16", "s32", "u64")),
    *((f"mul.lo.{t}", t, lambda a, b: a * b) for t in ("u16", "s32", "u64")),
    ("mul.hi.s32", "s32", lambda a, b: high(a, b, 32)),
    ("mul.hi.u32", "u32", lambda a, b: high(a, b, 32)),
    ("mul.hi.s64", "s64", lambda a, b: high(a, b, 64)),
    ("mul.hi.u64", "u64", lambda a, b: high(a, b, 64)),
    ("mad.lo.s32", "s32", lambda a, b, c: a * b + c),
    ("mad.hi.u32", "u32", lambda a, b, c: high(a, b, 32) + c),
    *((f"sad.{t}", t, lambda a, b, c: abs(a - b) + c) for t in ("u16", "s32", "u64")),
    *(
        (f"mul24.{half}.{t}", t, lambda a, b, half=half, t=t: of_24_bits(a, b, half, t))
        for half in ("lo", "hi")
        for t in ("u32", "s32")
    ),
    *(
        (f"mad24.{half}.{t}", t, lambda a, b, c, half=half, t=t: of_24_bits(a, b, half, t) + c)
        for half in ("lo", "hi")
        for t in ("u32", "s32")
    ),
    # For b = 0 a GPU's results are unspecified.
    *((f"div.{t}", t, lambda a, b: truncated(a, b) if b else 0) for t in ("u32", "s64")),
    *((f"rem.{t}", t, lambda a, b: a - truncated(a, b) * b if b else 0) for t in ("s32", "u64")),
    *((f"min.{t}", t, min) for t in ("u16", "s32", "s64")),
    *((f"max.{t}", t, max) for t in ("u16", "s32", "u64")),
    *((f"neg.{t}", t, lambda a: -a) for t in ("s32", "s64")),
    ("abs.s32", "s32", abs),
    *((f"and.b{n}", f"u{n}", lambda a, b: a & b) for n in (16, 32, 64)),
    *((f"or.b{n}", f"u{n}", lambda a, b: a | b) for n in (16, 64)),
    *((f"xor.b{n}", f"u{n}", lambda a, b: a ^ b) for n in (32, 64)),
    *((f"not.b{n}", f"u{n}", lambda a: ~a) for n in (16, 32, 64)),
    ("popc.b32", "u32", lambda a: a.bit_count()),
    ("clz.b32", "u32", lambda a: 32 - a.bit_length()),
    ("brev.b32", "u32", lambda a: int(f"{a:032b}"[::-1], 2)),
    ("brev.b64", "u64", lambda a: int(f"{a:064b}"[::-1], 2)),
    ("prmt.b32", "u32", permuted),
    ("lop3.b32", "u32", lambda a, b, c: a & b ^ ~c),
]


@pytest.mark.parametrize(
    ("name", "type_", "exact"), INTEGER_CASES, ids=[name for name, *_ in INTEGER_CASES]
)
def test_integers_wrap(name: str, type_: str, exact: Callable) -> None:
    count = 2 - (exact is abs)
    if hasattr(exact, "__code__"):
        count = exact.__code__.co_argcount - len(exact.__defaults__ or ())
    operands = [integers(type_) for _ in range(count)]
    table = f", {0xF0 & 0xCC ^ ~0xAA & 0xFF:#x}" if name.startswith("lop3") else ""
    slots = ", ".join(f"{{{n}}}" for n in range(count))
    got = computed(f"{name} {{d}}, {slots}{table}", type_, *((type_, x) for x in operands))
    want = [wrapped(exact(*map(int, row)), type_) for row in zip(*operands, strict=True)]
    assert got.tolist() == want


# As the specification's tables have them: for each of c's low two bits, the bytes of the result
# from the highest on.
MODES = {
    "f4e": "3210 4321 5432 6543", "b4e": "5670 6701 7012 0123", "rc8": "0000 1111 2222 3333",
    "ecl": "3210 3211 3222 3333", "ecr": "0000 1110 2210 3210", "rc16": "1010 3232 1010 3232",
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_a_permutation_may_have_a_mode(mode: str) -> None:
    a, b, c = (integers("u32") for _ in range(3))
    name = f"prmt.b32.{mode} {{d}}, {{0}}, {{1}}, {{2}}"
    got = computed(name, "u32", ("u32", a), ("u32", b), ("u32", c))
    rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    assert got.tolist() == [permuted(x, y, int(MODES[mode].split()[z & 3], 16)) for x, y, z in rows]


@pytest.mark.parametrize("type_", ["u32", "s32", "u64", "s64"])
def test_the_leading_bit_is_found(type_: str) -> None:
    a = integers(type_)
    lengths = [(~x if x < 0 else x).bit_length() for x in a.tolist()]
    got = computed(f"bfind.{type_} {{d}}, {{0}}", "u32", (type_, a))
    assert got.tolist() == [(n - 1) & 0xFFFFFFFF for n in lengths]
    got = computed(f"bfind.shiftamt.{type_} {{d}}, {{0}}", "u32", (type_, a))
    assert got.tolist() == [8 * a.itemsize - n if n else 0xFFFFFFFF for n in lengths]


def pieces(number: int, type_: str, bits: int) -> list[int]:
    each = [number >> at & (1 << bits) - 1 for at in range(0, 32, bits)]
    return [x - (1 << bits) if type_ == "s32" and x >> bits - 1 else x for x in each]


@pytest.mark.parametrize("types", [("u32", "s32"), ("s32", "u32"), ("s32", "s32"), ("u32", "u32")])
@pytest.mark.parametrize("name", ["dp4a", "dp2a.lo", "dp2a.hi"])
def test_products_of_bytes_are_added(name: str, types: tuple[str, str]) -> None:
    a, b, c = (integers("u32") for _ in range(3))
    text = f"{name}.{types[0]}.{types[1]} {{d}}, {{0}}, {{1}}, {{2}}"
    got = computed(text, "u32", ("u32", a), ("u32", b), ("u32", c))
    rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    size, first = (8, 0) if name == "dp4a" else (16, 2 if name.endswith("hi") else 0)
    want = [
        z + sum(p * q for p, q in zip(
            pieces(x, types[0], size), pieces(y, types[1], 8)[first:], strict=False))
        for x, y, z in rows
    ]  # fmt: skip
    assert got.tolist() == [x & 0xFFFFFFFF for x in want]


@pytest.mark.parametrize("name", ["add", "sub"])
def test_a_carry_is_that_of_the_operand_before_it_is_overwritten(name: str) -> None:
    a, b = integers("u32"), integers("u32")
    text = f"{name}.cc.u32 {{0}}, {{0}}, {{1}}; {name}c.u32 {{d}}, 0, 0"
    got = computed(text, "u32", ("u32", a), ("u32", b))
    exact = int.__add__ if name == "add" else int.__sub__
    want = [exact(x, y) >> 32 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert got.tolist() == [wrapped(n, "u32") for n in want]


@pytest.mark.parametrize("target", ["u8", "s8", "u16", "s16"])
@pytest.mark.parametrize("source", ["s16", "u16", "s32", "u32"])
def test_an_integer_is_cut_to_its_type_in_a_wider_register(target: str, source: str) -> None:
    numbers = integers(source)
    got = computed(f"cvt.{target}.{source} {{d}}, {{0}}", "s32", (source, numbers))
    assert got.tolist() == [wrapped(n, target) for n in numbers.tolist()]


@pytest.mark.parametrize("bits", [32, 64])
def test_a_carry_goes_from_one_instruction_to_the_next(bits: int) -> None:
    """Numbers of two registers: added, subtracted and multiplied; and the carry at their end."""
    type_ = f"u{bits}"
    low, high_, c, d = ((type_, integers(type_)) for _ in range(4))
    last = c[1].copy()
    last[::2] = low[1][::2]  # so that some differences are 0
    c = type_, last
    x, y = (
        [int(m) << bits | int(n) for n, m in zip(a[1], b[1], strict=True)]
        for a, b in ((low, high_), (c, d))
    )
    r = {32: "%r2", 64: "%rd2"}[bits]
    steps = (
        f"{{name}}.cc.{type_} {r}0, {{0}}, {{2}}; {{name}}c.cc.{type_} {r}1, {{1}}, {{3}}; "
        f"{{name}}c.{type_} {r}2, 0, 0; mov.b{bits} {{d}}, {r}"
    )
    for name, exact in (("add", int.__add__), ("sub", int.__sub__)):
        for part in range(3):
            text = steps.replace("{name}", name) + str(part)
            got = computed(text, type_, low, high_, c, d)
            want = [exact(p, q) >> part * bits for p, q in zip(x, y, strict=True)]
            assert got.tolist() == [wrapped(n, type_) for n in want]
    for part, text in enumerate([
        f"mad.lo.cc.{type_} {{d}}, {{0}}, {{2}}, {{1}}",
        f"mad.lo.cc.{type_} {r}0, {{0}}, {{2}}, {{1}}; madc.hi.{type_} {{d}}, {{0}}, {{2}}, 0",
    ]):  # fmt: skip
        got = computed(text, type_, low, high_, c)
        rows = zip(low[1], c[1], high_[1], strict=True)
        want = [int(p) * int(q) + int(s) >> part * bits for p, q, s in rows]
        assert got.tolist() == [wrapped(n, type_) for n in want]


def test_a_carry_is_each_threads_own_and_stays_where_nothing_sets_it() -> None:
    a = np.uint32([0, 1, 2**32 - 1])
    lines = "setp.ne.u32 %p1, {0}, 1; mov.u32 %r20, 5; @%p1 add.cc.u32 %r20, {0}, 1; "
    got = computed(lines + "add.u32 %r21, %r20, %r20; addc.u32 {d}, %r20, 0", "u32", ("u32", a))
    assert got.tolist() == [1, 5, 1]


@pytest.mark.parametrize(("target", "source"), [
    ("u8", "s32"), ("s8", "s32"), ("u16", "s16"), ("s32", "u64"), ("u64", "s64"), ("s16", "u32"),
])  # fmt: skip
def test_a_saturated_integer_is_the_nearest_there_is(target: str, source: str) -> None:
    a, register = integers(source), {"u8": "u16", "s8": "s16"}.get(target, target)
    got = computed(f"cvt.sat.{target}.{source} {{d}}, {{0}}", register, (source, a))
    limits = np.iinfo(DTYPES[target])
    assert got.tolist() == [min(max(x, int(limits.min)), int(limits.max)) for x in a.tolist()]


@pytest.mark.parametrize("type_", ["b16", "b32", "b64", "s32", "s64", "u32"])
def test_a_shift_of_the_width_or_more_leaves_nothing_but_the_sign(type_: str) -> None:
    a = integers(type_.replace("b", "u"))
    n = DRAW.choice(np.array([0, 1, 5, 15, 16, 31, 32, 33, 63, 64, 200], np.uint32), len(a))
    if type_.startswith("b"):
        got = computed(f"shl.{type_} {{d}}, {{0}}, {{1}}", type_, (type_, a), ("u32", n))
        want = [wrapped(int(x) << int(m), type_) for x, m in zip(a, n, strict=True)]
        assert got.tolist() == want
    else:
        got = computed(f"shr.{type_} {{d}}, {{0}}, {{1}}", type_, (type_, a), ("u32", n))
        assert got.tolist() == [int(x) >> int(m) for x, m in zip(a, n, strict=True)]


@pytest.mark.parametrize("type_", ["u32", "s32", "u64", "s64"])
def test_bit_fields(type_: str) -> None:
    a, b = integers(type_), integers(type_)
    bits = 8 * a.itemsize
    first, count = (DRAW.choice(np.array([0, 1, 7, 31, 32, 63, 64, 255], np.uint32), len(a))
                    for _ in range(2))  # fmt: skip
    rows = [tuple(map(int, row)) for row in zip(a, b, first, count, strict=True)]
    where = ("u32", first), ("u32", count)
    got = computed(f"bfe.{type_} {{d}}, {{0}}, {{1}}, {{2}}", type_, (type_, a), *where)
    want = [field(x, f, n, bits, type_[0] == "s") for x, _, f, n in rows]
    assert got.tolist() == [wrapped(x, type_) for x in want]
    raw = f"b{bits}"
    got = computed(f"bfi.{raw} {{d}}, {{0}}, {{1}}, {{2}}, {{3}}", raw, (raw, a), (raw, b), *where)
    mask = (1 << bits) - 1
    assert got.tolist() == [inserted(x & mask, y & mask, f, n, bits) for x, y, f, n in rows]


@pytest.mark.parametrize(("name", "n_of"), [
    ("shf.r.wrap.b32", lambda n: n & 31), ("shf.r.clamp.b32", lambda n: min(n, 32)),
])  # fmt: skip
def test_a_funnel_shift_takes_32_of_64_bits(name: str, n_of: Callable) -> None:
    a, b = integers("u32"), integers("u32")
    n = DRAW.integers(0, 70, len(a)).astype(np.uint32)
    got = computed(f"{name} {{d}}, {{0}}, {{1}}, {{2}}", "u32", ("u32", a), ("u32", b), ("u32", n))
    rows = zip(a.tolist(), b.tolist(), n.tolist(), strict=True)
    assert got.tolist() == [funnel(x, y, n_of(m)) & 0xFFFFFFFF for x, y, m in rows]


@pytest.mark.parametrize(("type_", "wide"), [("s16", "s32"), ("u32", "u64"), ("s32", "s64")])
def test_a_wide_product_has_all_bits(type_: str, wide: str) -> None:
    a, b, c = integers(type_), integers(type_), integers(wide)[: len(integers(type_))]
    got = computed(f"mul.wide.{type_} {{d}}, {{0}}, {{1}}", wide, (type_, a), (type_, b))
    assert got.tolist() == [int(x) * int(y) for x, y in zip(a, b, strict=True)]
    got = computed(
        f"mad.wide.{type_} {{d}}, {{0}}, {{1}}, {{2}}", wide, (type_, a), (type_, b), (wide, c)
    )
    rows = zip(a, b, c, strict=True)
    assert got.tolist() == [wrapped(int(x) * int(y) + int(z), wide) for x, y, z in rows]


# Floating point ----------------------------------------------------------------------------------


def floats(dtype: type, num: int = 200) -> np.ndarray:
    """Numbers of any size, subnormal ones too, without NaN and infinity."""
    size = np.dtype(dtype).itemsize
    bits = DRAW.integers(0, 1 << 8 * size, 4 * num, dtype=np.uint64).astype(f"u{size}")
    found = bits.view(dtype)
    return found[np.isfinite(found)][:num]


def near(dtype: type, num: int = 200) -> np.ndarray:
    """Numbers around 1, so that sums cancel and round."""
    return (DRAW.standard_normal(num) * 2.0 ** DRAW.integers(-12, 12, num)).astype(dtype)


def rounded(exact: Fraction, dtype: type, how: Callable = round) -> float:
    """To the nearest number of a type, ties to even; or as another function makes integers."""
    if exact == 0:
        return 0.0
    digits, least, largest = {
        np.float16: (11, -24, 2.0**16), np.float32: (24, -149, 2.0**128),
        np.float64: (53, -1074, Fraction(2) ** 1024), "bf16": (8, -133, 2.0**128),
    }[dtype]  # fmt: skip
    exponent = math.floor(math.log2(abs(exact.numerator)) - math.log2(exact.denominator))
    while Fraction(2) ** (exponent + 1) <= abs(exact):
        exponent += 1
    while Fraction(2) ** exponent > abs(exact):
        exponent -= 1
    step = Fraction(2) ** max(exponent - digits + 1, least)
    number = how(exact / step) * step
    if abs(number) >= largest:
        if how == math.trunc or how == (math.floor if exact > 0 else math.ceil):
            return math.copysign(float(np.finfo(dtype).max), -1 if exact < 0 else 1)
        return math.inf if exact > 0 else -math.inf
    return float(number)


def same(got: np.ndarray, want: list[float]) -> bool:
    return np.array_equal(got.astype(np.float64) + 0.0, np.array(want) + 0.0, equal_nan=True)


@pytest.mark.parametrize("draw", [floats, near])
@pytest.mark.parametrize(("type_", "dtype"), [("f32", np.float32), ("f64", np.float64)])
def test_fma_rounds_once(type_: str, dtype: type, draw: Callable) -> None:
    a, b, c = (draw(dtype) for _ in range(3))
    with np.errstate(all="ignore"):
        c[::3] = -(a * b)[::3]  # all but the error of the product cancels
    c[~np.isfinite(c)] = 0
    got = computed(
        f"fma.rn.{type_} {{d}}, {{0}}, {{1}}, {{2}}", type_, (type_, a), (type_, b), (type_, c)
    )
    rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    assert same(got, [rounded(Fraction(x) * Fraction(y) + Fraction(z), dtype) for x, y, z in rows])


def test_fma_rounds_down_if_asked() -> None:
    a, b, c = (near(np.float32) for _ in range(3))
    got = computed("fma.rm.f32 {d}, {0}, {1}, {2}", "f32", ("f32", a), ("f32", b), ("f32", c))
    above = np.nextafter(got, np.float32(np.inf))
    for x, y, z, low, high_ in zip(*(v.tolist() for v in (a, b, c, got, above)), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        assert Fraction(low) <= exact < Fraction(high_)


@pytest.mark.parametrize(("name", "exact"), [
    ("add", lambda x, y: x + y), ("sub", lambda x, y: x - y), ("mul", lambda x, y: x * y),
])  # fmt: skip
@pytest.mark.parametrize(("type_", "dtype"), [("f32", np.float32), ("f16", np.float16)])
def test_sums_and_products_are_rounded_to_nearest(
    name: str, exact: Callable, type_: str, dtype: type
) -> None:
    a, b = floats(dtype), near(dtype)
    got = computed(f"{name}.{type_} {{d}}, {{0}}, {{1}}", type_, (type_, a), (type_, b))
    rows = zip(a.tolist(), b.tolist(), strict=True)
    assert same(got, [rounded(exact(Fraction(x), Fraction(y)), dtype) for x, y in rows])


@pytest.mark.parametrize(("type_", "dtype"), [("f32", np.float32), ("f64", np.float64)])
def test_a_quotient_is_rounded_to_nearest(type_: str, dtype: type) -> None:
    a, b = floats(dtype), near(dtype)
    got = computed(f"div.rn.{type_} {{d}}, {{0}}, {{1}}", type_, (type_, a), (type_, b))
    rows = zip(a.tolist(), b.tolist(), strict=True)
    assert same(got, [rounded(Fraction(x) / Fraction(y), dtype) for x, y in rows])


def test_half_fma_rounds_once() -> None:
    a, b, c = (near(np.float16) for _ in range(3))
    operands = ("f16", a), ("f16", b), ("f16", c)
    got = computed("fma.rn.f16 {d}, {0}, {1}, {2}", "f16", *operands)
    rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in rows]
    assert same(got, [rounded(one, np.float16) for one in exact])


def of_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_bfloat16_is_rounded_once() -> None:
    a, b, c = ((near(np.float32).view(np.uint32) >> 16).astype(np.uint16) for _ in range(3))
    operands = ("bf16", a), ("bf16", b), ("bf16", c)
    got = computed("fma.rn.bf16 {d}, {0}, {1}, {2}", "bf16", *operands)
    rows = zip(*(of_bfloat16(bits).tolist() for bits in (a, b, c)), strict=True)
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in rows]
    assert same(of_bfloat16(got), [rounded(one, "bf16") for one in exact])


def test_a_sum_of_halves_may_be_kept_from_being_negative_or_large() -> None:
    """.relu and .sat come before the sum is rounded; 1 - 2^-12 is nearer to 1 than any half."""
    a = np.float16([1, -1, 1, math.nan, 3, 2.0**-7])
    b = np.float16([-2, 2, 1, 1, 1, -(2.0**-5)])
    c = np.float16([1, 1, -1, 1, 5, 1])
    operands = ("f16", a), ("f16", b), ("f16", c)
    got = computed("fma.rn.relu.f16 {d}, {0}, {1}, {2}", "f16", *operands)
    assert same(got, [0, 0, 0, math.nan, 8, 1])
    assert got.view(np.uint16)[3] == 0x7FFF
    got = computed("fma.rn.sat.f16 {d}, {0}, {1}, {2}", "f16", *operands)
    assert same(got, [0, 0, 0, 0, 1, 1])
    got = computed("add.sat.f16 {d}, {0}, {2}", "f16", *operands)
    assert same(got, [1, 0, 0, 0, 1, 1])


@pytest.mark.parametrize("name", ["ex2", "tanh"])
def test_functions_of_a_half_are_rounded_once(name: str) -> None:
    a = near(np.float16)
    got = computed(f"{name}.approx.f16 {{d}}, {{0}}", "f16", ("f16", a))
    with np.errstate(all="ignore"):
        want = {"ex2": np.exp2, "tanh": np.tanh}[name](a.astype(np.float64)).astype(np.float16)
    assert same(got, want.astype(np.float64).tolist())


@pytest.mark.parametrize("type_", ["f16", "f32"])
def test_the_lesser_number_may_be_nan(type_: str) -> None:
    a, b = (np.array(x, DTYPES[type_]) for x in ([math.nan, 1, 3, -0.0], [2, math.nan, -5, 0]))
    got = computed(f"min.NaN.{type_} {{d}}, {{0}}, {{1}}", type_, (type_, a), (type_, b))
    assert same(got, [math.nan, math.nan, -5, 0])
    assert np.signbit(got[3])
    got = computed(f"max.NaN.{type_} {{d}}, {{1}}, {{0}}", type_, (type_, a), (type_, b))
    assert same(got, [math.nan, math.nan, 3, 0])
    assert not np.signbit(got[3])


def test_two_halves_are_computed_apart() -> None:
    low, high_ = near(np.float16), near(np.float16)
    both = np.stack([low, high_], 1).view(np.uint32)[:, 0]
    got = computed("add.f16x2 {d}, {0}, {1}", "f16x2", ("f16x2", both), ("f16x2", both))
    assert np.array_equal(
        got.view(np.float16).reshape(-1, 2), np.stack([low + low, high_ + high_], 1)
    )


# Of the last three, a part would be lost on the way through float32 or float64.
CONVERTED_TO_HALF = {
    "f32": [*floats(np.float32), *near(np.float32), 65519.99, 65520, np.inf],
    "f64": [1 + 2.0**-11 + 2.0**-40, -1 - 2.0**-8 - 2.0**-40, 1 + 2.0**-11, 2.0**-25 + 2.0**-60],
    "s32": [2**30 + 2**22 + 1, 2**30 + 2**22, -(2**30) - 2**22 - 1, 2049, 0],
    "s64": [2**60 + 2**52 + 1, -(2**60) - 2**52 - 1, 2**60 + 2**52, -1, 0, 2**63 - 1],
}


@pytest.mark.parametrize("source", CONVERTED_TO_HALF)
@pytest.mark.parametrize("type_", ["f16", "bf16"])
def test_a_conversion_to_half_is_rounded_to_nearest(type_: str, source: str) -> None:
    a = np.array(CONVERTED_TO_HALF[source], DTYPES[source])
    got = computed(f"cvt.rn.{type_}.{source} {{d}}, {{0}}", type_, (source, a))
    got = of_bfloat16(got) if type_ == "bf16" else got
    dtype = "bf16" if type_ == "bf16" else np.float16
    want = [rounded(Fraction(x), dtype) if math.isfinite(x) else x for x in a.tolist()]
    assert same(got, want)


def of_8_bits(type_: str) -> list[Fraction | float]:
    """[256] by the formats' definition: a sign, 4 or 5 bits of exponent, 3 or 2 of mantissa."""
    bits, bias, found = (3, 7, []) if type_ == "e4m3x2" else (2, 15, [])
    for code in range(128):
        exponent, mantissa = code >> bits, Fraction(code & (1 << bits) - 1, 1 << bits)
        first = Fraction(exponent > 0)  # the bit before the point
        found.append((first + mantissa) * Fraction(2) ** (max(exponent, 1) - bias))
    if type_ == "e4m3x2":
        found[0x7F:] = [math.nan]
    else:
        found[0x7C:] = [math.inf, math.nan, math.nan, math.nan]
    return found + [-number for number in found]


FLOATS_OF_8_BITS = ("e4m3x2", "e5m2x2")


@pytest.mark.parametrize("type_", FLOATS_OF_8_BITS)
def test_each_float_of_8_bits_has_the_value_of_its_definition(type_: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    pairs = np.stack([codes, DRAW.permutation(codes)], 1)
    got = computed(
        f"cvt.rn.f16x2.{type_} {{d}}, {{0}}", "f16x2", ("u16", pairs.view(np.uint16)[:, 0])
    )
    want = np.array([float(number) for number in of_8_bits(type_)])[pairs]
    assert same(got.view(np.float16).reshape(-1, 2), want)


@pytest.mark.parametrize("type_", FLOATS_OF_8_BITS)
def test_a_conversion_to_8_bits_finds_the_nearest_and_saturates(type_: str) -> None:
    """Every number there is, every tie between two, numbers beside them, and all sizes."""
    values = [number for number in of_8_bits(type_)[:128] if math.isfinite(number)]
    exact = [float(number) for number in values]
    ties = np.float32([(x + y) / 2 for x, y in pairwise(exact)])
    beside = [np.nextafter(ties, np.float32(side)) for side in (0, np.inf)]
    sizes = np.concatenate([np.float32([*exact, np.inf, 1e6]), ties, *beside, near(np.float32)])
    a = sizes * DRAW.choice(np.float32([-1, 1]), len(sizes))
    b = DRAW.permutation(-a)
    got = computed(
        f"cvt.rn.satfinite.{type_}.f32 {{d}}, {{0}}, {{1}}", "u16", ("f32", a), ("f32", b)
    )
    for number, code in zip(
        np.stack([b, a], 1).reshape(-1).tolist(), got.view(np.uint8).tolist(), strict=True
    ):
        size = min(abs(number), exact[-1])
        at = bisect_left(exact, size)
        nearest = min((at, max(at - 1, 0)), key=lambda n: (abs(Fraction(size) - values[n]), n % 2))
        assert code == nearest + 128 * (math.copysign(1, number) < 0)
    got = computed(
        f"cvt.rn.satfinite.{type_}.f32 {{d}}, {{0}}, 0f3F800000",
        "u16",
        ("f32", np.float32([np.nan])),
    )
    assert got.view(np.uint8)[1] == 0x7F


@pytest.mark.parametrize(("how", "function"), [
    ("rzi", math.trunc), ("rni", round), ("rmi", math.floor), ("rpi", math.ceil),
])  # fmt: skip
@pytest.mark.parametrize("type_", ["s32", "u32", "s64"])
def test_a_float_becomes_the_nearest_integer_there_is(
    type_: str, how: str, function: Callable
) -> None:
    a = np.concatenate(
        [floats(np.float32), near(np.float32), np.float32([0.5, 1.5, -2.5, 2**31, 2**63])]
    )
    got = computed(f"cvt.{how}.{type_}.f32 {{d}}, {{0}}", type_, ("f32", a))
    limits = np.iinfo(DTYPES[type_])
    assert got.tolist() == [min(max(function(x), limits.min), limits.max) for x in a.tolist()]


@pytest.mark.parametrize(("target", "source", "bits"), [
    ("s32", "f32", 0), ("u32", "f16", 0), ("s32", "f64", 1 << 31), ("u32", "f64", 1 << 31),
    ("s64", "f32", 1 << 63), ("u64", "f32", 1 << 63),
])  # fmt: skip
def test_nan_becomes_an_integer_of_its_own(target: str, source: str, bits: int) -> None:
    """Source: PTX ISA, cvt: 0 where neither float nor integer has 64 bits, else the highest bit."""
    got = computed(
        f"cvt.rzi.{target}.{source} {{d}}, {{0}}",
        target,
        (source, np.array([np.nan], DTYPES[source])),
    )
    assert got.view(f"u{got.itemsize}").tolist() == [bits]


def test_subnormal_numbers_are_those_of_the_type() -> None:
    """Of float32, before and after a conversion; float64 has much smaller ones."""
    a = np.array([1e50, 2.0**-200])
    got = computed("rcp.approx.ftz.f64 {d}, {0}", "f64", ("f64", a))
    assert np.allclose(got, 1 / a, rtol=1e-6)
    a = np.array([2.0**-126 * (1 - 2.0**-30), 2.0**-127])
    got = computed("cvt.rn.ftz.f32.f64 {d}, {0}", "f32", ("f64", a))
    assert got.tolist() == [2.0**-126, 0]


@pytest.mark.parametrize("type_", ["f32", "f64", "f16"])
def test_minus_0_is_less_than_0(type_: str) -> None:
    a, b = np.array([0.0, -0.0, -0.0, np.nan, 1]), np.array([-0.0, 0.0, -0.0, 1, np.nan])
    given = [(type_, x.astype(DTYPES[type_])) for x in (a, b)]
    for name, signs in (("min", [True, True, True]), ("max", [False, False, True])):
        got = computed(f"{name}.{type_} {{d}}, {{0}}, {{1}}", type_, *given)
        assert np.signbit(got[:3]).tolist() == signs
        assert got.tolist() == [0, 0, 0, 1, 1]


WAYS = {"rz": math.trunc, "rm": math.floor, "rp": math.ceil}
DIRECTED = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y, "fma": lambda x, y, z: x * y + z, "rcp": lambda x: 1 / x,
}  # fmt: skip


@pytest.mark.parametrize("draw", [floats, near])
@pytest.mark.parametrize(("type_", "dtype"), [("f32", np.float32), ("f64", np.float64)])
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("name", DIRECTED)
def test_a_result_may_be_rounded_to_one_side(
    name: str, how: str, type_: str, dtype: type, draw: Callable
) -> None:
    """Of all sizes, so that some are too large, too small, or exact."""
    exact = DIRECTED[name]
    operands = [draw(dtype) for _ in range(exact.__code__.co_argcount)]
    operands[-1][::5] = 2.0 ** DRAW.integers(-3, 3, len(operands[-1][::5]))
    operands[0][:2] = np.finfo(dtype).max
    slots = ", ".join(f"{{{n}}}" for n in range(len(operands)))
    got = computed(f"{name}.{how}.{type_} {{d}}, {slots}", type_, *((type_, x) for x in operands))
    rows = zip(*(x.tolist() for x in operands), strict=True)
    assert same(got, [rounded(exact(*map(Fraction, row)), dtype, WAYS[how]) for row in rows])


@pytest.mark.parametrize(("type_", "dtype"), [("f32", np.float32), ("f64", np.float64)])
@pytest.mark.parametrize("how", WAYS)
def test_a_root_may_be_rounded_to_one_side(how: str, type_: str, dtype: type) -> None:
    a = np.abs(floats(dtype))
    a[:3] = 4, 2, 0.25
    got = computed(f"sqrt.{how}.{type_} {{d}}, {{0}}", type_, (type_, a))
    for x, root in zip(a.tolist(), got.tolist(), strict=True):
        if how == "rp":
            below = float(np.nextafter(dtype(root), dtype(0)))
            assert Fraction(below) ** 2 < x <= Fraction(root) ** 2
        else:
            above = float(np.nextafter(dtype(root), dtype(np.inf)))
            assert Fraction(root) ** 2 <= x < Fraction(above) ** 2


@pytest.mark.parametrize(("target", "source"), [("f32", "f64"), ("f32", "s64"), ("f64", "u64")])
@pytest.mark.parametrize("how", WAYS)
def test_a_conversion_may_be_rounded_to_one_side(how: str, target: str, source: str) -> None:
    a = floats(np.float64) if source == "f64" else integers(source)
    got = computed(f"cvt.{how}.{target}.{source} {{d}}, {{0}}", target, (source, a))
    dtype = {"f32": np.float32, "f64": np.float64}[target]
    assert same(got, [rounded(Fraction(x), dtype, WAYS[how]) for x in a.tolist()])


@pytest.mark.parametrize("type_", ["f32", "f64"])
@pytest.mark.parametrize("how", WAYS)
def test_where_there_is_nothing_to_round_no_side_is_taken(how: str, type_: str) -> None:
    inf, nan = math.inf, math.nan
    a, b = (
        np.array(x, DTYPES[type_])
        for x in ([1, -1, inf, inf, 0, nan, 1], [0, 0, 2, inf, 0, 1, inf])
    )
    got = computed(f"div.{how}.{type_} {{d}}, {{0}}, {{1}}", type_, (type_, a), (type_, b))
    assert same(got, [inf, -inf, inf, nan, nan, nan, 0])
    got = computed(f"add.{how}.{type_} {{d}}, {{0}}, {{1}}", type_, (type_, -a), (type_, a))
    assert same(got, [0, 0, nan, nan, 0, nan, 0])
    assert np.signbit(got[[0, 1, 6]]).tolist() == [how == "rm"] * 3


def test_zero_is_negative_when_rounded_down() -> None:
    a, b = np.float32([1, 0, 1, -0.0, 0]), np.float32([1, 0, -1, 1, 0])
    c = np.float32([-1, -0.0, 1, 0, 0])
    got = computed("fma.rm.f32 {d}, {0}, {1}, {2}", "f32", ("f32", a), ("f32", b), ("f32", c))
    assert got.tolist() == [0] * 5
    assert np.signbit(got).tolist() == [True, True, True, True, False]


@pytest.mark.parametrize(("target", "source"), [
    ("s64", "s32"), ("u64", "u32"), ("s32", "s16"), ("u16", "u64"), ("s32", "s64"),
])  # fmt: skip
def test_an_integer_keeps_its_sign_or_loses_its_high_bits(target: str, source: str) -> None:
    a = integers(source)
    got = computed(f"cvt.{target}.{source} {{d}}, {{0}}", target, (source, a))
    assert got.tolist() == [wrapped(int(x), target) for x in a]


def test_a_float_may_stand_for_its_bits() -> None:
    a = np.zeros(2, np.uint32)
    got = computed("mov.b32 {d}, 0fFF800000; add.u32 {d}, {d}, {0}", "u32", ("u32", a))
    assert got.tolist() == [0xFF800000] * 2


def test_saturation_and_flushing() -> None:
    a = np.float32([-1, -0.0, 0.25, 1, 7, np.nan, np.inf, 1e-40, -1e-40])
    got = computed("cvt.sat.f32.f32 {d}, {0}", "f32", ("f32", a))
    assert got.tolist() == [0, 0, 0.25, 1, 1, 0, 1, float(np.float32(1e-40)), 0]
    smallest = np.float32([2.0**-126, -(2.0**-126), 1e-40, -1e-40])
    operands = ("f32", smallest), ("f32", np.zeros_like(smallest))
    got = computed("add.ftz.f32 {d}, {0}, {1}", "f32", *operands)
    assert got.tolist() == [2.0**-126, -(2.0**-126), 0, 0]
    got = computed("mul.ftz.f32 {d}, {0}, 0f3F000000", "f32", operands[0])  # half of it
    assert got.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("name", "function"), [
    ("ex2.approx.ftz.f32", np.exp2), ("rcp.rn.f32", np.reciprocal), ("sqrt.rn.f32", np.sqrt),
    ("lg2.approx.f32", np.log2), ("neg.f32", np.negative), ("abs.f32", np.abs),
    ("rsqrt.approx.f32", lambda x: x**-0.5), ("tanh.approx.f32", np.tanh),
    ("sin.approx.f32", np.sin), ("cos.approx.f32", np.cos),
])  # fmt: skip
def test_functions_of_one_number(name: str, function: Callable) -> None:
    a = np.abs(near(np.float32)) % 30 + np.float32(0.01)
    got = computed(f"{name} {{d}}, {{0}}", "f32", ("f32", a))
    np.testing.assert_allclose(got, function(a.astype(np.float64)), rtol=1.2e-7)


# Comparisons -------------------------------------------------------------------------------------

HOLDS = {
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
}  # fmt: skip


@pytest.mark.parametrize("type_", ["s32", "u32", "s64", "u64", "f32"])
@pytest.mark.parametrize("name", HOLDS)
def test_comparisons(name: str, type_: str) -> None:
    """`equ` and so on hold for NaN, `eq` and `ne` don't."""
    a, b = (
        (near(np.float32), near(np.float32))
        if type_ == "f32"
        else (integers(type_), integers(type_))
    )
    b[::4] = a[::4]
    if type_ == "f32":
        a[:2] = np.nan
    for suffix in ("", "u") if type_ == "f32" else ("",):
        select = f"setp.{name}{suffix}.{type_} %p1, {{0}}, {{1}}; selp.b32 {{d}}, 1, 0, %p1"
        got = computed(select, "u32", (type_, a), (type_, b))
        for x, y, found in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
            is_nan = x != x or y != y
            assert found == (suffix == "u" if is_nan else HOLDS[name](x, y))


@pytest.mark.parametrize("type_", ["f16", "f64"])
def test_copied_signs_and_comparisons(type_: str) -> None:
    """copysign has no halves, and float64 is compared as float32."""
    a, b = (np.array(x, DTYPES[type_]) for x in ([1, -2, np.nan, 0.0], [-0.0, 3, 1, -0.0]))
    given = (type_, a), (type_, b)
    compared = f"setp.le.{type_} %p1, {{0}}, {{1}}; selp.b32 {{d}}, 1, 0, %p1"
    assert computed(compared, "u32", *given).tolist() == [0, 1, 0, 1]
    if type_ == "f64":
        got = computed("copysign.f64 {d}, {0}, {1}", "f64", *given)
        assert got[[0, 1, 3]].tolist() == [0, -3, 0]
        assert np.signbit(got[[0, 1, 3]]).tolist() == [False, True, False]


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


@pytest.mark.parametrize("space", ["global", "shared", "local"])
def test_a_generic_address_is_in_one_space(space: str) -> None:
    got = []
    for address in ("mov.u64 %rd20, %rd11", "mov.u64 %rd20, s; cvta.shared.u64 %rd20, %rd20",
                    ".local .b32 l; mov.u64 %rd20, l; cvta.local.u64 %rd20, %rd20",
                    "mov.u64 %rd20, 64"):  # fmt: skip
        test = f"{address}; isspacep.{space} %p1, %rd20; selp.b32 {{d}}, 1, 0, %p1"
        got += computed(test, "u32", ("u32", np.zeros(1, np.uint32))).tolist()
    assert got == [space == "global", space == "shared", space == "local", 0]


def test_a_predicate_may_be_read_and_set_at_once() -> None:
    a = np.uint32([1, 2])
    joined = "setp.eq.u32 %p1, {0}, {0}; setp.eq.and.u32 %p1|%p2, {0}, 2, %p1; "
    got = computed(joined + "selp.b32 {d}, 1, 0, %p2", "u32", ("u32", a))
    assert got.tolist() == [1, 0]


def test_a_comparison_takes_subnormal_numbers_as_0_if_asked_to() -> None:
    a = np.float32([1e-40, -1e-40, 0, 1e-30])
    for modifier, want in (("ftz.", [1, 1, 1, 0]), ("", [0, 0, 1, 0])):
        select = f"setp.eq.{modifier}f32 %p1, {{0}}, 0f00000000; selp.b32 {{d}}, 1, 0, %p1"
        assert computed(select, "u32", ("f32", a)).tolist() == want


def test_a_comparison_may_be_joined_with_a_predicate_and_gives_its_opposite() -> None:
    a, b = integers("s32"), integers("s32")
    lines = (
        "setp.gt.s32 %p1, {0}, 0; setp.lt.and.s32 %p2|%p3, {0}, {1}, !%p1; "
        "selp.b32 %r20, 1, 0, %p2; selp.b32 %r21, 2, 0, %p3; add.u32 {d}, %r20, %r21"
    )
    got = computed(lines, "u32", ("s32", a), ("s32", b))
    want = [
        (x < y and not x > 0) + 2 * (not x < y and not x > 0) for x, y in zip(a, b, strict=True)
    ]
    assert got.tolist() == want
