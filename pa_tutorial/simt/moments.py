"""When a mistake was found: findings with the numbers of their warp instructions."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.simt.recorder import Recorder
from pa_tutorial.simt.report import Finding
from pa_tutorial.simt.snapshots import Index
from pa_tutorial.simt.trace import Trace, block_number


def with_moments(
    findings: Sequence[Finding], moments: Sequence[int | None], recorder: Recorder, trace: Trace
) -> list[Finding]:
    """The findings with `instruction` and `other_instruction`.

    moments  for each finding how many entries the recorder had when it was found; None: its
             thread block is not traced
    """
    placed = []
    for finding, count in zip(findings, moments, strict=True):
        if count is not None:
            number = _last(recorder, count, finding.block, finding.thread)
            other = None if number is None else _other(trace, finding, number)
            finding = replace(finding, instruction=number, other_instruction=other)
        placed.append(finding)
    return placed


def _last(recorder: Recorder, count: int, block: Index, thread: int) -> int | None:
    """The last warp instruction of a thread's warp among the first `count` entries."""
    before, found = 0, None
    for entry in recorder.entries[:count]:
        warps = np.unique((entry.lanes.numbers + entry.first) // WARP_SIZE).tolist()
        if entry.block == block and thread // WARP_SIZE in warps:
            found = before + warps.index(thread // WARP_SIZE)
        before += len(warps)
    return found


def _other(trace: Trace, finding: Finding, instruction: int) -> int | None:
    """The last access of the other thread at the other place to the bytes of this one."""
    if finding.check != "race":
        return None
    records = trace.records
    (mine,) = records[(records.instruction == instruction) & (trace.threads == finding.thread)]
    at_place = np.isin(
        records.place, [i for i, site in enumerate(trace.sites) if site == finding.other_site]
    )
    other = records[
        at_place
        & (records.instruction <= instruction)
        & (records.block == block_number("other_block", finding.other_block, trace.grid))
        & (trace.threads == finding.other_thread)
        & (records.space == mine.space)
        & (records.address < mine.address + mine.num_bytes)
        & (mine.address < records.address + records.num_bytes)
    ]
    return int(other.instruction[-1]) if len(other) else None
