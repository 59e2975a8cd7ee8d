"""Which thread blocks are traced, and what is chosen from a trace."""

import linecache

import numpy as np
import pytest
from numba import cuda
from simt_helpers import imported, shifted, trace_of_shifted

from pa_tutorial.simt import launch
from pa_tutorial.simt.recorder import Recorder
from pa_tutorial.simt.trace import block_number


def test_without_asking_there_is_no_trace() -> None:
    assert (
        launch(shifted, 2, 64, np.zeros(128, np.float32), np.zeros((128, 2)), checks=()).trace
        is None
    )


@pytest.mark.parametrize(
    ("wanted", "blocks"),
    [
        (0, {0}),
        (np.int64(4), {4}),
        ((1, 1), {3}),
        ((1,), {1}),
        ([0, (1, 2)], {0, 5}),
        (range(2, 4), {2, 3}),
        ("all", {0, 1, 2, 3, 4, 5}),
        ([], set()),
    ],
)
def test_only_the_chosen_thread_blocks_are_traced(wanted: object, blocks: set[int]) -> None:
    @cuda.jit
    def kernel(out):
        out[cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x] = 1

    trace = launch(kernel, (2, 3), 4, np.zeros((3, 2, 4), np.float32), trace=wanted).trace
    assert set(trace.records.block.tolist()) == blocks
    assert len(trace) == 4 * len(blocks)


def test_the_number_of_a_thread_block_counts_x_fastest() -> None:
    assert block_number("trace", (1, 2, 1), (2, 3, 2)) == 11
    assert block_number("trace", (1, 2), (2, 3, 2)) == 5
    assert block_number("trace", 7, (2, 3, 2)) == 7


def test_many_thread_blocks_and_many_places() -> None:
    lines = [f"    out[t] += a[t, {i}]" for i in range(150)]
    namespace = {"cuda": cuda}
    source = "\n".join(["@cuda.jit", "def kernel(out, a):", "    t = cuda.grid(1)", *lines])
    linecache.cache["<many places>"] = (len(source), None, source.splitlines(True), "<many places>")
    exec(compile(source, "<many places>", "exec"), namespace)
    out, a = np.zeros(200), np.zeros((200, 150))
    trace = launch(namespace["kernel"], 200, 1, out, a, trace="all").trace
    assert set(trace.records.block.tolist()) == set(range(200))
    assert len(trace.only("a[t, 149]")) == 200
    assert {trace.sites[p].text for p in trace.only(array="a").records.place[-2:]} == {
        "a[t, 148]",
        "a[t, 149]",
    }


def test_warps_of_a_thread_block_in_rows() -> None:
    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.y, cuda.threadIdx.x] = 1

    trace = launch(kernel, 1, (8, 8), np.zeros((8, 8)), trace=0).trace
    rows, _ = trace.the_array().indices(trace.only(warp=1).records.address)
    assert set(rows.tolist()) == {4, 5, 6, 7}


def test_nothing_is_noted_of_the_other_thread_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They pay nothing for the trace."""
    noted = []
    monkeypatch.setattr(Recorder, "access", lambda self, frame, *_: noted.append(frame))
    monkeypatch.setattr(Recorder, "event", lambda self, frame, *_: noted.append(frame))
    trace_of_shifted()
    assert {frame.gang.block.index for frame in noted} == {(1, 0, 0)}
    assert len(noted) == 6, "once for both warps"


@pytest.mark.parametrize("wanted", [2, -1, (0, 1), (2, 0), [0, 2]])
def test_a_thread_block_that_is_not_there_is_refused(wanted: object) -> None:
    with pytest.raises(ValueError, match="trace: there is no thread block"):
        trace_of_shifted(trace=wanted)


@pytest.mark.parametrize(
    "wanted",
    [True, "first", ["all"], (), [()], (0, 0, 0, 0), 1.0, [1.0], [[0, 1]], (i for i in (0, 1))],
)
def test_what_is_no_thread_block_is_refused(wanted: object) -> None:
    with pytest.raises(TypeError, match=r"trace: .* is no thread block"):
        trace_of_shifted(trace=wanted)


# Choosing from a trace -----------------------------------------------------------------------


def test_only_keeps_what_matches_all() -> None:
    trace = trace_of_shifted()
    assert len(trace.only("s[63", kind="read", warp=1)) == 8
    assert {trace.sites[p].text for p in trace.only("s[t]").records.place} == {"s[t]"}
    assert len(trace.only(space="shared")) == 64 + 40
    line = next(site.line for site in trace.sites if site.text == "cuda.syncthreads()")
    assert trace.only(line).num_instructions == 2
    assert len(trace.only(block=0)) == 0
    assert len(trace.only(block=(1, 0))) == len(trace.only(block=1)) == len(trace)
    assert len(trace.only(kind="vote")) == 0, "there could be one"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"kind": "load"}, "kind is 'load'; it must be one of read, write"),
        ({"space": "L2"}, "space is 'L2'"),
        ({"array": "b"}, "array is 'b'; it must be one of a, s, out"),
        ({"where": "b["}, r"shifted has no place at 'b\['"),
        ({"where": 1}, "no place at 1"),
        ({"block": 2}, "block: there is no thread block 2"),
        ({"warp": 2}, "warp is 2; a thread block has 2"),
    ],
)
def test_what_the_trace_does_not_have_is_refused(wanted: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trace_of_shifted().only(**wanted)


def test_the_array_must_be_one() -> None:
    trace = trace_of_shifted()
    assert trace.only(array="s").the_array().name == "s"
    with pytest.raises(ValueError, match="it is of: a, s, out"):
        trace.the_array()
    with pytest.raises(ValueError, match="it is of: none"):
        trace.only(kind="barrier").the_array()


def test_a_trace_says_what_is_in_it() -> None:
    text = str(trace_of_shifted())
    assert text.startswith("trace of shifted: thread block 1, ")
    assert "barrier 64" in text
    assert "vote" not in text
    assert "2 thread blocks" in str(trace_of_shifted(trace="all"))
    assert str(trace_of_shifted(trace=[])) == "trace of shifted: nothing"


def test_a_line_is_one_of_the_kernels_own_file(tmp_path) -> None:
    path = tmp_path / "elsewhere.py"
    path.write_text(
        "from numba import cuda\n\n\n@cuda.jit(device=True)\ndef element(a, i):\n    return a[i]\n",
        encoding="utf-8",
    )
    element = imported(path).element

    @cuda.jit
    def kernel(out, a):
        out[cuda.threadIdx.x] = element(a, cuda.threadIdx.x)

    trace = launch(kernel, 1, 8, np.zeros(8), np.zeros(8), trace=0).trace
    assert len(trace.only("a[i]")) == 8
    with pytest.raises(ValueError, match="no place at 6"):
        trace.only(6)
