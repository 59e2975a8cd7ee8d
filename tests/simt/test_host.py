"""Programs written for numba.cuda: device arrays, streams and the rest outside of kernels."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import cuda as numba_cuda

from pa_tutorial.simt import SimtError, cuda
from pa_tutorial.simt.host import HOST, DeviceArray, simulated

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


def test_every_name_of_the_host_is_numbas() -> None:
    known = {name for name in HOST if hasattr(numba_cuda, name)}
    assert HOST.keys() - known <= {"_auto_device"}


def test_a_program_with_device_arrays_streams_and_events() -> None:
    stream, before, after = cuda.stream(), cuda.event(), cuda.event()
    with cuda.pinned(A), stream.auto_synchronize():
        before.record(stream)
        a = cuda.to_device(A, stream)
        out = cuda.device_array_like(a)
        assert np.isnan(out).all()
        double_each[4, 32, stream](out, a)
        after.record(stream)
    cuda.synchronize()
    assert cuda.event_elapsed_time(before, after) >= 0
    host = out.copy_to_host()
    assert type(host) is np.ndarray
    assert np.array_equal(host, 2 * A)
    assert double_each.report.clean
    out.copy_to_device(A)
    assert out[99] == 99
    assert [len(part) for part in out.split(64)] == [64, 36]
    to = cuda.to_device(2 * A, to=out)
    assert to is out
    assert np.array_equal(out.copy_to_host(np.zeros_like(A)), 2 * A)


def test_a_device_array_is_a_copy_in_the_same_order() -> None:
    fortran = np.asfortranarray(A.reshape(10, 10))
    there = cuda.to_device(fortran)
    there[0, 0] = 5
    assert fortran[0, 0] == 0
    assert there.is_f_contiguous()
    assert cuda.device_array_like(there).is_f_contiguous()
    assert cuda.is_cuda_array(there)
    assert not cuda.is_cuda_array(fortran)


@pytest.mark.parametrize("other", [A.astype(np.float64), A[:50]])
def test_a_copy_between_arrays_that_do_not_match_is_refused(other: np.ndarray) -> None:
    there = cuda.to_device(A)
    with pytest.raises(ValueError, match="a copy needs the same type and shape"):
        there.copy_to_host(other)
    with pytest.raises(ValueError, match="a copy needs the same type and shape"):
        there.copy_to_device(other)
    assert np.array_equal(there, A)


def test_forall_launches_enough_threads_and_signatures_convert() -> None:
    a = cuda.to_device(A)
    add.forall(len(a))(a, 1)
    assert np.array_equal(a, A + 1)
    add.forall(0)(a, 1)
    assert np.array_equal(a, A + 1)


def test_hints_say_what_a_kernel_may_change() -> None:
    a, out = A.copy(), np.zeros_like(A)
    double_each[4, 32](cuda.Out(out), cuda.In(a))
    add[4, 32](cuda.In(a), 1)
    add[4, 32](cuda.InOut(out), 1)
    assert np.array_equal(a, A)
    assert np.array_equal(out, 2 * A + 1)


def test_reduce_takes_a_function_of_two_numbers() -> None:
    total = cuda.reduce(lambda x, y: x + y)
    assert total(cuda.to_device(A)) == A.sum()
    assert total(A, size=3, init=10) == 13
    result = cuda.device_array(1, np.float32)
    assert total(A, res=result) is None
    assert result[0] == A.sum()


def test_simulated_replaces_numbas_names_and_puts_them_back() -> None:
    def program() -> DeviceArray:
        out = numba_cuda.device_array(4, np.float32)
        kernel[1, 4](out)
        return out

    @numba_cuda.jit
    def kernel(out):
        out[numba_cuda.threadIdx.x] = numba_cuda.threadIdx.x

    before = numba_cuda.device_array
    with simulated(trace=0):
        assert np.array_equal(program(), range(4))
        assert numba_cuda.is_available()
    assert kernel.report.trace.num_instructions == 1
    assert numba_cuda.device_array is before


def test_a_kernel_of_ours_takes_the_options_around_it() -> None:
    with simulated(collect=True):
        double_each[4, 32](np.zeros(50, np.float32), A)
    assert double_each.report.findings
    with pytest.raises(SimtError):
        double_each[4, 32](np.zeros(50, np.float32), A)


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
    a = cuda.to_device(np.arange(2))
    swap[1, 2](a)
    assert swap.report.order == "reverse"

def test_fixture(simulated_cuda):
    with pytest.raises(Exception, match="race"):
        swap[1, 2](cuda.to_device(np.arange(2)))
"""


def test_pytest_users_have_a_marker_and_a_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_swap.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["pa_tutorial.simt.pytest_plugin"]\n')
    options = ["-q", "-W", "error", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "2 passed" in done.stdout, done.stdout
