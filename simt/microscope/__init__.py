"""A microscope for kernels: which lane touches what, one warp instruction at a time.

report = launch(kernel, grid, block, *args, trace=0)
microscope(report)                          # in a notebook
microscope(run_ptx(kernel, grid, block, *args))  # the kernel as compiled
microscope(report).save_html("look.html")   # a separate page

panes.py      which part of an array is shown, as data
data.py       turns a trace into data for the page
page.py       the widget, the page, the picture
still.py      draws the picture
*.js, *.css   what runs in the browser: recording (asks the trace), grid (a pane),
              views (time line and source), microscope (controls), showing (words)
"""

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

if find_spec("matplotlib") is None:
    raise ImportError("the microscope needs Matplotlib: pip install 'numba-simt[pictures]'")

from simt import Report, Trace
from simt.arguments import require
from simt.gpus import WARP_SIZE
from simt.microscope.data import findings, one_block
from simt.microscope.page import Microscope
from simt.microscope.panes import Axis, Pane, Tile, array_number, default_panes
from simt.ptx import PtxReport, parse
from simt.ptx.parsing import Kernel
from simt.snapshots import Index

__all__ = ["Axis", "Microscope", "Pane", "Tile", "microscope"]


def microscope(
    report: Report | PtxReport,
    *,
    block: int | Index | None = None,
    panes: Sequence[Pane] = (),
    at: int | Trace | None = None,
    lane: int | None = None,
    ptx: str = "",
) -> Microscope:
    """Step through one thread block of a traced launch.

    report  of launch(..., trace=...), of a prepared launch's `simulate`, or of run_ptx(...)
    block   number or index of a traced thread block; by default the first
    panes   layouts of global arrays; arrays without a pane are shown in the order of addresses
    at      opens at this warp instruction, a number as in `report.trace.records`, or at the first
            instruction of a part of the trace from `report.trace.only(...)`; by default at the
            first finding. (The page counts the instructions of its thread block from 1.)
    lane    opens with this lane followed
    ptx     simt.compile_ptx(kernel, *args, lineinfo=True), to show what the compiler made of each
            line. A report of run_ptx has it

    Raises TypeError for a wrong report or pane, and ValueError if nothing was traced or touched,
    or for a block, a pane, an instruction or a lane that doesn't exist, or for the PTX of another
    kernel.
    """
    if not isinstance(report, Report | PtxReport):
        raise TypeError(f"report is a {type(report).__name__}; needed is launch(..., trace=0)")
    wrong = [pane for pane in panes if not isinstance(pane, Pane)]
    if wrong:
        raise TypeError(f"panes holds {wrong[0]!r}; it must be a Pane")
    require(report.trace is not None, "report", "without a trace", "of launch(..., trace=0)")
    touched = "that of a launch in which the traced thread blocks touched nothing"
    require(len(report.trace) > 0, "report", touched, "one with a warp instruction")
    trace = one_block(report.trace, block)
    blocks = ", ".join(map(str, np.unique(report.trace.records.block)))
    require(len(trace) > 0, "block", block, f"a traced one that touched something: {blocks}")
    for pane in panes:
        array_number(trace, pane.array)
    taken = {pane.array for pane in panes}
    other_panes = [pane for pane in default_panes(trace) if pane.array not in taken]
    numbers = np.unique(trace.records.instruction).tolist()
    if isinstance(at, Trace):
        require(len(at) > 0, "at", "a trace of nothing", "a trace with a record")
        at = at.records.instruction[0]
    first, last = numbers[0], numbers[-1]
    allowed = f"a warp instruction of the thread block, {first} to {last}"
    known = at is None or (at in numbers and not isinstance(at, bool))
    require(known, "at", at, allowed)
    known = lane is None or (lane in range(WARP_SIZE) and not isinstance(lane, bool))
    require(known, "lane", lane, f"0 to {WARP_SIZE - 1}")
    places = [f["second"] for f in findings(report, trace) if f["second"] is not None]
    step = numbers.index(at) if at is not None else places[0] if places else 0
    shown = (*panes, *other_panes)
    return Microscope(report, trace, shown, step, lane, _compiled(report, ptx))


def _compiled(report: Report | PtxReport, ptx: str) -> Kernel | None:
    """The kernel whose PTX is shown."""
    if not ptx:
        return report.kernel if isinstance(report, PtxReport) else None
    compiled = parse(ptx)
    here = {(source.file, line) for source in report.trace.sources for line in source.lines}
    known = any(instruction.source in here for instruction in compiled.instructions)
    require(known, "ptx", "without lines of this kernel", "of simt.compile_ptx(..., lineinfo=True)")
    return compiled
