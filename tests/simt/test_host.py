"""Programs written for numba.cuda: device arrays, streams and the rest outside of kernels."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from simt import SimtError, cuda

A = np.arange(100, dtype=np.float32)


@cuda.jit
def double_each(out, a):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = 2 * a[i]


@cuda.jit("void(float32[:], float32)")
def add(a, number):
    i = cuda.grid(1)
    if i < a.size:
        a[i] += number


def test_arrays_are_made_copied_and_split_in_the_order_of_a_stream() -> None:
    stream = cuda.stream()
    a = cuda.to_device(A, stream)
    out = cuda.device_array_like(a)
    assert np.isnan(out).all()
    double_each[4, 32, stream](out, a)
    assert np.array_equal(out.copy_to_host(), 2 * A)
    out.copy_to_device(A)
    assert [part.copy_to_host()[-1] for part in out.split(64)] == [63, 99]
    assert cuda.to_device(2 * A, to=out) is out
    assert np.array_equal(out.copy_to_host(np.zeros_like(A)), 2 * A)
    assert a.stream is cuda.device_array(3, stream=stream).stream is stream


def test_a_device_array_is_a_copy_in_the_same_order() -> None:
    """A program that changes one must not change the other."""
    fortran = np.asfortranarray(A.reshape(10, 10))
    there = cuda.to_device(fortran)
    there[0, 0] = 5
    assert fortran[0, 0] == 0
    for host in (np.asarray(there), there.copy_to_host()):
        assert type(host) is np.ndarray
        assert np.array_equal(host[1:], fortran[1:])
        host[0, 0] = 99
        assert there[0, 0] == 5
    assert there.is_f_contiguous()
    assert cuda.device_array_like(there).is_f_contiguous()
    assert cuda.is_cuda_array(there) > cuda.is_cuda_array(fortran)


NOT_THERE = {
    "there + 1": "can't be computed with outside of kernels",
    "there > 1": "can't be computed with",
    "there.sum()": "a device array has no sum: copy_to_host() gives",
    "there.adn": "a device array has no adn",
    "there[there.copy_to_host() > 1]": "takes numbers and slices as an index, not array",
    "there[:, None]": "takes numbers and slices as an index, not None",
    "there.reshape(10, 10).T.reshape(10, 10).transpose((1, 0, 2))": "don't match",
    "there.reshape(4, 25)[:, 0].ravel()": "isn't contiguous",
    "there[::-1].copy_to_host()": "the strides are",
    "there.T": "of 1 dimensions has no transpose",
    "there[::2].split(4)": "must have one dimension and no gaps",
    "cuda.to_device(A[::2])": "obj isn't contiguous",
    "there[::2].copy_to_device(A[::2])": "the device array isn't contiguous",
    "np.asarray(there, copy=False)": "without a copy",
    "cuda.as_cuda_array(A)": "obj is a ndarray",
}


@pytest.mark.parametrize("expression", NOT_THERE)
def test_what_a_device_array_cannot_do_is_named(expression: str) -> None:
    there, errors = cuda.to_device(A), (AttributeError, NotImplementedError, TypeError, ValueError)
    with pytest.raises(errors, match=re.escape(NOT_THERE[expression])):
        eval(expression, {"there": there, "np": np, "cuda": cuda, "A": A})


def test_parts_and_views_of_a_device_array_share_its_numbers() -> None:
    there = cuda.to_device(A)
    square = there.reshape(10, 10)
    square[2, 3:5] = there[97:99]
    square.ravel()[0] = square.reshape(1, 100).squeeze()[99]
    there.view(np.int32)[1] = 7
    expected = A.copy()
    expected[23:25], expected[0], expected.view(np.int32)[1] = A[97:99], 99, 7
    assert np.array_equal(there, expected)
    assert len(square) == 10
    square.T[0, 0] = 5  # a copy
    assert np.array_equal(square.T[1], expected.reshape(10, 10)[:, 1])


def test_a_device_array_tells_others_where_it_is() -> None:
    there = cuda.to_device(A)
    part = there[2:]
    interface = part.__cuda_array_interface__
    assert interface["data"] == (there.device_ctypes_pointer.value + 8, False)
    assert (interface["shape"], interface["strides"], interface["typestr"]) == ((98,), None, "<f4")
    foreign = SimpleNamespace(__cuda_array_interface__=interface)
    double_each[4, 32](foreign, cuda.to_device(A[:98]))
    assert cuda.as_cuda_array(foreign)[0] == there[2] == 0
    assert there[99] == 2 * 97
    assert cuda.to_device(there) is cuda.as_cuda_array(there) is there
    assert np.isnan(cuda.to_device(A, copy=False)).all()


def test_host_and_device_share_a_mapped_array() -> None:
    mapped, host = cuda.mapped_array(100, np.float32), np.zeros(4)
    mapped[:] = A
    double_each[4, 32](mapped, A)
    assert (mapped + 1).sum() == (2 * A + 1).sum()
    assert type(mapped.copy_to_host()) is type(cuda.pinned_array(3)) is np.ndarray
    with cuda.mapped(host) as one, cuda.mapped(host, A) as several:
        one[1] = 3
        assert [len(each) for each in several] == [4, 100]
    assert host[1] == 3


def test_a_copy_between_arrays_that_do_not_match_is_refused() -> None:
    there, matrix = cuda.to_device(A), np.asfortranarray(A.reshape(10, 10))
    for copy in (there.copy_to_host, there.copy_to_device):
        for other, error in ((A.astype(np.float64), TypeError), (A[:50], ValueError)):
            with pytest.raises(error, match="same type and shape"):
                copy(other)
    assert np.array_equal(there, A)
    row, square = cuda.to_device(A[None]), cuda.to_device(A.reshape(10, 10))
    assert np.array_equal(row.copy_to_host(np.zeros_like(A)), A)  # an axis of one item
    for one, target in ((row, np.zeros((200,), A.dtype)[::2]), (cuda.to_device(matrix), A + 0)):
        with pytest.raises(ValueError, match="the same"):
            one.copy_to_host(target)
    with pytest.raises(ValueError, match="same strides"):
        square.copy_to_device(cuda.to_device(matrix))
    square.copy_to_device(matrix)  # Numba copies it on the host first


def test_what_a_program_asks_of_the_device_is_as_numbas() -> None:
    context, device = cuda.current_context(), cuda.get_current_device()
    free, total = context.get_memory_info()
    assert 0 < free <= total
    assert device.get_primary_context() is context
    context.deallocations.clear()
    context.reset()


def test_forall_launches_enough_threads_and_hints_hold() -> None:
    a, out = A.copy(), np.zeros_like(A)
    double_each[4, 32](cuda.Out(out), cuda.In(a))
    add.forall(len(a))(cuda.In(a), 1)
    add.forall(len(a))(cuda.InOut(out), 1)
    add.forall(0)(out, 1)
    assert np.array_equal(a, A)
    assert np.array_equal(out, 2 * A + 1)
    with pytest.raises(SimtError, match=r"^init: .* reads a\[0\] in global memory"):
        add[4, 32](cuda.Out(out), 1)


def test_reduce_takes_a_function_of_two_numbers() -> None:
    total = cuda.reduce(lambda x, y: x + y)
    assert total(cuda.to_device(A)) == A.sum()
    assert total(A, size=3, init=10) == 13
    result = cuda.device_array(1, np.float32)
    assert total(A, res=result) is None
    assert result[0] == A.sum()


TESTS = """
import numpy as np
import pytest
from numba import cuda

