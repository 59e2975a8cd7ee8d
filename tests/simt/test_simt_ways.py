"""How the kernel came to an access: calls, turns of loops; and when a mistake was found."""

import numpy as np
import pytest
from numba import cuda, float32

from simt import Trace, launch
from simt.snapshots import Index
from simt.source import Site
from tests.simt.helpers import run, zeros
from tests.simt.kernels.example import FAULTS


@cuda.jit
def nested(out, a):
    t = cuda.threadIdx.x
    total = float32(0)
    for row in range(t // 32, 4, 2):
        for column in range(t % 32, 8, 4):
            total += a[row, column]
    rest = 2
    while rest > 0:
        out[t] = total + out[t]
        rest -= 1


def test_only_takes_turns() -> None:
    trace = launch(nested, 1, 64, zeros(64), zeros(4, 8), trace=0).trace
    part = trace.only(array="a", turns={"row": 1, "column": 0}, warp=0)
    row, column = part.the_array().indices(part.records.address)
    assert set(row.tolist()) == {2}
    assert column.tolist() == list(range(8))
    assert len(trace.only(turns={"while rest > 0": 1}, kind="write")) == 64
    assert len(trace.only(turns={"row": 7})) == 0
    with pytest.raises(ValueError, match="no loop 'j'; its loops: column, row, while rest"):
        trace.only(turns={"j": 0})


# When a mistake was found -----------------------------------------------------------------------


def accesses(trace: Trace, block: Index, thread: int, site: Site) -> list[np.record]:
    """The records of a thread at a place of the kernel."""
    part = trace.only(block=block)
    records = zip(part.records, part.threads, strict=True)
    return [r for r, of in records if (of, trace.sites[r.place]) == (thread, site)]


@pytest.mark.parametrize("order", ["together", "reverse"])
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.check == "race"])
def test_a_race_knows_its_two_accesses(name: str, order: str) -> None:
    report = run(FAULTS[name], trace="all", order=order, collect=True)
    for race in report.findings:
        own = accesses(report.trace, race.block, race.thread, race.site)
        (mine,) = [r for r in own if r.instruction == race.instruction]
        others = accesses(report.trace, race.other_block, race.other_thread, race.other_site)
        before = [
            r.instruction
            for r in others
            if r.instruction <= mine.instruction
            and r.address < mine.address + mine.num_bytes
            and mine.address < r.address + r.num_bytes
        ]
        assert race.other_instruction == max(before, default=None)  # the last one


# No lane is in bounds; a record is only referred to, in order to read one of its fields; or it is a
# variable that isn't in memory.
WITHOUT_ACCESS = (
    *("unused_entry_of_the_block_table", "record_after_the_last"),
    *("variable_set_in_one_branch_only", "around_it_not_all_have_assigned"),
)


@pytest.mark.parametrize("name", [n for n, f in FAULTS.items() if f.check != "race"])
def test_a_mistake_is_found_at_itself_and_not_at_the_access_before(name: str) -> None:
    report = run(FAULTS[name], trace="all", collect=True)
    for finding in report.findings:
        here = report.trace.records.instruction == finding.instruction
        places = np.unique(report.trace.records.place[here])
        is_found = [report.trace.sites[place] for place in places] == [finding.site]
        assert is_found == (name not in WITHOUT_ACCESS)
