"""The trace: who did what, in which warp instruction."""

import numpy as np
import pytest
from numba import cuda
from simt_helpers import trace_of_shifted
from simt_kernels.example import EXAMPLES

from pa_tutorial.simt import SimtError, launch
from pa_tutorial.simt.trace import (
    KINDS,
    NO_ARRAY,
    NO_LANE,
    RECORD,
    SPACES,
    Trace,
)

ORDERS = ("together", "forward", "reverse", 7)


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
        block, warp, lane, place, instruction, kind, _, array, address, *rest, way = r
        name = trace.arrays[array].name if array >= 0 else ""
        what = (lane, trace.sites[place], kind, name, address, *rest, trace.ways[way])
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
