"""What a finding says, and what goes on after one."""

import re

import numpy as np
import pytest
from numba import cuda

from simt import SimtError, launch
from tests.simt.helpers import N, floats, kernel, neighbour, run, zeros
from tests.simt.kernels.example import FAULTS

ATOMIC_FIRST = "cuda.atomic.add(a, 0, 1)\nout[t] = a[0]"
READ_FIRST = "out[t] = a[1]\nif t == 0:\n    a[1] = 5"
UNWRITTEN = "s = cuda.shared.array(1, float32)\nout[t] = s[t]"
SAME_VALUE = "out[0] = 1"
FAR_THREAD = "if cuda.threadIdx.y == 3 and cuda.blockIdx.y == 1:\n    out[99] = 1"


@pytest.mark.parametrize(
    ("broken", "grid", "block", "words"),
    [
        (neighbour, 1, N, r"race: thread 0 of thread block 0 reads s\[63\], which thread 63 wrote"),
        (neighbour, 1, N, r"neighbour:  out\[t\] = s\[N - 1 - t\]\n .* s\[t\] = a\[t\]\n  Is a ba"),
        (
            kernel("out, a", UNWRITTEN),
            1,
            1,
            r"s\[0\] in shared .* written\n.*\n  Should this",
        ),
        (kernel("out, a", READ_FIRST), 1, 32, r"writes a\[1\], which thread \d+ read \(a\[1\], l"),
        (kernel("out, a", ATOMIC_FIRST), 1, 32, r"reads a\[0\], which thread \d+ atomically upd"),
        (kernel("out, a", "out[a.size + 35] = 1"), 1, 1, r"writes out\[99\], out of .* is \(64,"),
        (kernel("out, a", SAME_VALUE), 1, 64, "It's a race even if both write the same value"),
        (kernel("out, a", SAME_VALUE), 2, 1, "both sides need a fence \\(cuda.threadfence\\), too"),
        # Threads and blocks of several dimensions have indices.
        (
            kernel("out, a", FAR_THREAD),
            (2, 2),
            (8, 4),
            r"thread 24 = \(0, 3, 0\) of thread block \(0, 1, 0\) writes out\[99\]",
        ),
        (
            kernel("out, a", "if cuda.threadIdx.y < 3:\n    cuda.syncthreads()"),
            1,
            (8, 4),
            r"that thread 24 = \(0, 3, 0\) never reaches.*\n.*\n  Can the barrier be outside",
        ),
    ],
)
def test_a_finding_reads_as_a_sentence(broken: object, grid, block, words: str) -> None:
    with pytest.raises(SimtError, match=words):
        launch(broken, grid, block, floats(N), floats(N))


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("t", "t is 25; it must be 0 to 24. Either the index is wrong, or the launch asks for too"),
        ("t - 30", "t - 30 is -30; it must be 0 to 24. A negative index counts from the end"),
    ],
)
def test_too_little_dynamic_shared_memory_is_not_called_a_wrong_bound(
    index: str, words: str
) -> None:
    text = f"s = cuda.shared.array(0, float32)\ns[{index}] = t"
    with pytest.raises(SimtError, match=words):
        launch(kernel("out", text), 1, 40, floats(N), shared_bytes=100)


def test_shuffles_order_memory_only_on_request() -> None:
    relies = FAULTS["shuffle_taken_for_a_memory_barrier"]
    assert run(relies, shuffles_order_memory=True).clean


def test_orders_differ_where_there_is_a_race_and_repeat_themselves() -> None:
    races = kernel("out", "out[0] = t // 32")
    last = {}
    for order in ("together", "forward", "reverse", 1, 2, 3):
        outs = [zeros(1) for _ in range(3)]
        for out in outs:
            launch(races, 1, 128, out, order=order, checks=())
        (last[order],) = {float(out[0]) for out in outs}
    assert (last["forward"], last["reverse"]) == (3, 0)
    assert len({last[seed] for seed in (1, 2, 3)}) > 1


