"""The model on paper beside two ranks that ran on one machine: the link, attention, whole steps."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.arguments import require
from pa_tutorial.bench.distributed_ranks import BLOCKS, HEADS, ONE, TWO
from pa_tutorial.viz import style
from pa_tutorial.viz.cpu_measured import load

Ratios = dict[str, list[float]]


def results_of(results: dict | None) -> dict:
    """Raises ValueError if the section was not measured."""
    section = (results or load()).get("many_devices", {})
    require("link" in section, "results", "without many_devices", "those of that section")
    return section


def ratios(section: dict, key: str = "ratio") -> Ratios:
    """Measured over predicted, by what was done; `key` may be "from_one" too."""
    found: Ratios = {}
    parts = {"attention": section["attention"], "engine step": section["engine"]["rows"]}
    for part, rows in parts.items():
        for name in (ONE, HEADS, BLOCKS, TWO):
            values = [
                row["ways"][name][key]
                for row in rows
                if name in row["ways"] and key in row["ways"][name]
            ]
            if values:
                found[f"{part}, {name}"] = values
    return found


def link_ratios(section: dict) -> list[float]:
    return [row["ratio"] for row in section["link"]["rows"]]


def span(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def draw_link(axes: Axes, section: dict) -> None:
    """Milliseconds of an all-reduce by its bytes."""
    rows = section["link"]["rows"]
    sizes = [row["bytes"] for row in rows]
    axes.plot(sizes, [row["predicted_ms"] for row in rows], "--", color=style.QUIET)
    axes.plot(sizes, [row["median_ms"] for row in rows], "o", ms=4.5, color=style.INK)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.set_ylim(0.5 * min(row["median_ms"] for row in rows), None)
    ticks = {16: "16", 2**10: "1 Ki", 2**16: "64 Ki", 2**20: "1 Mi", 2**26: "64 Mi"}
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    axes.set_xlabel("bytes of an all-reduce, two ranks")
    axes.set_ylabel("ms")
    for height, marker, color, words in (
        (0.92, "o", style.INK, "measured"),
        (0.82, "--", style.QUIET, "latency + bytes / bandwidth"),
    ):
        x = [0.04] if marker == "o" else [0.01, 0.07]
        axes.plot(x, [height] * len(x), marker, ms=4.5, color=color, transform=axes.transAxes)
        axes.text(0.1, height, words, va="center", color=color, transform=axes.transAxes)


def draw_ratios(axes: Axes, section: dict) -> None:
    """A row for each thing that was done; a mark for each size."""
    measured, from_one = ratios(section), ratios(section, "from_one")
    for y, (name, values) in enumerate(measured.items()):
        axes.plot(values, [y - 0.12] * len(values), "o", ms=4.5, color=style.INK)
        scaled = from_one.get(name, [])
        axes.plot(scaled, [y + 0.18] * len(scaled), "s", ms=4.5, color=style.QUIET,
                  markerfacecolor="none")  # fmt: skip
    axes.set_yticks(range(len(measured)), list(measured))
    axes.set_ylim(len(measured) - 0.5, -0.5)
    axes.axvline(1, color=style.INK, linewidth=1)
    axes.set_xscale("log")
    everything = [v for values in (*measured.values(), *from_one.values()) for v in values]
    low, high = 0.9 * min(1.0, *everything), 1.2 * max(*everything, 2.0)
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= t <= high]
    axes.set_xlim(low, high)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("measured / predicted\n(open: predicted from one rank's time)")


@style.styled
def draw_ranks(results: dict | None = None) -> Figure:
    """All-reduces by size; and measured over predicted time, of one rank and of two."""
    section = results_of(results)
    by_name, from_one = ratios(section), ratios(section, "from_one")
    one = [v for name, values in by_name.items() if name.endswith(ONE) for v in values]
    two = [v for name, values in by_name.items() if not name.endswith(ONE) for v in values]
    scaled = [v for values in from_one.values() for v in values]
    figure, axes = style.new_figure(
        f"All-reduces took {span(link_ratios(section))} times the predicted time, steps on one "
        f"rank {span(one)} times,\non two ranks {span(two)} times: {span(scaled)} times "
        "what the time of one rank lets expect",
        3.2,
        ncols=2,
    )
    draw_link(axes[0], section)
    draw_ratios(axes[1], section)
    return figure
