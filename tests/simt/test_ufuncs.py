"""@vectorize and @guvectorize for CUDA, against NumPy."""

import re
from collections.abc import Callable

import numba
import numpy as np
import pytest
from numba import float32, int32

from simt import Unsupported, cuda, simulate
from simt.device_array import DeviceArray

RNG = np.random.default_rng(0)
TYPES = np.float32, np.float64, np.int32
SIGNATURES = ["float32(float32, float32)", "float64(float64, float64)", int32(int32, int32)]
LAYOUT = "(m,n),(n,p)->(m,p)"
MATRICES = [f"void({', '.join(3 * [f'{one}[:,:]'])})" for one in ("float32", "float64", "int32")]


def plus_half(a, b):
    return a + b / 2


def multiplied(a, b, c):
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            c[i, j] = 0
            for k in range(a.shape[1]):
                c[i, j] += a[i, k] * b[k, j]


def numbers(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Small whole numbers: their sums and products are exact in each type."""
    return RNG.integers(-50, 50, shape).astype(dtype)


def assert_same(found: object, expected: np.ndarray, kind: type) -> None:
    assert type(found) is kind
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


half, matmul = cuda.vectorize(SIGNATURES)(plus_half), cuda.guvectorize(MATRICES, LAYOUT)(multiplied)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1000,), (4, 1, 3), (4, 5, 1), (1,)])
def test_a_ufunc_broadcasts_and_takes_the_signature_of_its_arrays(
    shape: tuple[int, ...], dtype: type
) -> None:
    a, b = numbers(shape, dtype), numbers((4, 1, 3) if len(shape) == 3 else (1000,), dtype)
    expected = (a + b / 2).astype(dtype)
    out = cuda.device_array(expected.shape, dtype)
    assert_same(half(a, b), expected, np.ndarray)
    assert_same(half(cuda.to_device(a), b, stream=cuda.stream()), expected, DeviceArray)
    half(cuda.to_device(a), cuda.to_device(b), out=out)
    assert_same(out, expected, DeviceArray)


def test_a_ufunc_takes_numbers_views_and_empty_arrays() -> None:
    there = cuda.to_device(np.arange(100, dtype=np.float32))
    assert_same(half(there[:0], 1).copy_to_host(), np.zeros(0, np.float32), np.ndarray)
    assert_same(half(there.copy_to_host(), 3), np.arange(1.5, 101, dtype=np.float32), np.ndarray)
    assert half(1.5, 3.0) == [3]
    assert np.array_equal(half(there[::2], there[1::2]), np.arange(0, 100, 2) * 1.5 + 0.5)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 129])
@pytest.mark.parametrize("where", [np.asarray, cuda.to_device])
def test_reduce_gives_one_number(size: int, where: Callable) -> None:
    largest = cuda.vectorize(["int32(int32, int32)"])(lambda a, b: max(a, b))
    assert largest.reduce(where(RNG.permutation(size).astype(np.int32))) == size - 1


@pytest.mark.parametrize("dtype", TYPES)
def test_a_generalized_ufunc_gets_matrices(dtype: type) -> None:
    a, b = numbers((6, 3, 4), dtype), numbers((6, 4, 5), dtype)
    assert np.array_equal(matmul(a, b), a @ b)
    assert np.array_equal(matmul(a.reshape(2, 3, 3, 4), b[0]), (a @ b[0]).reshape(2, 3, 3, 5))
    assert_same(matmul(cuda.to_device(a), b), a @ b, DeviceArray)
    out = np.zeros((6, 3, 5), dtype)
    matmul(a, b, out=out)
    assert np.array_equal(out, a @ b)


def scaled(a, factor, out):
    for i in range(a.size):
        out[i] = a[i] * factor


def test_a_generalized_ufunc_gets_a_number_as_such() -> None:
    scale = cuda.guvectorize(["void(float32[:], float32, float32[:])"], "(n),()->(n)")(scaled)
    a, factors = numbers((6, 5), np.float32), numbers((6,), np.float32)
    assert np.array_equal(scale(a, factors), a * factors[:, None])
    assert np.array_equal(scale(a, np.float32(3)), 3 * a)


def summed_and_counted(a, total, count):
    total[0] = count[0] = 0
    for i in range(a.size):
        total[0] += a[i]
        count[0] += a[i] > 0


def test_a_generalized_ufunc_may_have_several_results() -> None:
    decorate = cuda.guvectorize("void(float32[:], float32[:], int64[:])", "(n)->(),()")
    a = numbers((40, 7), np.float32)
    total, count = decorate(summed_and_counted)(a)
    assert np.array_equal(total, a.sum(1))
    assert np.array_equal(count, (a > 0).sum(1))


def test_numbas_own_decorators_need_no_gpu_either() -> None:
    a = numbers((8, 5), np.float32)
    with simulate():
        made = numba.vectorize(SIGNATURES, target="cuda")(plus_half)
        general = numba.guvectorize(MATRICES, LAYOUT, target="cuda")(multiplied)
        assert np.array_equal(general(a, a.T.copy()), a @ a.T)
    assert made.__name__ == half.__name__ == "plus_half"
    assert np.array_equal(made(a, a), a + a / 2)


def test_ufuncs_of_one_name_have_kernels_of_their_own() -> None:
    def make(number: int) -> Callable:
        return cuda.vectorize(["int32(int32)"])(lambda a: a + number)

    one, two = make(1), make(2)
    assert [f(np.zeros(3, np.int32))[0] for f in (one, two, one)] == [1, 2, 1]


A = np.zeros((6, 5), np.float32)
REFUSED = {
    # Numba compares axes from the first, and would use a[0][0] for all items.
    "half(A, A[0])": (ValueError, "shapes are (6, 5), (5,)"),
    "half(A)": (TypeError, "plus_half takes 3 arguments (a0, a1, out); it got 2"),
    "cuda.vectorize(['(f4,)'])(scaled)": (Unsupported, "the signature (f4,) in @vectorize"),
    "cuda.vectorize(['f4(f4)'])(lambda x: x)": (Unsupported, "The source of <lambda>"),
    "cuda.guvectorize(['f4(f4[:], f4[:])'], '(n)->()')(scaled)": (TypeError, "no result"),
    "cuda.guvectorize(['void(f4[:], f4[:,:])'], '(n)->(n)')(scaled)": (TypeError, "(n)->(n)"),
    "matmul(A, A.T.copy(), out=cuda.device_array((6, 6)))": (TypeError, "misread their bytes"),
}


@pytest.mark.parametrize("expression", REFUSED)
def test_what_a_ufunc_cannot_do_is_named(expression: str) -> None:
    error, words = REFUSED[expression]
    with pytest.raises(error, match=re.escape(words)):
        eval(expression)


def test_a_signature_decides_what_the_function_computes_with() -> None:
    """The result is cut to the declared type."""
    cut = cuda.vectorize([int32(float32)])(lambda a: 3 * a)
    a = np.array([1.5, -1.5, 2**24 + 2], np.float32)
    assert_same(cut(a), np.array([4, -4, 3 * (2**24 + 2)], np.int32), np.ndarray)
