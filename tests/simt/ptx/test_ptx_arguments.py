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
    out[i] = PART[i] + TABLE[first + i]
    COUNTS[i] = i + 1


@cuda.jit
def kernel_with_pair(out):
    i = cuda.grid(1)
    out[i] = PAIR[0][i] + PAIR[1][i]


@cuda.jit("(int64, int64)", device=True)
def add(x, y):
    return x + y


plus_one = cuda.jit(device=True)(
    lambda x: x + 1  # Numba doesn't find the line of a lambda
)


@cuda.jit
def kernel_with_lambda(out, a):
    i = cuda.grid(1)
    out[i] = plus_one(a[i].view(np.int32))


@cuda.jit
def kernel_with_signature(out, x, y):
    out[0] = add(x, y)


@cuda.jit
def kernel_with_numbers(out, half, nested):
    out[0], out[1], out[2] = half, nested[0], nested[1][1]


@cuda.jit
def kernel_with_parts(out, number, record, pair):
    out[0], out[1] = number.real * number.imag, record.a
    out[2] = pair[0][1] + pair[1][0]
    record.b = 7


@cuda.jit
def lanes_with_the_same_bits(out, a):
    t = cuda.threadIdx.x
    out[t] = cuda.match_any_sync(0xFFFFFFFF, a[t])


def test_both_engines_compare_the_bits_of_floats() -> None:
    """The kernel uses simt.cuda, of which Numba doesn't know what its threadIdx is."""
    a = np.array([0.0, -0.0, np.nan, np.nan, 1, 1, 2, 2] * 4, np.float32)
    simulated, compiled = np.zeros((2, 32), np.int32)
    launch(lanes_with_the_same_bits, 1, 32, simulated, a)
    run_ptx(lanes_with_the_same_bits, 1, 32, compiled, a)
    assert simulated.tolist() == compiled.tolist()
    assert simulated[:4].tolist() == [0x01010101, 0x02020202, 0x0C0C0C0C, 0x0C0C0C0C]


def test_a_kernel_reads_and_writes_global_device_arrays_in_place() -> None:
    out = np.zeros(4, np.float32)
    run_ptx(kernel_with_tables, 1, 4, out, 4)
    assert out.tolist() == [2 + 4, 3 + 5, 4 + 6, 5 + 7]
    assert COUNTS.copy_to_host().tolist() == [1, 2, 3, 4, 0, 0, 0, 0]


def test_global_device_arrays_may_be_in_a_tuple() -> None:
    out = np.zeros(4)
    run_ptx(kernel_with_pair, 1, 4, out)
    assert out.tolist() == [0, 11, 22, 33]


def test_an_index_past_the_end_of_a_global_device_array_is_a_fault() -> None:
    with pytest.raises(
        PtxFault, match=r"memory: thread 3 .* just past the end of global PART and global"
    ):
        run_ptx(kernel_with_tables, 1, 4, np.zeros(4, np.float32), 5)


def test_a_device_function_is_compiled_for_its_signature() -> None:
    out = np.zeros(1)
    run_ptx(kernel_with_signature, 1, 1, out, 1.5, 2.5)
    assert out[0] == 1 + 2


def test_both_engines_run_a_lambda_and_know_the_bits_of_a_number() -> None:
    a, out = np.array([1, 2.5, -0.0, np.inf], np.float32), np.zeros((2, 4), np.int32)
    launch(kernel_with_lambda, 1, 4, out[0], a)
    run_ptx(kernel_with_lambda, 1, 4, out[1], a)
    assert out.tolist() == [(a.view(np.int32) + 1).tolist()] * 2


@cuda.jit
def one_by_one(out, x, y):
    out[0], out[1] = math.remainder(x, y), math.erf(x)
    out[2], out[3], out[4] = math.erfc(x), math.gamma(x), math.lgamma(x)


def test_functions_of_a_number_that_all_lanes_share_are_those_of_compiled_code() -> None:
    out = np.zeros((2, 5))
    launch(one_by_one, 1, 1, out[0], 5.0, 3.0)
    run_ptx(one_by_one, 1, 1, out[1], 5.0, 3.0)
    np.testing.assert_allclose(out[0], out[1], rtol=1e-12)


def test_a_float16_and_tuples_of_tuples_are_arguments() -> None:
    out = np.zeros(3)
    run_ptx(kernel_with_numbers, 1, 1, out, np.float16(1.5), (7, (2, 2.25)))
    assert out.tolist() == [1.5, 7, 2.25]


def test_a_record_complex_numbers_and_arrays_in_tuples_are_arguments() -> None:
    record = np.zeros(1, np.dtype([("a", np.float64), ("b", np.int32)], align=True))
    record["a"] = 2.5
    out, pair = np.zeros(3), (np.arange(3.0), cuda.to_device(np.arange(4, 6)))
    run_ptx(kernel_with_parts, 1, 1, out, 1.5 + 2j, record[0], pair)
    assert out.tolist() == [3, 2.5, 5]
    assert record[0]["b"] == 7
