"""qk_max on its way through the shuffles, drawn from trace and snapshots."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.kernels.geometry import FLT_MAX
from pa_tutorial.kernels.intermediates import SCORES_DONE
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.viz import style
from pa_tutorial.viz.kernel_runs import Run, between, run_v1, scores_written
from pa_tutorial.walk.cases import WORKED_EXAMPLE

# The maximum ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exchange:
    """One shuffle of qk_max: which lane read from which, and what every lane had afterwards."""

    sources: dict[int, int]
    values: dict[int, float]


def own_maxima(run: Run, warp: int) -> dict[int, float]:
    """lane -> the largest score of its own tokens; -FLT_MAX without one."""
    scores = run.snapshot(SCORES_DONE)["logits"]
    writes = scores_written(run)
    array, writes = writes.the_array(), writes.only(warp=warp)
    maxima = dict.fromkeys(range(WARP_SIZE), -FLT_MAX)
    (tokens,) = array.indices(writes.records.address)
    for lane, token in zip(writes.records.lane.tolist(), tokens.tolist(), strict=True):
        if token < int(run["seq_lens"][0]):
            maxima[lane] = max(maxima[lane], float(scores[token]))
    return maxima


def exchanges(run: Run, warp: int) -> tuple[list[Exchange], list[Exchange]]:
    """The shuffles of qk_max: within the warp, and over what the warps have left in red_smem."""
    shuffles = between(run.trace, before=SCORES_DONE).only("shfl_xor_sync", warp=warp)
    lines = [run.trace.sites[place].line for place in shuffles.records.place.tolist()]
    first_line = min(lines)
    values, parts = own_maxima(run, warp), ([], [])
    for instruction in dict.fromkeys(shuffles.records.instruction.tolist()):
        step = shuffles.only(instruction=instruction).records
        second = run.trace.sites[step.place[0]].line > first_line
        if second and not parts[1]:
            left = red_smem(run)
            values = {lane: left.get(lane, -FLT_MAX) for lane in range(WARP_SIZE)}
        sources = dict(zip(step.lane.tolist(), step.source_lane.tolist(), strict=True))
        values = {lane: max(values[lane], values[source]) for lane, source in sources.items()}
        parts[second].append(Exchange(sources, values))
    return parts


def red_smem(run: Run) -> dict[int, float]:
    """warp -> the maximum that it has left in red_smem; the sums come later, in the other half."""
    left = run.snapshot(SCORES_DONE)["red_smem"][: run.geometry.NUM_WARPS]
    return dict(enumerate(np.ma.filled(left, np.nan).tolist()))


@style.styled
def draw_maximum(run: Run, warp: int) -> Figure:
    """qk_max on its way: through the lanes of one warp, then over the warps."""
    g = run.geometry
    within, over = exchanges(run, warp)
    lanes = list(range(0, WARP_SIZE, g.THREAD_GROUP_SIZE))
    title = (
        f"{len(within)} shuffles give a warp its largest score, "
        f"{len(over)} more the largest of {g.NUM_WARPS} warps"
    )
    figure, (above, below) = style.new_figure(
        title, 4.4, nrows=2, height_ratios=(len(within) + 1, len(over) + 1)
    )
    above.set_title(f"warp {warp}: qk_max in the first lane of each thread group", weight="normal")
    _draw_exchanges(above, lanes, own_maxima(run, warp), within, "own")
    below.set_title(
        f"lanes 0 to {g.NUM_WARPS - 1} of every warp: what the warps have left in red_smem",
        weight="normal",
    )
    _draw_exchanges(below, list(range(g.NUM_WARPS)), red_smem(run), over, "red_smem")
    return figure


def _draw_exchanges(
    axes: Axes, lanes: list[int], start: dict[int, float], steps: list[Exchange], name: str
) -> None:
    gap = 1.7
    style.bare(axes, len(lanes), gap * len(steps) + 1)
    axes.set_aspect("auto")
    states = [start, *(step.values for step in steps)]
    largest = max(start.values())
    for number, state in enumerate(states):
        y = gap * number
        for column, lane in enumerate(lanes):
            value = state[lane]
            shade = style.lighter(style.LOGITS, 0 if value == largest else 0.7)
            text = "-FLT_MAX" if value == -FLT_MAX else f"{value:.3f}"
            style.cell(axes, column, y, shade, text)
        label = name
        if number:
            sources = steps[number - 1].sources
            label = f"mask {abs(sources[lanes[0]] - lanes[0])}"
            for column, lane in enumerate(lanes):
                tail = lanes.index(sources[lane]) + 0.5
                style.add(axes, style.arrow((tail, y - gap + 1), (column + 0.5, y)))
        axes.text(-0.1, y + 0.5, label, ha="right", va="center", color=style.QUIET)
    for column, lane in enumerate(lanes):
        place = column + 0.5, -0.25
        axes.text(*place, f"lane {lane}", ha="center", va="center", color=style.QUIET)
    axes.set_ylim(gap * len(steps) + 1.05, -0.5)


def draw_worked_maximum() -> Figure:
    return draw_maximum(run_v1(WORKED_EXAMPLE), warp=0)
