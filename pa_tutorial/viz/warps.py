"""Pictures of what the lanes of a warp do together, drawn from a trace: shuffles and banks."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from pa_tutorial.simt.trace import Trace
from pa_tutorial.simt.traffic import NUM_BANKS, WORD, shared_traffic
from pa_tutorial.viz import style

ROOM_FOR_WORDS = 12  # lanes beside each other whose cells hold a text like "12–15"
STEP = 1.9  # rows of lanes are this far apart


def heard(trace: Trace, warp: int) -> list[dict[int, frozenset[int]]]:
    """After each shuffle of a warp: lane -> the lanes whose values have arrived in its own.

    As in a reduction, where each lane joins what it reads to what it has. The first entry is
    before all shuffles. Raises ValueError if the warp does not shuffle.
    """
    shuffles = trace.only(kind="shuffle", warp=warp)
    records = shuffles.records
    if not len(records):
        raise ValueError(f"warp {warp} of {trace.kernel} does not shuffle in this trace")
    states = [{int(lane): frozenset({int(lane)}) for lane in np.unique(records.lane)}]
    for number in np.unique(records.instruction):
        now = dict(states[-1])
        step = shuffles.only(instruction=int(number)).records
        for lane, source in zip(step.lane.tolist(), step.source.tolist(), strict=True):
            now[lane] = states[-1][lane] | states[-1].get(source, frozenset())
        states.append(now)
    return states


@style.styled
def draw_reduction(trace: Trace, warp: int = 0, color: str = style.LOGITS) -> Figure:
    """A reduction, drawn from its shuffles: from row to row, who reads from whom.

    trace  of shuffles that belong to one reduction
    """
    states = heard(trace, warp)
    records = trace.only(kind="shuffle", warp=warp).records
    lanes = sorted(states[0])
    largest = max(map(len, states[-1].values()))
    holders = [lane for lane in lanes if len(states[-1][lane]) == largest]
    who = f"lane {holders[0]} holds" if len(holders) == 1 else f"{len(holders)} lanes hold"
    who = "every lane holds" if holders == lanes else who
    title = f"After {len(states) - 1} shuffles {who} the sum of {largest} lanes"
    figure, axes = style.new_figure(title, 0.5 + 0.55 * len(states))
    height = STEP * (len(states) - 1) + 1
    style.bare(axes, len(lanes) + 0.05, height)
    axes.set_aspect("auto")
    for step, number in enumerate(np.unique(records.instruction)):
        here = records[records.instruction == number]
        for lane, source in zip(here.lane.tolist(), here.source.tolist(), strict=True):
            tail = lanes.index(source) + 0.5, STEP * step + 1
            head = lanes.index(lane) + 0.5, STEP * (step + 1)
            axes.add_patch(_arrow(tail, head, style.QUIET))
        for middle in range(len(lanes)):  # each lane keeps what it has
            ends = [STEP * step + 1, STEP * (step + 1)]
            axes.plot([middle + 0.5] * len(ends), ends, color=style.lighter(style.QUIET), zorder=0)
    for step, state in enumerate(states):
        for column, lane in enumerate(lanes):
            shade = style.lighter(
                color, 0.8 * (1 - np.log2(len(state[lane]) + 1) / np.log2(largest + 1))
            )
            style.cell(axes, column, STEP * step, shade, _sum_in_words(state[lane], len(lanes)))
        place = -0.15, STEP * step + 0.5
        name = "lane" if step == 0 else f"shuffle {step}"
        axes.text(*place, name, ha="right", va="center", color=style.QUIET)
    return figure


def _arrow(tail: tuple[float, float], head: tuple[float, float], color: str) -> FancyArrowPatch:
    return FancyArrowPatch(
        tail,
        head,
        arrowstyle="-|>",
        mutation_scale=7,
        color=color,
        linewidth=0.8,
        shrinkA=0,
        shrinkB=0,
    )


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
def draw_banks(traces: Mapping[str, Trace], title: str, color: str = style.K) -> Figure:
    """Shared memory as rows of 32 banks, and the words that one request wants.

    traces  heading -> one warp instruction that touches shared memory; a panel each
    """
    figure, panels = style.new_figure(
        title, 3.6, ncols=len(traces), nrows=2, squeeze=False, height_ratios=(3, 1), sharex=True
    )
    tallest = 0
    for (above, below), (heading, trace) in zip(panels.T, traces.items(), strict=True):
        if trace.num_instructions != 1:
            raise ValueError(f"{heading}: {trace.num_instructions} requests; a bank map shows one")
        wavefronts = shared_traffic(trace).total("wavefronts")
        above.set_title(f"{heading}: {_count(wavefronts, 'wavefront')}", weight="normal")
        _memory(above, trace, color)
        words = np.unique(_words(trace))
        per_bank = np.bincount(words % NUM_BANKS, minlength=NUM_BANKS)
        below.bar(np.arange(NUM_BANKS) + 0.5, per_bank, width=0.8, color=color)
        below.set_xlabel("bank")
        ticks = range(0, NUM_BANKS, NUM_BANKS // 4)
        below.set_xticks([tick + 0.5 for tick in ticks], ticks)
        tallest = max(tallest, int(per_bank.max()))
    for below in panels[1]:
        below.set_ylim(0, tallest * 1.05)
        below.set_yticks([0, tallest])
    panels[0][0].set_ylabel("row of 32 words")
    panels[1][0].set_ylabel("words wanted")
    return figure


def _words(trace: Trace) -> np.ndarray:
    """Every word that the records touch."""
    first = trace.records.address // WORD
    last = (trace.records.address + trace.records.num_bytes - 1) // WORD
    return np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])


def _memory(axes: Axes, trace: Trace, color: str) -> None:
    array = trace.the_array()
    begin = array.address // WORD
    num_words = -(-int(np.prod(array.shape)) * array.dtype.itemsize // WORD)
    wanted = set(_words(trace).tolist())
    for word in range(begin, begin + num_words):
        row, bank = divmod(word, NUM_BANKS)
        face = color if word in wanted else style.EMPTY
        axes.add_patch(Rectangle((bank, row), 0.9, 0.9, facecolor=face))
    axes.set_xlim(0, NUM_BANKS)
    axes.set_ylim((begin + num_words - 1) // NUM_BANKS + 1, begin // NUM_BANKS)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
