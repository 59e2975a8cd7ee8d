"""The trace: who did what, in which warp instruction; in chosen thread blocks only."""

import linecache

import numpy as np
import pytest
from numba import cuda, float32
from simt_kernels.example import EXAMPLES

from pa_tutorial.simt import SimtError, launch
from pa_tutorial.simt.recorder import Recorder
from pa_tutorial.simt.trace import (
    KINDS,
    NO_ARRAY,
    NO_LANE,
    RECORD,
    SPACES,
    Trace,
    block_number,
)

ORDERS = ("together", "forward", "reverse", 7)


@cuda.jit
def shifted(out, a):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i, 1]
    cuda.syncthreads()
    if t < 40:
        out[i] = cuda.shfl_down_sync(cuda.activemask(), s[63 - t], 3)


def trace_of_shifted(**options) -> Trace:
    a = np.arange(256, dtype=np.float32).reshape(2, 128).T  # strides 1 and 128 items
    out = np.zeros(128, np.float32)
    options = {"trace": 1, "checks": (), **options}
    return launch(shifted, 2, 64, out, a, **options).trace


def test_a_record_says_who_touched_what() -> None:
    trace = trace_of_shifted()
    read = trace.only(array="a").records
    assert (read.block == 1).all()
    assert (32 * read.warp + read.lane).tolist() == list(range(64))
    assert [trace.sites[p].text for p in set(read.place.tolist())] == ["a[i, 1]"]
    (a,) = (array for array in trace.arrays if array.name == "a")
    rows, columns = a.indices(read.address)
    assert rows.tolist() == list(range(64, 128))
    assert set(columns.tolist()) == {1}
    assert set(read.num_bytes.tolist()) == {4}
    assert [KINDS[k] for k in np.unique(read.kind)] == ["read"]
    assert [SPACES[k] for k in np.unique(read.space)] == ["global"]
    assert np.diff(read.address).tolist() == [4] * 63, "neighbours in memory"


def test_lanes_that_are_not_at_work_leave_no_record() -> None:
    trace = trace_of_shifted()
    written = trace.only(kind="write", array="out").records
    assert (32 * written.warp + written.lane).tolist() == list(range(40))
    assert trace.only(kind="write", array="out").num_instructions == 2


def test_shuffles_and_barriers_are_events() -> None:
    trace = trace_of_shifted()
    shuffles = trace.only(kind="shuffle").records
    assert shuffles.source_lane[:29].tolist() == list(range(3, 32))
    assert set(shuffles.array.tolist()) == {NO_ARRAY}
    barrier = trace.only(kind="barrier").records
    assert len(barrier) == 64
    assert set(barrier.source_lane.tolist()) == {NO_LANE}
    before, after = (trace.only(kind=kind, array="s").records for kind in ("write", "read"))
    assert before.instruction.max() < barrier.instruction.min()
    assert barrier.instruction.max() < after.instruction.min()


