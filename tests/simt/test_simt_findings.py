"""What a finding says, and what goes on after one."""

import numpy as np
import pytest
from numba import cuda

from simt import SimtError, launch
from tests.simt.helpers import N, floats, kernel, run, zeros
from tests.simt.kernels.example import FAULTS

SHARED = "s = cuda.shared.array(64, float32)"
ATOMIC_FIRST = "cuda.atomic.add(a, 0, 1)\nout[t] = a[0]"
READ_FIRST = "out[t] = a[1]\nif t == 0:\n    a[1] = 5"
DYNAMIC = "s = cuda.shared.array(0, float32)\n"  # of 25 items
FAR_THREAD = "if cuda.threadIdx.y == 3 and cuda.blockIdx.y == 1:\n    out[99] = 1"
BARRIER = "if cuda.threadIdx.y < 3:\n    cuda.syncthreads()"


@pytest.mark.parametrize(
    ("body", "grid", "block", "words"),
    [
        (f"{SHARED}\nout[t] = s[t]", 1, 1, r"s\[0\] in shared"),
        (f"{SHARED}\ns[t] = 1\nout[t] = s[63 - t]", 1, 64, "63 wrote(.|\n)* between the two"),
        (READ_FIRST, 1, 32, r"writes a\[1\], which thread \d+ read \(a\[1\], line 4\)"),
        (ATOMIC_FIRST, 1, 32, r"reads a\[0\], which thread \d+ atomically updated"),
        ("out[a.size + 35] = 1", 1, 1, r"writes out\[99\], out of bounds: .* \(64,\)"),
        ("a.view(np.int8)[t + 256] = 1", 1, 1, r"writes a.view\(int8\)\[256\], out .* \(256,\)"),
        (
            "v = a.view(np.int16)\na[t] = 1\nv[t] = 2",
            1,
            64,
            r"writes a\[\d+\].view\(int16\), which",
        ),
        # What to do differs with the two accesses, and with the size of dynamic shared memory.
        ("out[0] = 1", 1, 64, r"race(.|\n)* same value"),
        ("out[0] = 1", 2, 1, r"race(.|\n)* \(cuda.threadfence"),
        (DYNAMIC + "s[t] = t", 1, 40, "t is 25; it must be 0 to 24.* too little dynamic"),
        (DYNAMIC + "s[t - 30] = t", 1, 40, "t - 30 is -30; it must be 0 to 24. A negative"),
        # Threads and blocks of several dimensions have indices.
        (FAR_THREAD, (2, 2), (8, 4), r"24 = \(0, 3, 0\) of thread block \(0, 1, 0\) writes out"),
        (BARRIER, 1, (8, 4), r"24 = \(0, 3, 0\) never reaches(.|\n)*barrier be outside"),
    ],
)
def test_a_finding_says_who_did_what_where(body: str, grid, block, words: str) -> None:
    with pytest.raises(SimtError, match=words):
        launch(kernel("out, a", body), grid, block, floats(N), floats(N), shared_bytes=100)


def test_shuffles_order_memory_only_on_request() -> None:
    relies = FAULTS["shuffle_taken_for_a_memory_barrier"]
    assert run(relies, shuffles_order_memory=True).clean


def warps_in(order: object) -> list[list[float]]:
    """Of each of two thread blocks, the warps as they come up to a barrier, and after it."""
    body = """
        for again in range(2):
            if t % 32 == 0:
                out[n[0]] = t // 32
                n[0] += 1
            cuda.syncthreads()
    """
    out, count = zeros(4, 3), np.zeros(1, np.int32)
    launch(kernel("out, n", body), 2, 96, out.reshape(12), count, order=order, checks=())
    return out.tolist()


