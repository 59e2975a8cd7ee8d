"""Kernels with known answers, with one fault, and random ones, in every order of warps."""

import inspect
from pathlib import Path

import numpy as np
import pytest

from simt import SimtError, Trace, launch
from simt.snapshots import Index
from simt.source import Site
from tests.simt.helpers import kernel, run, zeros
from tests.simt.kernels.example import EXAMPLES, FAULTS
from tests.simt.simt_programs import NUM_THREADS, arguments, run_thread_by_thread, write_program

ORDERS = (pytest.param("together", marks=pytest.mark.macos), "forward", "reverse", 7)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_answer_is_right_and_no_check_cries_wolf(name: str, order: str | int) -> None:
    example = EXAMPLES[name]
    args = example.draw()
    assert run(example, *args, order=order).clean
    for position, expected in example.answer(*example.draw()).items():
        np.testing.assert_allclose(args[position], expected, rtol=example.rtol, atol=0)


# Faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS)
def test_the_right_check_finds_the_fault_at_the_right_line(name: str) -> None:
    fault = FAULTS[name]
    with pytest.raises(SimtError) as caught:
        run(fault)
    finding = caught.value.finding
    other = finding.other_site.code if finding.other_site else ""
    assert finding.check == fault.check, str(finding)
    assert "# FAULT" in finding.site.code, str(finding)
    assert ("# FIRST" in other) == ("# FIRST" in inspect.getsource(fault.kernel.py_func))


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


@pytest.mark.parametrize("order", ["together", "reverse", 7])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_in_every_order_and_knows_its_accesses(
    name: str, order: str | int
) -> None:
    fault = FAULTS[name]
    report = run(fault, trace="all", order=order, collect=True)
    lines = [(f.site, f.other_site) for f in report.findings if f.check == fault.check]
    assert any(site and "# FAULT" in site.code for pair in lines for site in pair), lines
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


# Divergence, and turns of loops --------------------------------------------------------------


def test_only_takes_turns() -> None:
    lines = """
        for row in range(t // 32, 4, 2):
            for column in range(t % 32, 8, 4):
                x = a[row, column]
        """
    trace = launch(kernel("a", lines), 1, 64, zeros(4, 8), trace=0).trace
    part = trace.only(turns={"row": 1, "column": 0}, warp=0)
    row, column = part.the_array().indices(part.records.address)
    assert set(row.tolist()) == {2}
    assert column.tolist() == list(range(8))
    with pytest.raises(ValueError, match="no loop 'j'; its loops: column, row"):
        trace.only(turns={"j": 0})


SEEDS = [pytest.param(range(n, n + 20), id=str(n)) for n in range(0, 300, 20)]
SEEDS += [
    pytest.param(range(n, n + 1000), id=str(n), marks=pytest.mark.hours)
    for n in range(300, 10_300, 1000)
]


@pytest.mark.rest(keep=["60", "160"])
@pytest.mark.parametrize("seeds", SEEDS)
def test_random_programs_run_as_in_plain_python(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        module = write_program(seed, tmp_path)
        out, table = arguments()
        order = "together" if seed % 3 else "reverse"
        assert launch(module.kernel, 1, NUM_THREADS, out, table, order=order).clean
        np.testing.assert_array_equal(out, run_thread_by_thread(module))
