"""kernel[grid, block](…) runs in the simulator after simulate()."""

import numpy as np
import pytest
from numba import cuda, float32

from simt import SimtError, simulate


@cuda.jit
def reverse(out, a):
    t = cuda.threadIdx.x
    kept = cuda.shared.array(0, float32)
    kept[t] = a[t]
    cuda.syncthreads()
    out[t] = kept[cuda.blockDim.x - 1 - t]


A = np.arange(100, dtype=np.float32)


def test_a_launch_in_brackets_runs_with_all_checks_and_leaves_its_report() -> None:
    out = np.zeros_like(A)
    with simulate():
        reverse[(1,), (100,), 0, A.nbytes](out, A)
        assert np.array_equal(out, A[::-1])
        assert reverse.report.checks == ("memory", "init", "race", "sync")
        with pytest.raises(SimtError, match=r"kept has no elements.*, 0, shared_bytes\]"):
            reverse[1, 100](out, A)
        assert reverse.report is None, "the report of an earlier launch would mislead"


def test_options_hold_until_the_end_of_their_block() -> None:
    def launch() -> None:
        reverse[1, 100, 0, A.nbytes](np.zeros_like(A), A)

    with simulate():
        with simulate(trace=0), simulate(checks=()):
            launch()
            assert reverse.report.checks == ()
            assert not reverse.report.trace
        with simulate(trace=0):
            launch()
            assert reverse.report.trace
        launch()
        assert not reverse.report.trace


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("blockspergrid", lambda: reverse(A, A)),
        ("griddim", lambda: reverse[4.5, 32](A, A)),
        ("no option 'tracing'; it has checks", lambda: simulate(tracing=0)),
        ("no option 'shared_bytes'", lambda: simulate(shared_bytes=4)),
    ],
)
def test_what_cuda_refuses_is_refused(words: str, call) -> None:
    with simulate(), pytest.raises((TypeError, ValueError), match=words):
        call()