@cuda.jit
def adds_and_votes(out, count):
    t = cuda.threadIdx.x
    cuda.atomic.add(out, t // 32, 1)
    cuda.syncwarp()
    if cuda.syncthreads_or(t // 5):
        count[t] = cuda.ballot_sync(0xFFFFFFFF, t > 3)


def test_atomics_votes_and_syncwarps_are_events() -> None:
    arguments = np.zeros(2, np.int32), np.zeros(64, np.int32)
    trace = launch(adds_and_votes, 1, 64, *arguments, trace=0).trace
    atomic = trace.only(kind="atomic")
    assert len(atomic) == 64
    assert atomic.num_instructions == 2
    assert len(set(atomic.only(warp=1).records.address.tolist())) == 1
    for kind in ("syncwarp", "barrier", "vote"):
        assert trace.only(kind=kind).num_instructions == 2


@pytest.mark.parametrize("order", ORDERS[1:])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_trace_of_a_warp_is_the_same_in_every_order(name: str, order: str | int) -> None:
    """Block by block and warp by warp: the same instructions, one after the other."""
    example = EXAMPLES[name]
    traces = [
        launch(
            example.kernel,
            example.grid,
            example.block,
            *example.draw(),
            shared_bytes=example.shared_bytes,
            order=one,
            checks=(),
            trace="all",
        ).trace
        for one in ("together", order)
    ]
    together, turned = (by_warp(trace) for trace in traces)
    assert together.keys() == turned.keys()
    if any(site.text.startswith("cuda.atomic") for site in traces[0].sites):
        return  # what a thread gets from an atomic operation depends on the order
    for warp, instructions in together.items():
        assert instructions == turned[warp], warp


def by_warp(trace: Trace) -> dict[tuple[int, int], list[list[tuple]]]:
    """(block, warp) -> its instructions in order -> what each lane did."""
    warps: dict[tuple[int, int], dict[int, list[tuple]]] = {}
    for r in trace.records.tolist():
        block, warp, lane, place, instruction, kind, _, array, address, *rest = r
        name = trace.arrays[array].name if array >= 0 else ""
        what = (lane, trace.sites[place], kind, name, address, *rest)
        warps.setdefault((block, warp), {}).setdefault(instruction, []).append(what)
    return {key: list(instructions.values()) for key, instructions in warps.items()}


def test_an_instruction_is_of_one_warp_one_place_and_has_each_lane_once() -> None:
    for name in (
        "shared_vectors_of_neighbours",
        "nested_loops_of_other_lengths",
        "transpose_with_padding",
    ):
        example = EXAMPLES[name]
        trace = launch(example.kernel, example.grid, example.block, *example.draw(), trace=0).trace
        for number in np.unique(trace.records.instruction):
            rows = trace.only(instruction=int(number)).records
            for field in ("block", "warp", "place", "kind", "array", "num_bytes"):
                assert len(np.unique(rows[field])) == 1
            assert len(np.unique(rows.lane)) == len(rows)


def test_a_device_function_that_two_places_call_has_one_place_and_two_instructions() -> None:
    @cuda.jit(device=True)
    def element(a, i):
        return a[i]

    @cuda.jit
    def kernel(out, a):
        t = cuda.threadIdx.x
        if t % 2 == 0:
            out[t] = element(a, t)
        else:
            out[t] = element(a, 0)

    a = np.zeros(32, np.float32)
    trace = launch(kernel, 1, 32, np.zeros(32, np.float32), a, trace=0).trace
    read = trace.only(kind="read")
    assert read.num_instructions == 2
    assert len(read) == 32
    assert {trace.sites[p].function for p in read.records.place} == {"element"}


# Which thread blocks -------------------------------------------------------------------------


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


def test_the_parts_of_an_assignment_come_in_order_and_once() -> None:
    @cuda.jit
    def kernel(out, a, where):
        t = cuda.threadIdx.x
        out[where[t]] += a[t]

    arrays = np.zeros(8), np.zeros(8), np.arange(8)
    trace = launch(kernel, 1, 8, *arrays, trace=0).trace
    seen = [(trace.sites[r.place].text, KINDS[r.kind]) for r in trace.records[::8]]
    assert seen == [
        ("where[t]", "read"),
        ("out[where[t]]", "read"),
        ("a[t]", "read"),
        ("out[where[t]]", "write"),
    ]


def test_a_line_is_one_of_the_kernels_own_file(tmp_path) -> None:
    from simt_helpers import imported

    path = tmp_path / "elsewhere.py"
    path.write_text(
        "from numba import cuda\n\n\n@cuda.jit(device=True)\ndef element(a, i):\n    return a[i]\n"
    )
    element = imported(path).element

    @cuda.jit
    def kernel(out, a):
        out[cuda.threadIdx.x] = element(a, cuda.threadIdx.x)

    trace = launch(kernel, 1, 8, np.zeros(8), np.zeros(8), trace=0).trace
    assert len(trace.only("a[i]")) == 8
    with pytest.raises(ValueError, match="no place at 6"):
        trace.only(6)


def test_records_are_small() -> None:
    assert RECORD.itemsize <= 40


def test_a_finding_that_is_collected_leaves_the_trace_whole() -> None:
    @cuda.jit
    def outside(out, a):
        t = cuda.threadIdx.x
        out[t] = a[t]

    arguments = np.zeros(8, np.float32), np.zeros(5, np.float32)
    report = launch(outside, 1, 8, *arguments, trace=0, collect=True)
    assert len(report.findings) == 1
    assert len(report.trace.only(array="a")) == 5, "who is outside reads nothing"
    with pytest.raises(SimtError):
        launch(outside, 1, 8, *arguments, trace=0)
