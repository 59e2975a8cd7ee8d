"""Tensor cores and what feeds them: mma, ldmatrix, stmatrix and cp.async, for one warp."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from simt.ptx import PtxError, PtxFault
from tests.simt.ptx.small_kernels import run
from tests.simt.ptx.test_ptx_arithmetic import rounded

DRAW = np.random.default_rng(0)
LANES = range(32)
MANTISSA = {"f16": 1023, "bf16": 255}


def numbers(type_: str, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of a type in float32, and their bits. A sum of 16 products is exact in float64."""
    limit = MANTISSA[type_]
    whole = DRAW.integers(-limit, limit, shape, endpoint=True)
    found = (whole * 2.0 ** DRAW.integers(-4, 4, shape)).astype(np.float32)
    if type_ == "bf16":
        return found, (found.view(np.uint32) >> 16).astype(np.uint16)
    return found, found.astype(np.float16).view(np.uint16)


def place_in_a(lane: int, i: int) -> tuple[int, int]:
    """Row and column, as the specification has them: item i of a lane."""
    return lane // 4 + (8 if i % 4 >= 2 else 0), lane % 4 * 2 + (i & 1) + (8 if i >= 4 else 0)


def place_in_b(lane: int, i: int) -> tuple[int, int]:
    return lane % 4 * 2 + (i & 1) + (8 if i >= 2 else 0), lane // 4


def place_in_c(lane: int, i: int) -> tuple[int, int]:
    return lane // 4 + (8 if i >= 2 else 0), lane % 4 * 2 + (i & 1)