def test_the_warps_of_each_thread_block_run_in_the_order_asked_for() -> None:
    assert warps_in("forward") == [[0, 1, 2]] * 4
    assert warps_in("reverse") == [[2, 1, 0]] * 4
    assert warps_in([1, 2, 0]) == [[1, 2, 0]] * 4
    seeds = [warps_in(seed) for seed in (3, 4)]
    assert [warps_in(seed) for seed in (3, 4)] == seeds
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("order", [[1, 0], [0, 1, 3], "102"])
def test_an_order_that_is_not_all_warps_is_refused(order: object) -> None:
    with pytest.raises(ValueError, match=r"order is .* warps 0 to 2"):
        launch(kernel("out", "out[t] = t"), 1, 96, zeros(96), order=order)


@pytest.mark.parametrize("chosen", ["out[t]", "out[t] if t >= 2 else out[1]"])
def test_a_lost_row_stays_lost_when_views_join(chosen: str) -> None:
    body = f"row = out[0]\nif t >= 2:\n    row = {chosen}\nrow[t % 2] = t + 10"
    whole = np.zeros((6, 2))
    report = launch(kernel("out", body), 1, 6, whole[:4], collect=True)
    (finding,) = report.findings
    assert (finding.check, finding.thread, finding.index) == ("memory", 4, (4,))
    assert finding.shape == (4, 2)
    assert str(finding) in str(report)
    np.testing.assert_array_equal(whole, [[10, 11], [0, 0], [12, 0], [0, 13], [0, 0], [0, 0]])


def test_findings_name_the_right_item_of_reversed_views() -> None:
    a = np.zeros((2, 3))[:, ::-1]
    with pytest.raises(SimtError) as caught:
        launch(kernel("out, a", "out[0] = a[1, 2]"), 1, 1, floats(1), a, unwritten="a")
    finding = caught.value.finding
    assert (finding.check, finding.array, finding.index) == ("init", "a", (1, 2))


@pytest.mark.parametrize("checks", [("memory",), ()])
def test_a_negative_constant_counts_from_the_end_of_its_axis(checks: tuple[str, ...]) -> None:
    second_last = kernel("out, a", "out[t] = a[t, -2]")
    out, a = np.zeros(3), np.arange(24.0).reshape(4, 6)
    launch(second_last, 1, 3, out, a[1:, :4], checks=checks)
    np.testing.assert_array_equal(out, a[1:, 2])
    if checks:
        with pytest.raises(SimtError, match=r"reads a\[0, -2\], out of .* \(4, 1\)"):
            launch(second_last, 1, 3, out, a[:, :1])


def test_where_nobody_checks_a_negative_index_stays_in_its_axis() -> None:
    out, a = np.zeros(4), np.arange(8.0).reshape(2, 4)
    before = kernel("out, a", "out[t] = a[1, t - 1]")
    trace = launch(before, 1, 4, out, a, checks=(), trace=0).trace.only(array="a")
    np.testing.assert_array_equal(out, np.roll(a[1], 1))
    _, columns = trace.the_array().indices(trace.records.address)
    assert columns.tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize("shift", [-9, 9])
def test_where_nobody_checks_an_index_outside_of_memory_is_an_error(shift: int) -> None:
    with pytest.raises(IndexError, match=r"thread \d of thread block 0 accesses memory outside"):
        launch(kernel("out", f"out[t + {shift}] = 1"), 1, 4, floats(4), checks=())


@pytest.mark.parametrize("body", ["out[t] = 12 // (3 - t)", "a[t] %= a[t] - 7"])
def test_division_of_an_integer_by_zero_names_the_thread(body: str) -> None:
    with pytest.raises(ZeroDivisionError, match="thread 3 of thread block 0 divides"):
        launch(kernel("out, a", body), 1, 4, floats(4), np.array([2, 1, 5, 7]))


def test_each_thread_prints_once_in_the_form_of_numba(capsys) -> None:
    @cuda.jit
    def prints(out):
        t = cuda.grid(1)
        if t % 32 < 2:
            print("thread", t, out[t], t > 1, (t,))

    launch(prints, 3, 32, np.arange(96, dtype=np.float32) / 4, trace=0)
    printed = [f"thread {t} {t / 4:f} {t > 1} ({t},)" for t in (0, 1, 32, 33, 64, 65)]
    assert capsys.readouterr().out.splitlines() == printed
