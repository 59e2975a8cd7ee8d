"""Cells of the microscope, compared with a trace and with the pixels of its canvases."""

import numpy as np
from microscope_pages import EMPTY, INK, Reader, ever_touched, locals_after, touched

from pa_tutorial.simt import Trace
from pa_tutorial.viz.microscope.data import LANE_COLORS


def require_cells(
    reader: Reader, trace: Trace, warp: int | None = None, lane: int | None = None
) -> None:
    """What is lit, what was touched before, and the pixels of both, against the trace."""
    records, at = trace.records, reader.at
    mine = records if lane is None else records[records.lane == lane]
    mine = mine if warp is None else mine[mine.warp == warp]
    now = touched(
        trace,
        np.append(mine[mine.instruction == at], locals_after(trace, at, lane)).view(np.recarray),
    )
    before = ever_touched(trace, mine[mine.instruction <= at])
    here, after = records[records.instruction == at], locals_after(trace, at, lane)
    owner = here.lane.min() if lane is None else lane
    own = records[(records.warp == here.warp[0]) & (records.lane == owner)]
    last = after.instruction.max(initial=at)
    before_of_owner = ever_touched(trace, own[own.instruction <= last])
    for pane in reader.look():
        name = pane["space"], pane["array"]
        expected = now.pop(name)
        shown = {a: (tuple(sorted(lanes)), write) for a, lanes, write in pane["now"]}
        assert shown == expected, f"{name} at instruction {at}"
        past = before_of_owner if pane["space"] == "local" else before
        assert {*pane["before"]} == past[name], f"{name} before instruction {at}"
        require_pixels(pane, expected, lane)
    assert not any(now.values()), "a touched array has a pane"


def require_pixels(pane: dict, now: dict, lane: int | None) -> None:
    """The colours in the tile that is shown."""
    before, visible = {*pane["before"]}, {address for address, *_ in pane["cells"]}
    assert not now or visible & {*now}, "the tile that is shown is one that is touched"
    for address, top, bottom, within in pane["cells"]:
        what = f"{pane['space']} {pane['array']}, address {address}"
        if address not in now:
            expected = pane["color"] if address in before else EMPTY
            assert (top, bottom) == (expected, expected), what
            continue
        lanes, write = now[address]
        color, chosen = LANE_COLORS[lanes[0]], lane in lanes
        # a frame around what the lane that is followed touches; a dark foot under what is written
        framed = chosen or pane["space"] == "local"
        assert top == (INK if framed else color), what
        assert bottom == (INK if framed or write else color), what
        assert color in within, what
