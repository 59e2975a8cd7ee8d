"""The trace: who did what, in which warp instruction; of which thread blocks; what is chosen."""

import numpy as np
import pytest

from simt import SimtError, launch
from simt.trace import KINDS, RECORD, SPACES
from tests.simt.helpers import imported, kernel, trace_of_shifted, zeros


def test_a_record_says_who_touched_what() -> None:
    trace = trace_of_shifted()
    read = trace.only(array="a").records
    assert (read.block == 1).all()
    assert (32 * read.warp + read.lane).tolist() == list(range(64))
    assert {trace.sites[p].text for p in read.place} == {"a[i, 1]"}
    rows, columns = trace.only(array="a").the_array().indices(read.address)
    assert rows.tolist() == list(range(64, 128))
    assert set(columns.tolist()) == {1}
    assert set(read.num_bytes.tolist()) == {4}
    assert {(KINDS[r.kind], SPACES[r.space]) for r in read} == {("read", "global")}
    written = trace.only(kind="write", array="out")
    assert written.threads.tolist() == list(range(40)), "the others are not at work"
    assert written.num_instructions == 2
    assert RECORD.itemsize <= 40


def test_the_parts_of_an_assignment_come_in_order_and_once() -> None:
    adds = kernel("out, a, where", "out[where[t]] += a[t]")
    trace = launch(adds, 1, 8, zeros(8), zeros(8), np.arange(8), trace=0).trace
    seen = [(trace.sites[r.place].text, KINDS[r.kind]) for r in trace.records[::8]]
    assert seen == [
        ("where[t]", "read"),
        ("out[where[t]]", "read"),
        ("a[t]", "read"),
        ("out[where[t]]", "write"),
    ]


def test_a_finding_that_is_collected_leaves_the_trace_whole() -> None:
    copies = kernel("out, a", "out[t] = a[t]")
    report = launch(copies, 1, 8, zeros(8), zeros(5), trace=0, collect=True)
    assert len(report.findings) == 1
    assert len(report.trace.only(array="a")) == 5, "who is outside reads nothing"
    with pytest.raises(SimtError):
        launch(copies, 1, 8, zeros(8), zeros(5), trace=0)


@pytest.mark.parametrize(
    ("wanted", "blocks"),
    [
        (np.int64(4), {4}),
        ((1, 2, 1), {11}),
        ((1, 1), {3}),
        ([0, (1, 2)], {0, 5}),
        (range(2, 4), {2, 3}),
        ("all", set(range(12))),
        ([], set()),
    ],
)
def test_only_the_chosen_thread_blocks_are_traced(wanted: object, blocks: set[int]) -> None:
    each = kernel("out", "x, y, z = cuda.grid(3)\nout[z, y, x] = 1")
    trace = launch(each, (2, 3, 2), 4, zeros(2, 3, 8), trace=wanted).trace
    assert set(trace.records.block.tolist()) == blocks
    assert len(trace) == 4 * len(blocks)
    named = f"thread block {min(blocks)}" if len(blocks) == 1 else f"{len(blocks)} thread blocks"
    assert str(trace).startswith(f"trace of kernel: {named if blocks else 'nothing'}")


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        *((one, ValueError) for one in (2, -1, (0, 1), [0, 2])),
        *((one, TypeError) for one in (True, "first", 1.0, (), (0,) * 4, ["all"], [()])),
        ((i for i in (0, 1)), TypeError),
    ],
)
def test_what_is_no_thread_block_of_the_launch_is_refused(wanted: object, error: type) -> None:
    with pytest.raises(error, match=r"trace: .*thread block"):
        trace_of_shifted(trace=wanted)


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
    ("wanted", "words"),
    [
        ({"kind": "load"}, "kind is 'load'.* read, write"),
        ({"space": "L2"}, "space is 'L2'"),
        ({"array": "b"}, "array is 'b'.* a, s, out"),
        ({"where": "b["}, r"'b\['"),
        ({"where": 1}, "no place at 1"),
        ({"block": 2}, "block: .* 2"),
        ({"warp": 2}, "warp is 2"),
    ],
)
def test_what_the_trace_does_not_have_is_refused(wanted: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        trace_of_shifted().only(**wanted)


def test_a_line_is_one_of_the_kernels_own_file(tmp_path) -> None:
    text = (
        "\n" * 19 + "from numba import cuda\n@cuda.jit(device=True)\ndef far(x):\n    return x[0]\n"
    )
    calls = kernel("out", "out[t] = far(out)", far=imported(tmp_path / "elsewhere.py", text).far)
    trace = launch(calls, 1, 8, zeros(8), trace=0, checks=()).trace
    assert len(trace.only("x[0]")) == 8
    with pytest.raises(ValueError, match="no place at 23"):
        trace.only(23)
    with pytest.raises(ValueError, match="no statement of kernel is at"):
        launch(calls, 1, 1, zeros(1), watch=23)
