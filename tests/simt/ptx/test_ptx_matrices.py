"""Tensor cores and what feeds them: mma, ldmatrix, stmatrix and cp.async, for one warp."""

from collections.abc import Callable
from fractions import Fraction
from itertools import chain

import ml_dtypes
import numpy as np
import pytest

from tests.simt.ptx.small_kernels import run
from tests.simt.ptx.test_ptx_arithmetic import rounded

DRAW = np.random.default_rng(0)
LANES = range(32)
# A sum of 16 products of these is exact in float64.
NUMBERS = {"f16": (1023, np.float16), "bf16": (255, ml_dtypes.bfloat16), "tf32": (1023, np.float32)}


def numbers(type_: str, *shape: int) -> np.ndarray:
    limit, dtype = NUMBERS[type_]
    whole = DRAW.integers(-limit, limit, shape, endpoint=True)
    return (whole * 2.0 ** DRAW.integers(-4, 4, shape)).astype(dtype)


def place_in_a(lane: int, i: int, num: int) -> tuple[int, int]:
    """Row and column, as the specification has them: item i of a lane, with `num` in a register."""
    return lane // 4 + 8 * (i // num % 2), lane % 4 * num + i % num + 4 * num * (i // num // 2)


def place_in_b(lane: int, i: int, num: int) -> tuple[int, int]:
    return lane % 4 * num + i % num + 4 * num * (i // num), lane // 4


def place_in_c(lane: int, i: int, _num: int) -> tuple[int, int]:
    return lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2


def registers(matrix: np.ndarray, place: Callable, num_items: int) -> list[np.ndarray]:
    """[32] uint32 each: what every lane holds of a matrix, one or two items in a register."""
    num = 4 // matrix.itemsize
    held = np.array([[matrix[place(lane, i, num)] for i in range(num_items)] for lane in LANES])
    return list(held.view(np.uint32).T)


@pytest.mark.parametrize(("type_", "sum_", "depth"), [
    ("f16", "f32", 8), ("f16", "f32", 16), ("bf16", "f32", 16), ("f16", "f16", 16),
    ("tf32", "f32", 4), ("tf32", "f32", 8),
])  # fmt: skip
def test_a_matrix_product_is_rounded_once(type_: str, sum_: str, depth: int) -> None:
    """Of the exact sum: in halves it would be rounded twice by way of float32, as row 3 shows. A
    tf32 is a float32 without its lowest 13 bits."""
    a, b = numbers(type_, 16, depth), numbers(type_, depth, 8)
    c = DRAW.integers(-1023, 1023, (16, 8)) * 2.0**-3
    if sum_ == "f16":
        a[3], b[:, 0] = 0, 0
        a[3, :2], b[:2, 0] = [1, 2.0**-11], [1, 2.0**-14]
        c[3, 0] = 2.0**-11  # just above a tie
    else:
        c += 2.0**-8 * DRAW.integers(-(2**14), 2**14, c.shape)
    c = c.astype({"f16": np.float16, "f32": np.float32}[sum_])
    given = [np.array(x) for x in (a, b)]
    if type_ == "tf32":
        for bits in (x.view(np.uint32) for x in given):
            bits[bits != 0] |= DRAW.integers(0, 2**13, np.count_nonzero(bits), np.uint32)
    each = [
        registers(given[0], place_in_a, depth // 2),
        registers(given[1], place_in_b, depth // 4),
    ]
    each += [registers(c, place_in_c, 4)]
    held = np.stack([*chain(*each)])
    names = iter(f"%r{n}" for n in range(len(held)))
    parts = [f"{{{', '.join(next(names) for _ in part)}}}" for part in each]
    body = "".join(f"ld.global.b32 %r{n}, [%rd1+{128 * n}];" for n in range(len(held)))
    body += f"mma.sync.aligned.m16n8k{depth}.row.col.{sum_}.{type_}.{type_}.{sum_} "
    body += f"{parts[2]}, {', '.join(parts)};"
    body += "".join(f"st.global.b32 [%rd1+{128 * n}], %r{n};" for n in range(len(held)))
    report = run(body, held, threads=32)
    got = np.stack(held[-len(each[2]) :], axis=1).view(c.dtype)
    a, b, c = (x.astype(np.float64).tolist() for x in (a, b.T, c))
    for lane in LANES:
        for i in range(4):
            row, column = place_in_c(lane, i, 1)
            pairs = zip(a[row], b[column], strict=True)
            exact = sum(Fraction(x) * Fraction(y) for x, y in pairs) + Fraction(c[row][column])
            assert got[lane, i] == rounded(exact, sum_)
    assert report.issued["matrix"] == 1


@pytest.mark.parametrize("how", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_lane_has_two_neighbours_of_each_matrix(count: int, how: str) -> None:
    """ldmatrix, and stmatrix back. Lanes that have no row have an address outside the memory."""
    matrices = DRAW.permutation(4 * 8 * 8).astype(np.uint16).reshape(4, 8, 8)
    out, rows = np.zeros((32, 4), np.uint32), matrices.reshape(32, 8).view(np.uint32)
    held, names = np.zeros((count, 32), np.uint32), ", ".join(f"%r{2 + n}" for n in range(count))
    body = (
        "mad.wide.u32 %rd5, %r0, 16, %rd12; mov.u32 %r1, dynamic; xor.b32 %r6, %r0, 5; "
        "mad.lo.u32 %r1, %r6, 16, %r1; cp.async.cg.shared.global [%r1], [%rd5], 16; "
        "cp.async.wait_all; bar.sync 0; "
        f"setp.lt.u32 %p1, %r0, {8 * count}; selp.b32 %r1, %r1, 99999, %p1; "
        f"ldmatrix.sync.aligned.m8n8.x{count}{how}.shared.b16 {{{names}}}, [%r1]; add.u32 %r7, "
        f"%r1, 512; stmatrix.sync.aligned.m8n8.x{count}{how}.shared.b16 [%r7], {{{names}}}; "
    )
    body += "".join(f"st.global.b32 [%rd3+{128 * n}], %r{2 + n};" for n in range(count))
    body += (
        "bar.sync 0; mad.wide.u32 %rd5, %r0, 16, %rd11; "
        "@%p1 ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r7]; "
        "@%p1 st.global.v4.u32 [%rd5], {%r2, %r3, %r4, %r5};"
    )
    report = run(body, out, rows, held, threads=32, shared_bytes=1024)
    for number, matrix in enumerate(matrices[:count]):
        matrix = matrix.T if how else matrix
        want = [matrix[lane // 4, lane % 4 * 2 :][:2].tolist() for lane in LANES]
        assert held[number].view(np.uint16).reshape(32, 2).tolist() == want
    assert np.array_equal(out[: 8 * count], rows[: 8 * count])
    assert (report.issued["load shared"], report.issued["store shared"]) == (2, 1)


def test_a_copy_takes_its_bytes_or_zeros() -> None:
    """Lanes from 20 on copy none, from an address that no array has; those from 28 don't copy."""
    a, out = DRAW.integers(1, 2**32, 32, dtype=np.uint32), np.full(32, 7, np.uint32)
    body = (
        "mov.u32 %r1, s; mad.lo.u32 %r1, %r0, 4, %r1; setp.lt.u32 %p1, %r0, 20; "
        "setp.lt.u32 %p2, %r0, 28; selp.b32 %r2, 4, 0, %p1; selp.b64 %rd5, %rd2, 0, %p1; "
        "@%p2 cp.async.ca.shared.global [%r1], [%rd5], 4, %r2; cp.async.wait_all; "
        "@%p2 ld.shared.b32 %r3, [%r1]; @%p2 st.global.b32 [%rd1], %r3;"
    )
    report = run(body, out, a)
    assert out.tolist() == [*a[:20].tolist(), *[0] * 8, *[7] * 4]
    assert report.issued["copy"] == report.issued["copy group"] == 1
