"""When a mistake was found: findings with the numbers of their warp instructions."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simt.gpus import WARP_SIZE
from simt.report import Finding
from simt.trace import Trace, block_number


def with_moments(
    findings: Sequence[Finding], moments: Sequence[int | None], trace: Trace
) -> list[Finding]:
    """The findings with `instruction` and `other_instruction` filled in.

    moments  the number of records at each finding; None: its thread block isn't traced
    """
    placed = []
    for finding, count in zip(findings, moments, strict=True):
        if count is not None:
            number = _instruction(trace, count, finding)
            other = None if number is None else _other(trace, finding, number)
            finding = replace(finding, instruction=number, other_instruction=other)
        placed.append(finding)
    return placed


def _instruction(trace: Trace, count: int, finding: Finding) -> int | None:
    """The warp instruction in which a mistake was made, or the warp's last one before it if it
    isn't recorded.

    Some mistakes are found just before their instruction is recorded, and others just after.
    """
    records, warp = trace.records, finding.thread // WARP_SIZE
    block = block_number("block", finding.block, trace.grid)
    mine = (records.block == block) & (records.warp == warp)
    before = records.instruction[:count][mine[:count]][-1:].tolist()
    after = records.instruction[count:][mine[count:]][:1].tolist()
    own = (number for number in before + after if is_at(trace, finding, number))
    return next(own, before[0] if before else None)


def is_at(trace: Trace, finding: Finding, instruction: int) -> bool:
    """Whether a mistake was made in this warp instruction. It has no record of a lane that is out
    of bounds."""
    here = trace.records.instruction == instruction
    takes_part = finding.thread in trace.threads[here]
    same_site = trace.sites[trace.records.place[here][0]] == finding.site
    return same_site and takes_part != (finding.check == "memory")


def _other(trace: Trace, finding: Finding, instruction: int) -> int | None:
    """The other thread's last access, at the other place, to the same bytes."""
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
