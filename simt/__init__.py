"""Run and check Numba CUDA kernels without a GPU.

    report = launch(kernel, grid, block, *args)

runs a @cuda.jit kernel with all checks and raises SimtError at the first finding. `compile_ptx`
shows that Numba compiles the kernel, too. `twin` teaches the simulator an intrinsic. With
trace=0 the report holds the trace of thread block 0: `global_traffic`, `shared_traffic`,
`instructions` and `bytes_by_space` count what it cost.

The machine executes one statement at a time for a set of lanes, as a warp of a GPU does. A lane is
a thread. A gang is the lanes that execute statements together (a warp, a thread block, or several
thread blocks), and a frame is one call of a function by a gang. A site is an expression in the
kernel's text; its number is a place. A cell is a few bytes of memory for which the checks remember
who accessed them, and a stamp is what they remember about one access. Start reading with lanes.py,
which says who executes a statement. Then

    source, program, known                            the kernel's text, and what its names mean
    statements, expressions, calls, closures          the text, translated into Python functions
    names, intrinsics, warp, twins                    what cuda.… and intrinsics mean
    signatures, successor_types, jit                  types that a kernel declares
    compiled_in                                       what is frozen when Numba compiles
    arithmetic                                        numbers as Numba types them
    tuples, methods                                   named tuples and vectors; array.reshape
    memory, views, records, access, races, fences,
    writes                                            data, and what the checks remember about it
    machine, blocks, batched_blocks                   thread blocks, gangs, barriers
    launch, launch_options, kernel_arguments          launch, and what it may be given
    report, snapshots                                 what it returns
    brackets, simulate, ufuncs, host, device_array,
    cuda, __main__, programs, notebooks               programs that weren't written for it
    recorder, trace, moments                          who accessed what, when a mistake was found
    traffic, tables                                   what that costs
    gpus                                              sizes of a GPU, and what fits on it
"""

from simt.compiling import compile_ptx
from simt.host import simulated
from simt.launch import launch
from simt.machine import CHECKS
from simt.report import Finding, Report, SimtError
from simt.simulate import simulate
from simt.snapshots import Snapshot
from simt.source import Unsupported
from simt.trace import Trace
from simt.traffic import (
    bytes_by_space,
    different_sectors,
    global_traffic,
    instructions,
    shared_traffic,
)
from simt.twins import LaneAccess, twin

__all__ = [
    "CHECKS",
    "Finding",
    "LaneAccess",
    "Report",
    "SimtError",
    "Snapshot",
    "Trace",
    "Unsupported",
    "bytes_by_space",
    "compile_ptx",
    "different_sectors",
    "global_traffic",
    "instructions",
    "launch",
    "shared_traffic",
    "simulate",
    "simulated",
    "twin",
]