def registers(bits: np.ndarray, place: Callable, num_items: int) -> list[np.ndarray]:
    """[32] uint32 each: what every lane holds of a matrix, one or two items in a register."""
    held = np.array([[bits[place(lane, i)] for i in range(num_items)] for lane in LANES])
    return list(held.view(np.uint32).T)


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("type_", MANTISSA)
def test_a_matrix_product_is_rounded_once(type_: str, depth: int) -> None:
    (a, a_bits), (b, b_bits) = numbers(type_, 16, depth), numbers(type_, depth, 8)
    c = (DRAW.integers(-(2**23), 2**23, (16, 8)) * 2.0**-8).astype(np.float32)
    rows = registers(a_bits, place_in_a, depth // 2) + registers(b_bits, place_in_b, depth // 4)
    rows += registers(c.view(np.uint32), place_in_c, 4)
    held = np.stack([*rows, *np.zeros((4, 32), np.uint32)])
    names = [f"%r{n}" for n in range(1, len(rows) + 1)]
    a_end, b_end = depth // 4, depth // 4 + depth // 8
    parts = (", ".join(each) for each in (names[:a_end], names[a_end:b_end], names[b_end:]))
    body = "".join(f"ld.global.b32 {name}, [%rd1+{128 * n}];" for n, name in enumerate(names))
    body += f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{type_}.{type_}.f32 "
    body += "{%r20, %r21, %r22, %r23}, " + ", ".join(f"{{ {part} }}" for part in parts) + ";"
    body += "".join(f"st.global.b32 [%rd1+{128 * (len(rows) + n)}], %r{20 + n};" for n in range(4))
    report = run(body, held, threads=32)
    got = held[-4:].view(np.float32)
    for lane in LANES:
        for i in range(4):
            row, column = place_in_c(lane, i)
            pairs = zip(a[row].tolist(), b[:, column].tolist(), strict=True)
            exact = sum(Fraction(x) * Fraction(y) for x, y in pairs) + Fraction(
                float(c[row, column])
            )
            assert got[i, lane] == np.float32(float(exact))
    assert report.issued["matrix"] == 1


def test_a_matrix_product_in_halves_is_rounded_once() -> None:
    """Of the exact sum; by way of float32 it would be rounded twice, as the third row shows."""
    (a, a_bits), (b, b_bits) = numbers("f16", 16, 16), numbers("f16", 16, 8)
    a[3], b[:, 0] = 0, 0
    a[3, :2], b[:2, 0] = [1, 2.0**-11], [1, 2.0**-14]  # and 2^-11 in c: just above a tie
    a_bits, b_bits = (x.astype(np.float16).view(np.uint16) for x in (a, b))
    c = (DRAW.integers(-1023, 1023, (16, 8)) * 2.0**-3).astype(np.float16)
    c[3, 0] = 2.0**-11
    rows = registers(a_bits, place_in_a, 8) + registers(b_bits, place_in_b, 4)
    rows += registers(c.view(np.uint16), place_in_c, 4)
    held = np.stack([*rows, *np.zeros((2, 32), np.uint32)])
    body = "".join(f"ld.global.b32 %r{1 + n}, [%rd1+{128 * n}];" for n in range(8))
    body += (
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r20, %r21}, {%r1, %r2, %r3, %r4}, "
        "{%r5, %r6}, {%r7, %r8}; st.global.b32 [%rd1+1024], %r20; st.global.b32 [%rd1+1152], %r21;"
    )
    run(body, held, threads=32)
    got = held[8:].copy().view(np.float16).reshape(2, 32, 2)
    for lane in LANES:
        for i in range(4):
            row, column = place_in_c(lane, i)
            pairs = zip(a[row].tolist(), b[:, column].tolist(), strict=True)
            exact = sum(Fraction(x) * Fraction(y) for x, y in pairs) + Fraction(
                float(c[row, column])
            )
            assert got[i // 2, lane, i % 2] == rounded(exact, np.float16)


@pytest.mark.parametrize("depth", [4, 8])
def test_a_tf32_is_a_float32_without_its_lowest_13_bits(depth: int) -> None:
    whole, low = DRAW.integers(-1023, 1023, (2, 16, depth)), DRAW.integers(0, 2**13, (2, 16, depth))
    bits = whole.astype(np.float32).view(np.uint32) | low.astype(np.uint32)
    bits[whole == 0] = 0
    a, b = whole[0], whole[1].T[:, :8]
    c = DRAW.integers(-1000, 1000, (16, 8)).astype(np.float32)
    rows = [[bits[0][lane // 4 + 8 * (i % 2), lane % 4 + 4 * (i // 2)] for lane in LANES]
            for i in range(depth // 2)]  # fmt: skip
    rows += [[bits[1].T[lane % 4 + 4 * i, lane // 4] for lane in LANES] for i in range(depth // 4)]
    rows += registers(c.view(np.uint32), place_in_c, 4)
    held = np.stack([*np.array(rows, np.uint32), *np.zeros((4, 32), np.uint32)])
    names = [f"%r{n}" for n in range(1, len(rows) + 1)]
    ends = 0, depth // 2, depth // 2 + depth // 4, len(rows)
    parts = [", ".join(names[start:end]) for start, end in pairwise(ends)]
    body = "".join(f"ld.global.b32 {name}, [%rd1+{128 * n}];" for n, name in enumerate(names))
    body += f"mma.sync.aligned.m16n8k{depth}.row.col.f32.tf32.tf32.f32 {{%r20, %r21, %r22, %r23}}, "
    body += ", ".join(f"{{{part}}}" for part in parts) + ";"
    body += "".join(f"st.global.b32 [%rd1+{128 * (len(rows) + n)}], %r{20 + n};" for n in range(4))
    run(body, held, threads=32)
    want = a @ b + c
    got = held[-4:].view(np.float32)
    for i in range(4):
        assert got[i].tolist() == [want[place_in_c(lane, i)] for lane in LANES]


@pytest.mark.parametrize("how", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_gives_each_lane_two_neighbours_of_each_matrix(count: int, how: str) -> None:
    """Lanes that have no row have an address outside the memory."""
    matrices = DRAW.permutation(4 * 8 * 8).astype(np.uint16).reshape(4, 8, 8)
    out, rows = np.zeros((count, 32), np.uint32), matrices.reshape(32, 8).view(np.uint32)
    names = ", ".join(f"%r{2 + n}" for n in range(count))
    body = (
        "mad.wide.u32 %rd5, %r0, 16, %rd12; ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd5]; "
        "mov.u32 %r1, dynamic; xor.b32 %r6, %r0, 5; mad.lo.u32 %r1, %r6, 16, %r1; "
        "st.shared.v4.u32 [%r1], {%r2, %r3, %r4, %r5}; bar.sync 0; "
        f"setp.lt.u32 %p1, %r0, {8 * count}; selp.b32 %r1, %r1, 99999, %p1; "
        f"ldmatrix.sync.aligned.m8n8.x{count}{how}.shared.b16 {{{names}}}, [%r1];"
    )
    body += "".join(f"st.global.b32 [%rd1+{128 * n}], %r{2 + n};" for n in range(count))
    report = run(body, out, rows, threads=32, shared_bytes=512)
    for number, matrix in enumerate(matrices[:count]):
        matrix = matrix.T if how else matrix
        want = [matrix[lane // 4, lane % 4 * 2 :][:2].tolist() for lane in LANES]
        assert out[number].view(np.uint16).reshape(32, 2).tolist() == want
    assert report.issued["load shared"] == 1


@pytest.mark.parametrize("how", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_takes_two_neighbours_of_each_matrix_from_a_lane(count: int, how: str) -> None:
    held = DRAW.permutation(count * 8 * 8).astype(np.uint16).view(np.uint32).reshape(count, 32)
    out, names = np.zeros((32, 4), np.uint32), ", ".join(f"%r{2 + n}" for n in range(count))
    body = "".join(f"ld.global.b32 %r{2 + n}, [%rd2+{128 * n}];" for n in range(count))
    body += (
        "mov.u32 %r1, dynamic; xor.b32 %r6, %r0, 5; mad.lo.u32 %r1, %r6, 16, %r1; "
        f"setp.lt.u32 %p1, %r0, {8 * count}; selp.b32 %r1, %r1, 99999, %p1; "
        f"stmatrix.sync.aligned.m8n8.x{count}{how}.shared.b16 [%r1], {{{names}}}; bar.sync 0; "
        "mad.wide.u32 %rd5, %r0, 16, %rd11; "
        "@%p1 ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r1]; "
        "@%p1 st.global.v4.u32 [%rd5], {%r2, %r3, %r4, %r5};"
    )
    report = run(body, out, held, threads=32, shared_bytes=512)
    for number, matrix in enumerate(out.view(np.uint16).reshape(4, 8, 8)[:count]):
        matrix = matrix.T if how else matrix
        found = [matrix[lane // 4, lane % 4 * 2 :][:2].tolist() for lane in LANES]
        assert held[number].view(np.uint16).reshape(32, 2).tolist() == found
    assert report.issued["store shared"] == 1


@pytest.mark.parametrize(("how", "num_bytes"), [("ca", 4), ("ca", 8), ("cg", 16)])
def test_a_copy_takes_its_bytes_or_zeros(how: str, num_bytes: int) -> None:
    """Lanes from 20 on copy none, from an address that no array has; those from 28 don't copy."""
    words = num_bytes // 4
    a = DRAW.integers(1, 2**32, (32, words), dtype=np.uint32)
    out = np.full((32, words), 7, np.uint32)
    names = ", ".join(f"%r{10 + n}" for n in range(words))
    vector = f".v{words}" if words > 1 else ""
    body = (
        f"mad.wide.u32 %rd5, %r0, {num_bytes}, %rd12; mad.wide.u32 %rd6, %r0, {num_bytes}, %rd11; "
        f"mov.u32 %r1, dynamic; mad.lo.u32 %r1, %r0, {num_bytes}, %r1; setp.lt.u32 %p1, %r0, 20; "
        f"setp.lt.u32 %p2, %r0, 28; selp.b32 %r2, {num_bytes}, 0, %p1; "
        "selp.b64 %rd5, %rd5, 0, %p1; "
        f"@%p2 cp.async.{how}.shared.global [%r1], [%rd5], {num_bytes}, %r2; cp.async.wait_all; "
        f"@%p2 ld.shared{vector}.b32 {{{names}}}, [%r1]; "
        f"@%p2 st.global{vector}.b32 [%rd6], {{{names}}};"
    )
    report = run(body, out, a, threads=32, shared_bytes=512)
    assert np.array_equal(out[:20], a[:20])
    assert np.array_equal(np.unique(out[20:28]), [0])
    assert np.array_equal(np.unique(out[28:]), [7])
    assert report.issued["copy"] == report.issued["copy group"] == 1


def test_a_thread_waits_for_all_but_its_newest_groups() -> None:
    """The first of two groups has arrived, so it can be read; even lanes have only that one."""
    body = (
        "mov.u32 %r1, s; mad.lo.u32 %r1, %r0, 4, %r1; and.b32 %r2, %r0, 1; "
        "setp.eq.u32 %p1, %r2, 1; cp.async.ca.shared.global [%r1], [%rd1], 4; "
        "cp.async.commit_group; @%p1 cp.async.ca.shared.global [%r1+128], [%rd1], 4; "
        "cp.async.commit_group; cp.async.wait_group 1; ld.shared.b32 %r3, [%r1]; "
        "cp.async.wait_group 0x0; @%p1 ld.shared.b32 %r3, [%r1+128]; "
        "add.u32 %r3, %r3, 1; st.global.b32 [%rd1], %r3;"
    )
    array = np.arange(32, dtype=np.uint32)
    run(body, array)
    assert array.tolist() == list(range(1, 33))


def test_a_thread_block_does_not_wait_for_the_copies_of_an_earlier_one() -> None:
    body = (
        "mov.u32 %r1, s; mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r2, 0; "
        "@%p1 cp.async.ca.shared.global [%r1], [%rd1], 4; @%p1 bra END; "
        "cp.async.wait_all; ld.shared.b32 %r3, [%r1]; END:"
    )
    with pytest.raises(PtxFault, match=r"init: thread 0 of thread block 1.* was never written"):
        run(body, np.zeros(1, np.uint32), grid=2)


@pytest.mark.parametrize("instruction", [
    "mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16 {%r1, %r2}, {%r1, %r2, %r3, %r4}, "
    "{%r1, %r2}, {%r1, %r2}",
    "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r1, %r2}, {%r1, %r2}, {%r3}, {%r1}",
    "mma.sync.aligned.m16n8k4.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2}, {%r1}, "
    "{%f1, %f2, %f3, %f4}",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1, %r2, %r3, %r4}, {%r1, %r2}, "
    "{%r1, %r2}, {%r1, %r2, %r3, %r4}",
    "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r2]",
    "cp.async.ca.shared.global [%r1], [%rd1], 4, %p1",
    "cp.async.ca.shared.global [%r1], [%rd1], 4, 3",
    "cp.async.bulk.commit_group",
    "cvt.rn.relu.f16x2.f32 %r1, %f1, %f2",
    "cvt.rn.satfinite.e4m3x2.f16x2 %h1, %r1",
    "cvt.rz.f16.f32 %h1, %f1",
    "max.xorsign.abs.f32 %f1, %f1, %f1",
    "add.sat.s32 %r1, %r1, %r1",
    "fma.rn.relu.f32 %f1, %f1, %f1, %f1",
    "add.rz.f16 %h1, %h1, %h1",
    "add.rn.ftz.f16 %h1, %h1, %h1",
    "rsqrt.rz.f32 %f1, %f1",
    "xor.cc.b32 %r1, %r1, %r1",
    "addc.sat.s32 %r1, %r1, %r1",
    "prmt.b32.f5e %r1, %r1, %r1, %r1",
    "dp4a.lo.u32.u32 %r1, %r1, %r1, %r1",
    "match.some.sync.b32 %r1, %r1, -1",
    "redux.sync.mul.s32 %r1, %r1, -1",
    "bar.red.xor.pred %p1, 0, %p1",
    "bar.red.popc.u32 %r1, 1, %p1",
    "isspacep.const %p1, %rd1",
    "testp.odd.f32 %p1, %f1",
    "atom.global.add.f16 %h1, [%rd1], %h1",
])  # fmt: skip
def test_what_is_not_known_is_refused(instruction: str) -> None:
    with pytest.raises(PtxError, match="doesn't know this instruction: line 14"):
        run(f"mov.u32 %r1, s; {instruction};", np.zeros(32, np.uint32))
