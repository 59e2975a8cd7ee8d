"""Run and check Numba CUDA kernels without a GPU.

    report = launch(kernel, grid, block, *args)

runs a @cuda.jit kernel with all checks and raises SimtError at the first finding. `ptx` shows
that Numba's compiler accepts the kernel too. `twin` teaches the simulator an intrinsic.

The machine executes one statement at a time for a set of lanes, as a GPU does:
source.py finds the text of a kernel, program.py, statements.py and expressions.py translate it,
lanes.py says who executes a statement, arithmetic.py computes as Numba types it, memory.py,
access.py and races.py move and check data, intrinsics.py and warp.py are cuda.…, machine.py
holds thread blocks and barriers.
"""

from pa_tutorial.simt.compiled import ptx
from pa_tutorial.simt.machine import CHECKS
from pa_tutorial.simt.report import Finding, Report, SimtError
from pa_tutorial.simt.simulate import launch
from pa_tutorial.simt.snapshots import Snapshot
from pa_tutorial.simt.source import Unsupported
from pa_tutorial.simt.twins import LaneAccess, twin

__all__ = [
    "CHECKS",
    "Finding",
    "LaneAccess",
    "Report",
    "SimtError",
    "Snapshot",
    "Unsupported",
    "launch",
    "ptx",
    "twin",
]
