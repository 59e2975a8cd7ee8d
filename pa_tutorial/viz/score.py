"""The score of the walk's kernels from 08 to 13: one line per kernel, for the same decode step.

A notebook runs its kernel on STEP with a trace, and prints its line below the earlier notebooks'.
The committed lines are in score.json.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from pa_tutorial.kernels.compiled.report import RECORDING, UNKNOWN, answer, compiled
from pa_tutorial.viz.kernel_runs import REFERENCE
from simt import Report, global_traffic, shared_traffic
from simt.launch_options import MAX_SHARED
from simt.ptx import run_ptx
from simt.tables import Table

# The reference sizes, with a sequence long enough for two partitions of 512.
STEP = replace(REFERENCE, name="score", seq_lens=(1000,))
FILE = Path(__file__).with_name("score.json")
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


def score(
    name: str, reports: Report | Sequence[Report], kernel: Callable, *arguments: object
) -> Table:
    """The lines up to this kernel's: its costs on STEP, and what the compiler made of it.

    name     name of the line: "naive", "v1", …
    reports  reports of the kernel's launch or launches, with trace="all"
    kernel   a @cuda.jit kernel, made for the sizes of STEP, and the `arguments` of its launch
             (v2: of the paged kernel, whose report comes first)

    Instructions as compiled and registers per thread are for an H100 (kernels/compiled/report.py).
    Where there is no such compiler, a kernel with the recorded counts gets the recorded numbers;
    any other gets ?.
    """
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    reports = [reports] if isinstance(reports, Report) else reports
    counts = counts_of(reports)
    made = as_compiled(name, kernel, arguments, reports[0], recorded.get(name), counts)
    row = [name, *counts, *made]
    if RECORDING in os.environ:
        recorded[name] = row
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in recorded.items()]
        text = ",\n".join(lines)
        FILE.write_text(f"{{\n{text}\n}}\n", encoding="utf-8", newline="\n")
    before = takewhile(lambda row: row[0] != name, recorded.values())
    return Table(TITLE, COLUMNS, tuple(map(tuple, [*before, row])), note=NOTE)


def counts_of(reports: Sequence[Report]) -> list[int]:
    """The numbers of a line that come from traces, summed over the launches."""
    traces = [report.trace for report in reports]
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
    name: str,
    kernel: Callable,
    arguments: Sequence[object],
    report: Report,
    recorded: Sequence[object] | None,
    counts: list[int],
) -> Sequence[int | str]:
    """Warp instructions and registers on an H100."""

    def ask() -> list[int]:
        made = compiled(kernel, *arguments)
        size = report.grid, report.block
        # How much shared memory there is doesn't change what is executed.
        options = {"shared_bytes": MAX_SHARED // 2, "checks": (), "text": made.ptx}
        return [run_ptx(kernel, *size, *arguments, **options).num_issued, made.registers]

    found = answer(f"score of {name}", kernel, arguments, ask, counts)
    if found != UNKNOWN:
        return found
    return recorded[-2:] if recorded and list(recorded[1:-2]) == counts else (UNKNOWN, UNKNOWN)
