"""What a launch hands to a compiled kernel, and what Numba compiles into it."""

import math

import numpy as np
import pytest

from simt import cuda, launch
from simt.ptx import PtxFault, run_ptx

pytestmark = pytest.mark.needs("numba-cuda")
TABLE = cuda.to_device(np.arange(8, dtype=np.float32))
PART = TABLE[2:6]
PAIR = cuda.to_device(np.arange(4)), cuda.to_device(np.arange(4) * 10)
COUNTS = cuda.to_device(np.zeros(8, np.int32))


@cuda.jit
def kernel_with_tables(out, first):
    i = cuda.grid(1)
    out[i] = PART[i] + TABLE[first + i] + PAIR[1][i]
    COUNTS[i] = i + 1


def test_a_kernel_reads_and_writes_global_device_arrays_in_place() -> None:
    out = np.zeros(4, np.float32)
    run_ptx(kernel_with_tables, 1, 4, out, 4)
    assert out.tolist() == [2 + 4, 3 + 5 + 10, 4 + 6 + 20, 5 + 7 + 30]
    assert COUNTS.copy_to_host().tolist() == [1, 2, 3, 4, 0, 0, 0, 0]
    with pytest.raises(PtxFault, match=r"thread 3 .* past the end of global PART and global"):
        run_ptx(kernel_with_tables, 1, 4, out, 5)


@cuda.jit("(int64, int64)", device=True)
def add(x, y):
    return x + y


plus_one = cuda.jit(device=True)(
    lambda x: x + 1  # Numba doesn't find the line of a lambda
)


@cuda.jit
def kernel_with_functions(out, same, a, x, y):
    i = cuda.grid(1)
    out[i] = plus_one(a[i].view(np.int32)) + add(x, y)
    same[i] = cuda.match_any_sync(0xFFFFFFFF, a[i])


def test_both_engines_take_functions_of_all_kinds_and_the_bits_of_floats() -> None:
    """With a signature, and as lambdas; lanes with equal numbers have the same bits."""
    a = np.array([0.0, -0.0, np.nan, np.nan, 1, 1, 2.5, np.inf] * 4, np.float32)
    for run in (launch, run_ptx):
        out, same = np.zeros((2, 32), np.int32)
        run(kernel_with_functions, 1, 32, out, same, a, 1.5, 2.5)
        assert out.tolist() == (a.view(np.int32) + 1 + 1 + 2).tolist()
        assert same[:4].tolist() == [0x01010101, 0x02020202, 0x0C0C0C0C, 0x0C0C0C0C]


@cuda.jit
def one_by_one(out, x, y):
    out[0], out[1] = math.remainder(x, y), math.erf(x)
    out[2], out[3], out[4] = math.erfc(x), math.gamma(x), math.lgamma(x)


def test_functions_of_a_number_that_all_lanes_share_are_those_of_compiled_code() -> None:
    out = np.zeros((2, 5))
    launch(one_by_one, 1, 1, out[0], 5.0, 3.0)
    run_ptx(one_by_one, 1, 1, out[1], 5.0, 3.0)
    np.testing.assert_allclose(out[0], out[1], rtol=1e-12)


@cuda.jit
def kernel_with_arguments(out, half, nothing, nested, number, record, pair):
    out[0], out[1], out[2] = half, nested[0], nested[1][1]
    out[3], out[4] = number.real * number.imag, record.a
    out[5] = pair[0][1] + pair[1][0]
    record.b = 7 if nothing is None else 8


def test_numbers_of_all_kinds_records_and_tuples_of_arrays_are_arguments() -> None:
    record = np.zeros(1, np.dtype([("a", np.float64), ("b", np.int32)], align=True))
    record["a"] = 2.5
    out, pair = np.zeros(6), (np.arange(3.0), cuda.to_device(np.arange(4, 6)))
    numbers = np.float16(1.5), None, (7, (2, 2.25)), 1.5 + 2j
    run_ptx(kernel_with_arguments, 1, 1, out, *numbers, record[0], pair)
    assert out.tolist() == [1.5, 7, 2.25, 3, 2.5, 5]
    assert record[0]["b"] == 7
