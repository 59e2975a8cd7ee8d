"""Pictures of what the lanes of a warp do together, drawn from a trace: shuffles and banks."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from pa_tutorial.simt.trace import Trace
from pa_tutorial.simt.traffic import NUM_BANKS, WORD, shared_traffic, units
from pa_tutorial.viz import style

ROOM_FOR_WORDS = 12  # lanes beside each other whose cells hold a text like "12–15"
STEP = 1.9  # rows of lanes are this far apart


def summed_lanes(trace: Trace) -> list[dict[int, frozenset[int]]]:
    """After each shuffle of a warp: lane -> the lanes whose values are in its sum.

    As in a reduction, where each lane adds what it reads to what it has. The first entry is
    before all shuffles.

    Raises ValueError if the trace has no shuffles, is not of one warp of one thread block, or
    goes on after a sum is complete: then it is of several reductions.
    """
    shuffles = trace.only(kind="shuffle")
    records = shuffles.records
    warps = {*zip(records.block.tolist(), records.warp.tolist(), strict=True)}
    if len(warps) != 1:
        raise ValueError(
            f"trace: {len(warps)} warps of {trace.kernel} shuffle; a reduction is drawn for one. "
            "Choose by trace.only(block=, warp=)"
        )
    states = [{int(lane): frozenset({int(lane)}) for lane in np.unique(records.lane)}]
    for step in _steps(shuffles):
        before, now = states[-1], dict(states[-1])
        for lane, source in step:
            read = before.get(source, frozenset())
            if lane != source and before[lane] & read:
                raise ValueError(f"trace: lane {lane} adds a value twice: several reductions")
            now[lane] = before[lane] | read
        states.append(now)
    return states


def _steps(shuffles: Trace) -> list[list[tuple[int, int]]]:
    """(lane, lane that it reads from) for each shuffle."""
    records = shuffles.records
    steps: dict[int, list[tuple[int, int]]] = {}
    for r in records:
        steps.setdefault(int(r.instruction), []).append((int(r.lane), int(r.source_lane)))
    return list(steps.values())


@style.styled
def draw_reduction(trace: Trace) -> Figure:
    """A reduction of one warp, drawn from its shuffles: from row to row, who reads from whom."""
    states = summed_lanes(trace)
    lanes = sorted(states[0])
    figure, axes = style.new_figure(_finding(states), 0.5 + 0.55 * len(states))
    style.bare(axes, len(lanes) + 0.05, STEP * (len(states) - 1) + 1)
    axes.set_aspect("auto")
    for number, step in enumerate(_steps(trace.only(kind="shuffle"))):
        ends = STEP * number + 1, STEP * (number + 1)
        for lane, source in step:
            xs = lanes.index(source) + 0.5, lanes.index(lane) + 0.5
            style.add(axes, style.arrow(*zip(xs, ends, strict=True)))
        for column in range(len(lanes)):  # each lane keeps what it has
            own = [column + 0.5] * len(ends)
            axes.plot(own, ends, color=style.lighter(style.QUIET), zorder=0)
    largest = max(map(len, states[-1].values()))
    for number, state in enumerate(states):
        for column, lane in enumerate(lanes):
            missing = 1 - np.log2(len(state[lane]) + 1) / np.log2(largest + 1)
            shade = style.lighter(style.LOGITS, 0.8 * missing)
            style.cell(axes, column, STEP * number, shade, _sum_in_words(state[lane], len(lanes)))
        name = f"shuffle {number}" if number else "lane"
        place = -0.15, STEP * number + 0.5
        axes.text(*place, name, ha="right", va="center", color=style.QUIET)
    return figure


def _finding(states: list[dict[int, frozenset[int]]]) -> str:
    last = states[-1]
    largest = max(map(len, last.values()))
    holders = [lane for lane in last if len(last[lane]) == largest]
    who = f"lane {holders[0]} holds" if len(holders) == 1 else f"{len(holders)} lanes hold"
    who = "every lane holds" if len(holders) == len(last) else who
    return f"After {len(states) - 1} shuffles {who} the sum of {largest} lanes"


def _sum_in_words(lanes: frozenset[int], num_columns: int) -> str:
    """The lanes that are summed, "4–7", or how many where there is no room."""
    if len(lanes) == 1:
        return str(*lanes)
    if num_columns > ROOM_FOR_WORDS:
        return f"{len(lanes)}"
    first, last = min(lanes), max(lanes)
    whole = len(lanes) == last - first + 1
    return f"{first}–{last}" if whole else "+".join(map(str, sorted(lanes)))


@style.styled
def draw_banks(
    traces: Mapping[str, Trace], title: str, height: float = 3.6, color: str = style.K
) -> Figure:
    """Shared memory as rows of 32 banks, and the words that one request wants.

    traces  heading -> one warp instruction that touches shared memory; a panel each
    """
    figure, panels = style.new_figure(
        title, height, ncols=len(traces), nrows=2, squeeze=False, height_ratios=(3, 1), sharex=True
    )
    tallest = 0
    for (above, below), (heading, trace) in zip(panels.T, traces.items(), strict=True):
        if trace.num_instructions != 1:
            raise ValueError(f"{heading}: {trace.num_instructions} requests; a bank map shows one")
        wavefronts = shared_traffic(trace).total("wavefronts")
        above.set_title(f"{heading}: {_count(wavefronts, 'wavefront')}", weight="normal")
        _memory(above, trace, color)
        words = np.unique(units(trace.records, WORD)[1])
        per_bank = np.bincount(words % NUM_BANKS, minlength=NUM_BANKS)
        below.bar(np.arange(NUM_BANKS) + 0.5, per_bank, width=0.8, color=color)
        below.set_xlabel("bank")
        ticks = range(0, NUM_BANKS, NUM_BANKS // 4)
        below.set_xticks([tick + 0.5 for tick in ticks], ticks)
        tallest = max(tallest, int(per_bank.max()))
    for below in panels[1]:
        below.set_ylim(0, tallest * 1.05)
        below.set_yticks([0, tallest])
    panels[0][0].set_ylabel(f"row of {NUM_BANKS} words")
    panels[1][0].set_ylabel("words wanted")
    return figure


def _memory(axes: Axes, trace: Trace, color: str) -> None:
    array = trace.the_array()
    begin = array.address // WORD
    num_words = -(-int(np.prod(array.shape)) * array.dtype.itemsize // WORD)
    wanted = set(units(trace.records, WORD)[1].tolist())
    for word in range(begin, begin + num_words):
        row, bank = divmod(word, NUM_BANKS)
        face = color if word in wanted else style.EMPTY
        style.add(axes, Rectangle((bank, row), 0.9, 0.9, facecolor=face))
    axes.set_xlim(0, NUM_BANKS)
    axes.set_ylim((begin + num_words - 1) // NUM_BANKS + 1, begin // NUM_BANKS)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