@cuda.jit
def swap(a):
    t = cuda.threadIdx.x
    a[t] = a[1 - t]

@pytest.mark.simulated_cuda(order="reverse", checks=())
def test_marker():
    swap[1, 2](cuda.to_device(np.arange(2)))
    assert swap.report.order == "reverse"

@cuda.jit
def sure(a):
    assert a[0] == 0

def test_a_fixture_and_a_rewritten_assert(simulated_cuda):
    with pytest.raises(Exception, match="with PYTEST_DONT_REWRITE in the docstring"):
        sure[1, 2](np.arange(2))

@pytest.mark.simulated_cuda("reverse")
def test_an_option_without_its_name():
    pass
"""
UNUSED = """
import sys

def test_nothing():
    assert "pytest_simt" in sys.modules
    assert not {"simt", "numba", "numpy"} & {*sys.modules}
"""


def run_pytest(folder: Path, text: str) -> str:
    """What pytest says of a file of tests."""
    (folder / "test_swap.py").write_text(text)
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "-p", "pytest_simt"]
    command = [sys.executable, "-m", "pytest", *options, "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


@pytest.mark.rest
def test_pytest_users_have_a_marker_and_a_fixture(tmp_path: Path) -> None:
    said = run_pytest(tmp_path, TESTS)
    assert "2 passed, 1 error" in said, said


def test_pytest_imports_nothing_of_ours_until_a_test_uses_it(tmp_path: Path) -> None:
    assert "1 passed" in run_pytest(tmp_path, UNUSED)
