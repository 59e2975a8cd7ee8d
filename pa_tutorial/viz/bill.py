"""The bill of the walk's kernels: one row per kernel, for the same decode step.

A notebook prints the row of its kernel on STEP below those of the earlier notebooks, and below it
the reader's own, if they have written any of its functions. bill.json has the rows of ours.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from pa_tutorial.kernels.compiled.report import RECORDING, UNKNOWN, answer, compiled
from pa_tutorial.kernels.cuda_launch import CudaLaunch, PartitionedLaunch
from pa_tutorial.viz.kernel_runs import REFERENCE
from simt import Trace, global_traffic, shared_traffic
from simt.launch_options import MAX_SHARED
from simt.ptx import run_ptx
from simt.tables import Table

# The reference sizes, with a sequence long enough for two partitions of 512.
STEP = replace(REFERENCE, name="bill", seq_lens=(1000,))
FILE = Path(__file__).with_name("bill.json")
COLUMNS = (
    "kernel",
    "thread blocks",
    "K transactions",
    "K sectors",
    "V transactions",
    "V sectors",
    "shared wavefronts",
    "barriers",
    "warp instructions",
    "as compiled",
    "registers (sm_90)",
)
TITLE = "One decode step: 1,000 tokens, float16, 2 query heads of 128 on 1 KV head, blocks of 16"
NOTE = (
    "Counts are over all thread blocks; instructions: memory accesses, shuffles and barriers of\n"
    "the source. As compiled: all that the kernel's PTX executes (v2: without the reduce kernel)."
)


def bill(name: str, launch: CudaLaunch | PartitionedLaunch, yours: str = "") -> Table:
    """The rows up to this kernel's: its costs on STEP, and what the compiler made of it.

    name    name of the row: "naive", "v1", …
    launch  of the kernel on STEP, of which this runs every thread block in the simulator
    yours   what my_kernel.yours says of it; if any of its functions is the reader's, the row is
            called yours, and ours stands above

    Instructions as compiled and registers per thread are for an H100 (kernels/compiled/report.py).
    Where there is no such compiler, our kernel with the recorded counts gets the recorded numbers;
    any other gets ?.
    """
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    is_v2 = isinstance(launch, PartitionedLaunch)
    launches = (launch.partitions, launch.reduce) if is_v2 else (launch,)
    counts = counts_of([one.simulate(trace="all", checks=()).trace for one in launches])
    ours, is_readers = recorded.get(name), bool(yours) and not yours.startswith("0 ")
    costs = *counts, *as_compiled(name, launches[0], None if is_readers else ours, counts)
    rows = [*takewhile(lambda row: row[0] != name, recorded.values())]
    if is_readers:
        rows += [*([ours] if ours else []), ["yours", *costs]]
    else:
        rows += [[name, *costs]]
        record(recorded | {name: rows[-1]})
    note = f"{yours}.\n{NOTE}" if yours else NOTE
    return Table(TITLE, COLUMNS, tuple(map(tuple, rows)), note=note)


def record(rows: Mapping[str, Sequence[object]]) -> None:
    """Write bill.json, while the notebooks are run for committing."""
    if RECORDING in os.environ:
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(row)}" for key, row in rows.items())
        FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8", newline="\n")


def counts_of(traces: Sequence[Trace]) -> list[int]:
    """The numbers of a line that come from traces, summed over the launches."""
    first = traces[0]
    caches = [global_traffic(first.only(array=name)) for name in ("k_cache", "v_cache")]
    return [
        len({*first.records.block.tolist()}),
        *(table.total(column) for table in caches for column in ("transactions", "sectors")),
        sum(shared_traffic(trace).total("wavefronts") for trace in traces),
        sum(trace.only(kind="barrier").num_instructions for trace in traces),
        sum(t.num_instructions - t.only(space="local").num_instructions for t in traces),
    ]


def as_compiled(
    name: str, launch: CudaLaunch, recorded: Sequence[object] | None, counts: list[int]
) -> Sequence[int | str]:
    """Warp instructions and registers on an H100."""
    kernel, arguments = launch.kernel, tuple(launch.arguments.values())

    def ask() -> list[int]:
        made = compiled(kernel, *arguments)
        size = launch.grid, launch.geometry.NUM_THREADS
        # How much shared memory there is doesn't change what is executed.
        options = {"shared_bytes": MAX_SHARED // 2, "checks": (), "text": made.ptx}
        return [run_ptx(kernel, *size, *arguments, **options).num_issued, made.registers]

    found = answer(f"bill of {name}", kernel, arguments, ask, counts)
    if found != UNKNOWN:
        return found
    return recorded[-2:] if recorded and list(recorded[1:-2]) == counts else (UNKNOWN, UNKNOWN)
