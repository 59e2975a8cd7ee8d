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


# No lane is in bounds; a record is only referred to, in order to read one of its fields; or it is a
# variable that isn't in memory.
WITHOUT_ACCESS = (
    *("unused_entry_of_the_block_table", "record_after_the_last"),
    *("variable_set_in_one_branch_only", "around_it_not_all_have_assigned"),
)


@pytest.mark.parametrize("order", ["together", "reverse"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_mistake_knows_its_access_and_a_race_the_other_one(name: str, order: str) -> None:
    report = run(FAULTS[name], trace="all", order=order, collect=True)
    for found in report.findings:
        block = report.trace.only(block=found.block).records
        here = np.unique(block.place[block.instruction == found.instruction])
        is_access = [report.trace.sites[place] for place in here] == [found.site]
        assert is_access == (name not in WITHOUT_ACCESS)
        if found.check != "race":
            continue
        own = accesses(report.trace, found.block, found.thread, found.site)
        (mine,) = [r for r in own if r.instruction == found.instruction]
        others = accesses(report.trace, found.other_block, found.other_thread, found.other_site)
        before = [
            r.instruction
            for r in others
            if r.instruction <= mine.instruction
            and r.address < mine.address + mine.num_bytes
            and mine.address < r.address + r.num_bytes
        ]
        assert found.other_instruction == max(before, default=None)  # the last one
