"""What a finding says, and what goes on after one."""

import numpy as np
import pytest
from numba import cuda, int32
from simt_helpers import N, floats, imported, neighbour

from pa_tutorial.simt import SimtError, Unsupported, launch


def test_a_finding_reads_as_a_sentence() -> None:
    with pytest.raises(SimtError) as caught:
        launch(neighbour, 1, N, floats(N), floats(N))
    message = str(caught.value)
    assert "race: thread 0 of thread block 0 reads s[63], which thread 63 wrote" in message
    assert "out[t] = s[N - 1 - t]" in message
    assert "s[t] = a[t]" in message


def test_findings_are_collected_once_for_each_place() -> None:
    report = launch(neighbour, 1, N, floats(N), floats(N), collect=True)
    assert [f.check for f in report.findings] == ["race"]
    assert not report.clean
    assert "1 finding" in str(report)


def test_threads_and_blocks_of_several_dimensions_are_named_by_their_indices() -> None:
    @cuda.jit
    def kernel(out):
        if cuda.threadIdx.y == 3 and cuda.blockIdx.y == 1:
            out[99] = 1

    with pytest.raises(SimtError) as caught:
        launch(kernel, (2, 2), (8, 4), floats(4))
    assert "thread 24 = (0, 3, 0) of thread block (0, 1, 0) asks for out[99]" in str(caught.value)
    assert caught.value.finding.shape == (4,)

    @cuda.jit
    def half_waits(out):
        if cuda.threadIdx.y < 3:
            cuda.syncthreads()

    with pytest.raises(SimtError, match=r"which thread 24 = \(0, 3, 0\) does not come"):
        launch(half_waits, 1, (8, 4), floats(4))


def test_collecting_goes_on_after_an_access_out_of_bounds() -> None:
    @cuda.jit
    def kernel(out, a):
        t = cuda.threadIdx.x
        out[t] = a[t + 1]

    out = np.full(4, np.nan, np.float32)
    a = floats(4)
    report = launch(kernel, 1, 4, out, a, collect=True)
    assert [f.check for f in report.findings] == ["memory"]
    np.testing.assert_array_equal(out[:3], a[1:])


def test_strictness_about_exited_threads_is_an_option() -> None:
    @cuda.jit
    def kernel(out):
        t = cuda.threadIdx.x
        if t >= 40:
            return
        cuda.syncthreads()
        out[t] = 1

    with pytest.raises(SimtError, match="has returned"):
        launch(kernel, 1, 64, floats(64))
    for order in ("together", "forward"):
        assert launch(kernel, 1, 64, floats(64), exited_may_skip=True, order=order).clean


def test_shuffles_order_memory_only_on_request() -> None:
    @cuda.jit
    def kernel(out):
        s = cuda.shared.array(32, int32)
        t = cuda.threadIdx.x
        s[t] = t
        out[t] = cuda.shfl_sync(0xFFFFFFFF, t, 0)
        out[t] += s[31 - t]

    with pytest.raises(SimtError, match="race"):
        launch(kernel, 1, 32, np.zeros(32, np.int32))
    assert launch(kernel, 1, 32, np.zeros(32, np.int32), shuffles_order_memory=True).clean


def test_orders_differ_where_there_is_a_race_and_repeat_themselves() -> None:
    @cuda.jit
    def kernel(out):
        out[0] = cuda.threadIdx.x // 32

    last = {}
    for order in ("together", "forward", "reverse", 1, 2, 3):
        runs = set()
        for _ in range(3):
            out = np.zeros(1)
            launch(kernel, 1, 128, out, order=order, checks=())
            runs.add(float(out[0]))
        assert len(runs) == 1
        last[order] = runs.pop()
    assert (last["forward"], last["reverse"]) == (3, 0)
    assert len({last[seed] for seed in (1, 2, 3)}) > 1


def test_a_row_that_does_not_exist_is_no_other_row() -> None:
    """After the finding its lanes write nowhere, and meet nobody."""

    @cuda.jit
    def kernel(out):
        i = cuda.threadIdx.x
        row = out[i]
        row[0] = i + 10

    out = np.zeros((4, 2))
    report = launch(kernel, 1, 6, out, collect=True)
    (finding,) = report.findings
    assert (finding.check, finding.thread, finding.index) == ("memory", 4, (4,))
    assert finding.shape == (4, 2)
    np.testing.assert_array_equal(out, [[10, 0], [11, 0], [12, 0], [13, 0]])


@pytest.mark.parametrize("chosen", ["row = out[i]", "row = out[i] if i >= 2 else out[1]"])
def test_a_lost_row_stays_lost_when_views_join(chosen: str, tmp_path) -> None:
    path = tmp_path / "rows.py"
    path.write_text(
        "from numba import cuda\ndef kernel(out):\n    i = cuda.threadIdx.x\n    row = out[0]\n"
        f"    if i >= 2:\n        {chosen}\n    row[i % 2] = i + 10\n",
        encoding="utf-8",
    )
    whole = np.zeros((6, 2))
    report = launch(imported(path).kernel, 1, 6, whole[:4], collect=True)
    assert [f.check for f in report.findings] == ["memory"]
    np.testing.assert_array_equal(whole, [[10, 11], [0, 0], [12, 0], [0, 13], [0, 0], [0, 0]])


def test_findings_name_the_right_item_of_reversed_views() -> None:
    @cuda.jit
    def kernel(out, a):
        out[0] = a[1, 2]

    a = np.zeros((2, 3))[:, ::-1]
    with pytest.raises(SimtError) as caught:
        launch(kernel, 1, 1, floats(1), a, unwritten="a")
    assert caught.value.finding.index == (1, 2)


def test_a_syncwarp_that_names_no_caller_orders_nothing() -> None:
    @cuda.jit
    def kernel(out):
        if cuda.threadIdx.x == 0:
            cuda.syncwarp(2)

    report = launch(kernel, 1, 32, floats(1), collect=True)
    assert {f.check for f in report.findings} == {"sync"}


def test_a_race_says_what_the_other_thread_did() -> None:
    @cuda.jit
    def read_first(out, a):
        t = cuda.threadIdx.x
        out[t] = a[1]
        if t == 0:
            a[1] = 5

    @cuda.jit
    def atomic_first(out, a):
        t = cuda.threadIdx.x
        cuda.atomic.add(a, 0, 1)
        out[t] = a[0]

    with pytest.raises(SimtError, match=r"writes a\[1\], which thread \d+ read \(a\[1\], line"):
        launch(read_first, 1, 32, floats(32), floats(2))
    with pytest.raises(SimtError, match=r"reads a\[0\], which thread \d+ atomically changed \("):
        launch(atomic_first, 1, 32, floats(32), floats(2))


def test_an_index_without_its_axis_is_explained() -> None:
    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx] = 1

    with pytest.raises(Unsupported, match=r"cuda.threadIdx has parts: cuda.threadIdx.x"):
        launch(kernel, 1, 1, floats(1))


def test_a_shuffle_needs_a_whole_number() -> None:
    @cuda.jit
    def kernel(out):
        width = 4
        out[cuda.threadIdx.x] = cuda.shfl_xor_sync(0xFFFFFFFF, out[0], width / 2)

    with pytest.raises(Unsupported, match="shfl_xor_sync finds its lane must be an integer"):
        launch(kernel, 1, 32, floats(32))
