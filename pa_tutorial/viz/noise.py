"""The figure on noise: one call, timed again and again, from the committed results."""

import random
from collections.abc import Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.arguments import require
from pa_tutorial.viz import style
from pa_tutorial.viz.cpu_measured import load

GROUP = 10  # times of which a median is taken
COLORS = {"A": style.INK, "B": style.QUIET}
TICKS = [digit * 10**power for power in range(-3, 4) for digit in (1, 2, 5)]  # milliseconds
MARKERS = {"A": "o", "B": "s"}


def one_after_another(num_times: int) -> str:
    """Who is timed when: A GROUP times, then B as often, then A again, …"""
    return "".join("AB"[i // GROUP % 2] for i in range(num_times))


def interleaved(num_times: int, seed: int = 0) -> str:
    """Who is timed when: both once in each round, in random order."""
    rng = random.Random(seed)
    rounds = (rng.sample("AB", 2) for _ in range(-(-num_times // 2)))
    return "".join(name for both in rounds for name in both)[:num_times]


def ratios(times: Sequence[float], order: str) -> list[float]:
    """Of each comparison, 2 * GROUP times one behind the other: median of B over that of A."""
    require(len(times) >= 2 * GROUP, "times", len(times), f"at least {2 * GROUP} of them")
    found = []
    for first in range(0, len(times) - 2 * GROUP + 1, 2 * GROUP):
        piece = range(first, first + 2 * GROUP)
        a, b = (median(times[i] for i in piece if order[i] == name) for name in "AB")
        found.append(b / a)
    return found


def worst(found: Sequence[float]) -> float:
    """How far a ratio is from 1, at most: 1.2 and 1 / 1.2 are both 0.2 away."""
    return max(max(ratio, 1 / ratio) for ratio in found) - 1


def draw_series(axes: Axes, seconds: Sequence[float], times: Sequence[float], order: str) -> None:
    for name in "AB":
        at = [i for i in range(len(times)) if order[i] == name]
        style_of = {"color": COLORS[name], "marker": MARKERS[name], "linestyle": "", "ms": 3}
        axes.plot([seconds[i] for i in at], [times[i] for i in at], **style_of)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_yticks([x for x in TICKS if low <= x <= high])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel("seconds since the first call")
    axes.set_ylabel("ms for the same call")
    axes.set_title("caches cold; ● A and ■ B, one after another", weight="normal")


def draw_ratios(axes: Axes, both: dict[str, list[float]]) -> None:
    for place, found in enumerate(both.values()):
        xs = [place + 0.5 * (i / len(found) - 0.5) for i in range(len(found))]
        axes.plot(xs, found, "o", ms=3, color=style.INK)
    axes.axhline(1, color=style.QUIET, linewidth=1)
    axes.set_xticks(range(len(both)), list(both))
    axes.set_xlim(-0.6, len(both) - 0.4)
    axes.set_title(f"B over A, medians of {GROUP}", weight="normal")


def draw_boxes(axes: Axes, series: dict[str, Sequence[float]]) -> None:
    lines = {"color": style.INK}
    axes.boxplot(
        list(series.values()), whis=(5, 95), showfliers=False, widths=0.5,
        medianprops=lines | {"linewidth": 2}, boxprops=lines, whiskerprops=lines, capprops=lines,
    )  # fmt: skip
    for place, times in enumerate(series.values(), start=1):
        axes.text(place + 0.3, median(times), f"{median(times):.2g}", va="center")
    axes.set_xticks(range(1, len(series) + 1), list(series))
    axes.set_xlim(0.5, len(series) + 0.8)
    axes.set_ylim(0, None)
    axes.set_title("ms, by caches", weight="normal")


@style.styled
def draw_noise(results: dict | None = None) -> Figure:
    """One call under two names: its times, comparisons made of them in two ways, and what the
    caches do."""
    noise = (results or load())["noise"]
    cold, warm = noise["cold_ms"], noise["warm_ms"]
    orders = {"one after\nanother": one_after_another, "interleaved": interleaved}
    both = {name: ratios(cold, order(len(cold))) for name, order in orders.items()}
    apart, together = map(worst, both.values())
    figure, (series, compared, caches) = style.new_figure(
        f"A call compared with itself: up to {apart:.0%} off one after another, {together:.0%} "
        f"interleaved;\nwith K and V still in the caches it takes {median(warm) / median(cold):.0%}"
        " of the time",
        3,
        ncols=3,
        width_ratios=(2.2, 1.3, 1),
    )
    draw_series(series, noise["seconds"], cold, one_after_another(len(cold)))
    draw_ratios(compared, both)
    draw_boxes(caches, {"cold": cold, "warm": warm})
    return figure