def test_the_warps_of_each_thread_block_run_in_the_order_of_a_list() -> None:
    """Up to the barrier, and again after it."""
    body = """
        for again in range(2):
            if t % 32 == 0:
                out[n[0]] = t // 32
                n[0] += 1
            cuda.syncthreads()
    """
    out, count = zeros(12), np.zeros(1, np.int32)
    launch(kernel("out, n", body), 2, 96, out, count, order=[1, 2, 0], checks=())
    assert out.tolist() == [1, 2, 0] * 4


@pytest.mark.parametrize("order", [[1, 0], [0, 1, 1], [0, 1, 3], "102", None])
def test_an_order_that_is_not_all_warps_is_refused(order: object) -> None:
    with pytest.raises(ValueError, match="a seed, or a list of the warps 0 to 2"):
        launch(kernel("out", "out[t] = t"), 1, 96, zeros(96), order=order)


@pytest.mark.parametrize("chosen", ["out[t]", "out[t] if t >= 2 else out[1]"])
def test_a_lost_row_stays_lost_when_views_join(chosen: str) -> None:
    body = f"row = out[0]\nif t >= 2:\n    row = {chosen}\nrow[t % 2] = t + 10"
    whole = np.zeros((6, 2))
    report = launch(kernel("out", body), 1, 6, whole[:4], collect=True)
    (finding,) = report.findings
    assert (finding.check, finding.thread, finding.index) == ("memory", 4, (4,))
    assert finding.shape == (4, 2)
    head = "kernel: 1 thread block of 6 threads; checked memory, init, race, sync: 1 finding\n"
    assert str(report) == f"{head}{finding}"
    np.testing.assert_array_equal(whole, [[10, 11], [0, 0], [12, 0], [0, 13], [0, 0], [0, 0]])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("v = a.view(float32)\na[t] = 1\nv[t] = 2", "writes a[0].view(float32), which thread 0"),
        (
            "a.view(np.int8)[t + 1] = 1",
            "writes a.view(int8)[64], out of bounds: the shape is (64,)",
        ),
    ],
)
def test_findings_in_a_view_of_another_type_name_the_item_that_holds_it(
    body: str, words: str
) -> None:
    with pytest.raises(SimtError, match=re.escape(words)):
        launch(kernel("a", body), 1, 64, np.zeros(64 if "v[" in body else 8))


def test_findings_name_the_right_item_of_reversed_views() -> None:
    a = np.zeros((2, 3))[:, ::-1]
    with pytest.raises(SimtError) as caught:
        launch(kernel("out, a", "out[0] = a[1, 2]"), 1, 1, floats(1), a, unwritten="a")
    finding = caught.value.finding
    assert (finding.check, finding.array, finding.index) == ("init", "a", (1, 2))


@pytest.mark.parametrize("checked", [False, True])
def test_a_negative_constant_counts_from_the_end_of_its_axis(checked: bool) -> None:
    second_last = kernel("out, a", "out[t] = a[t, -2]")
    options = {} if checked else {"checks": ()}
    out, a = np.zeros(3), np.arange(24.0).reshape(4, 6)
    launch(second_last, 1, 3, out, a[1:, :4], **options)
    np.testing.assert_array_equal(out, a[1:, 2])
    if checked:
        with pytest.raises(SimtError, match=r"reads a\[0, -2\], out of .* shape is \(4, 1\)"):
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


@pytest.mark.parametrize(
    ("body", "who"),
    [
        ("out[t] = 12 // (3 - t)", "thread 3 of thread block 0"),
        ("out[t] = a[t] % (t - 2)", "thread 2 of thread block 0"),
        ("a[t] //= a[t] - 1", "thread 1 of thread block 0"),  # in place
    ],
)
def test_division_of_an_integer_by_zero_names_the_thread(body: str, who: str) -> None:
    with pytest.raises(ZeroDivisionError, match=f"{who} divides"):
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
