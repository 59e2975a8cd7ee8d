"""kernel[grid, block](…) runs in the simulator after simulate()."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numba import cuda, float32

from simt import SimtError, simulate


@cuda.jit
def double_each(out, a):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = float32(2) * a[i]


@cuda.jit
def reverse(out, a):
    t = cuda.threadIdx.x
    kept = cuda.shared.array(0, float32)
    kept[t] = a[t]
    cuda.syncthreads()
    out[t] = kept[cuda.blockDim.x - 1 - t]


A = np.arange(100, dtype=np.float32)


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    with simulate():
        yield


def test_a_launch_in_brackets_runs_with_all_checks_and_leaves_its_report() -> None:
    out = np.zeros_like(A)
    double_each[4, 32](out, A)
    assert np.array_equal(out, 2 * A)
    assert double_each.report.checks == ("memory", "init", "race", "sync")
    with pytest.raises(
        SimtError, match=r"kept has no elements.*kernel\[grid, block, 0, shared_bytes\]"
    ):
        reverse[1, 100](out, A)  # no shared memory
    assert reverse.report is None, "the report of an earlier launch would mislead"
    reverse[(1,), (100,), 0, A.nbytes](out, A)
    assert np.array_equal(out, A[::-1])


def test_options_hold_until_the_end_of_their_block() -> None:
    with simulate(trace=0), simulate(checks=()):
        double_each[4, 32](np.zeros_like(A), A)
        assert double_each.report.checks == ()
        assert not double_each.report.trace
    with simulate(trace=0):
        double_each[4, 32](np.zeros_like(A), A)
    assert double_each.report.trace.num_instructions == 2
    double_each[4, 32](np.zeros_like(A), A)
    assert not double_each.report.trace


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: double_each(A, A), ValueError, r"kernel_function\[blockspergrid"),
        (lambda: double_each[4, 2000](A, A), ValueError, "block is .* at most 1024 threads"),
        (lambda: double_each[4.5, 32](A, A), TypeError, "griddim must be a sequence of integers"),
        (lambda: double_each[0, 32](A, A), ValueError, "grid is .* at least 1"),
        (lambda: double_each[4, 32, 0, 10**7](A, A), ValueError, "shared_bytes is 10000000"),
        (lambda: simulate(tracing=0), TypeError, "no option 'tracing'; it has checks"),
        (lambda: simulate(shared_bytes=4), TypeError, "no option 'shared_bytes'"),
    ],
)
def test_what_cuda_refuses_is_refused(call: Callable, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        call()
