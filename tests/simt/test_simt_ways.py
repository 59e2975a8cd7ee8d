"""How the kernel came to an access: calls, turns of loops; and when a mistake was found."""

import numpy as np
import pytest
from numba import cuda, float32

from pa_tutorial.simt import Finding, Report, Trace, launch
from pa_tutorial.simt.trace import NO_TURN
from tests.simt_helpers import kernel, zeros


@cuda.jit(device=True)
def element(a, row, column):
    for once in range(1):
        return a[row, column + once]


@cuda.jit
def nested(out, a):
    t = cuda.threadIdx.x
    total = float32(0)
    for row in range(t // 32, 4, 2):
        for column in range(t % 32, 8, 4):
            total += element(a, row, column)
    rest = 2
    while rest > 0:
        out[t] = total + out[t]
        rest -= 1
    out[t] = element(a, 0, 0)


def trace_of_nested(order: str | int = "together") -> Trace:
    return launch(nested, 1, 64, zeros(64), zeros(4, 8), trace=0, order=order).trace


@pytest.mark.parametrize("order", ["together", "reverse", 3])
def test_turns_say_which_element_is_read(order: str | int) -> None:
    """row and column follow from thread and turns: an oracle that knows nothing of the trace."""
    trace = trace_of_nested(order)
    reads = trace.only(array="a", turns={"once": 0})
    row, column = reads.the_array().indices(reads.records.address)
    in_loops = 0
    for record, thread, r, c in zip(reads.records, reads.threads, row, column, strict=True):
        turns = dict(trace.loops(record.way))
        if set(turns) == {"once"}:  # called behind the loops, nobody is in them any more
            assert (r, c) == (0, 0)
            continue
        in_loops += 1
        assert set(turns) == {"row", "column", "once"}
        assert r == thread // 32 + 2 * turns["row"]
        assert c == thread % 32 + 4 * turns["column"]
    assert (in_loops, len(reads)) == (48, 48 + 64)


def test_a_way_names_its_loops_from_outside_and_its_call() -> None:
    trace = trace_of_nested()
    way = trace.ways[trace.only(array="a").records[0].way]
    texts = [trace.sites[place].text for place, _ in way]
    assert texts[2] == "element(a, row, column)"
    assert [text.split(" in")[0] for text in texts[:2]] == ["for row", "for column"]
    assert [turn for _, turn in way] == [0, 0, NO_TURN, 0]
    last = trace.only(array="out").records
    assert {name for r in last for name, _ in trace.loops(r.way)} == {"while rest > 0"}
    assert trace.ways[last[-1].way] == (), "after a loop and a call nobody is in it"


def test_only_takes_turns() -> None:
    trace = trace_of_nested()
    part = trace.only(array="a", turns={"row": 1, "column": 0}, warp=0)
    row, column = part.the_array().indices(part.records.address)
    assert set(row.tolist()) == {2}
    assert column.tolist() == list(range(8))
    assert len(trace.only(turns={"while rest > 0": 1}, kind="write")) == 64
    assert len(trace.only(turns={"row": 7})) == 0
    with pytest.raises(ValueError, match=r"no loop 'j'; there are: column, once, row, while rest"):
        trace.only(turns={"j": 0})


def test_a_trace_has_the_text_of_every_function() -> None:
    trace = trace_of_nested()
    assert [source.name for source in trace.sources] == ["nested", "element"]
    (line,) = {trace.sites[p].line for p in trace.only(array="a").records.place}
    assert "return a[row, column + once]" in trace.sources[1].lines[line]


# When a mistake was found -----------------------------------------------------------------------

SHIFTED = kernel(
    "out",
    """
    s = cuda.shared.array(64, float32)
    s[t] = 0
    s[t] = t
    out[t] = s[(t + 32) % 64]
    out[t] = s[(t + 32) % 64]
    """,
)


def collected(broken: object, num_threads: int, *more: np.ndarray, **options) -> Report:
    arguments = zeros(num_threads), *more
    options = {"trace": 0, **options}
    return launch(broken, 1, num_threads, *arguments, collect=True, **options)


@pytest.mark.parametrize("order", ["together", "reverse"])
def test_a_race_knows_its_two_accesses(order: str) -> None:
    report = collected(SHIFTED, 64, order=order)
    races = [finding for finding in report.findings if finding.check == "race"]
    assert races
    for race in races:
        ends = []
        for instruction, thread, site in (
            (race.other_instruction, race.other_thread, race.other_site),
            (race.instruction, race.thread, race.site),
        ):
            part = report.trace.only(instruction=instruction)
            (record,) = part.records[part.threads == thread]
            assert part.sites[record.place] == site
            ends.append((record.address, record.address + record.num_bytes))
        (a0, a1), (b0, b1) = ends
        assert a0 < b1
        assert b0 < a1
        assert race.other_instruction < race.instruction


def in_turns(places: tuple[int, ...], read: int) -> tuple[Trace, Finding]:
    """Each thread writes to s at t + 64 * place, in turn; then it reads of another warp."""
    writes = kernel(
        "out",
        f"""
        s = cuda.shared.array(128, float32)
        for place in {places}:
            s[t + 64 * place] = t
        out[t] = s[(t + 32) % 64 + 64 * {read}]
        """,
    )
    report = collected(writes, 64)
    (race,) = report.findings
    return report.trace, race


@pytest.mark.parametrize(
    ("places", "read", "turn"),
    [((0, 0), 0, 1), ((0, 1), 0, 0), ((1, 0), 1, 0), ((0, 1), 1, 1), ((1, 0), 0, 1)],
)
def test_the_other_access_is_the_last_one_to_the_same_bytes(
    places: tuple[int, ...], read: int, turn: int
) -> None:
    trace, race = in_turns(places, read)
    part = trace.only(instruction=race.other_instruction)
    assert trace.loops(part.records[0].way) == [("place", turn)]
    assert race.other_thread in part.threads


@pytest.mark.parametrize("order", ["together", "forward", "reverse"])
def test_the_other_access_is_one_of_the_other_thread(order: str) -> None:
    """All threads of three warps read one word, which thread 0 then writes."""
    resets = kernel("out, s", "out[t] = s[0]\nif t == 0:\n    s[0] = 1")
    report = collected(resets, 96, zeros(1), order=order)
    assert report.findings
    for race in report.findings:
        part = report.trace.only(instruction=race.other_instruction)
        assert race.other_thread in part.threads


def test_a_value_that_nobody_wrote_is_found_at_its_read() -> None:
    body = "s = cuda.shared.array(32, float32)\nout[t] = t\nout[t] = s[t]"
    report = collected(kernel("out", body), 32)
    (finding,) = report.findings
    assert {finding.instruction} == {*report.trace.only(array="s").records.instruction.tolist()}
    assert finding.other_instruction is None


def test_an_index_outside_is_found_after_what_its_warp_did_before() -> None:
    body = "out[t] = 1\nif t >= 32:\n    out[t] = a[t]"
    report = collected(kernel("out, a", body), 64, zeros(40))
    (finding,) = report.findings
    record = report.trace.only(instruction=finding.instruction).records[0]
    assert (record.warp, report.trace.sites[record.place].text) == (1, "out[t]")


@pytest.mark.parametrize("trace", [None, 1])
def test_without_a_trace_of_the_block_there_is_no_moment(trace: int | None) -> None:
    report = launch(SHIFTED, 2, 64, zeros(64), collect=True, trace=trace)
    first_block = [f for f in report.findings if f.block == (0, 0, 0)]
    assert first_block
    assert {f.instruction for f in first_block} == {None}
