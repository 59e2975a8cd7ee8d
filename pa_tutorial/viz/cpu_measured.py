"""Plots of decode steps on the CPU, from the committed results of `make bench` in benchmarks/."""

import json
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.arguments import require
from pa_tutorial.viz import style
from pa_tutorial.viz.measured import RESULTS

Row = dict  # of results["decode"]["rows"]: a shape, and the time of everything that ran on it

# name of a line -> how the names begin of which it shows the fastest
BEST_OF = {"gather": ("gather_",), "contiguous": ("sdpa", "matmul")}
# name in the results -> label, colour, marker
LINES = {
    "reading": ("reading K and V once", style.QUIET, ""),
    "cpu": ("the kernel", style.INK, "o"),
    "contiguous": ("best on contiguous K, V", style.QUIET, "s"),
    "gather": ("best gather + attention", style.QUIET, "^"),
    "paged_online": ("paged_online in torch", style.QUIET, "v"),
}


def load() -> dict:
    """The committed results."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


# What the results say ---------------------------------------------------------------------------


def times_ms(row: Row) -> dict[str, float]:
    """Median time of everything on this shape; also of the fastest of BEST_OF, and "reading", its
    K and V once at the read bandwidth."""
    medians = {name: time["median_ms"] for name, time in row["times"].items()}
    times = medians | {"reading": row["kv_bytes"] / (1e6 * row["read_gb_per_s"])}
    for line, starts in BEST_OF.items():
        alike = [time for name, time in medians.items() if name.startswith(starts)]
        if alike:
            times[line] = min(alike)
    return times


def gb_per_s(row: Row) -> dict[str, float]:
    """Bytes of K and V over the time, for everything on this shape."""
    return {name: row["kv_bytes"] / (1e6 * time) for name, time in times_ms(row).items()}


def group_of(row: Row) -> int:
    """Query heads that share a KV head."""
    return row["shape"]["num_heads"] // row["shape"]["num_kv_heads"]


def kind_of(row: Row) -> tuple[bool, int, str]:
    """What the rows of a sweep have in common beside their name and their heads."""
    shape = row["shape"]
    return shape["dtype"] == "float32", shape["head_size"], shape["dtype"]


def sweep(rows: Sequence[Row], name: str, over: str, group: int) -> list[Row]:
    """The rows of one sweep, by the size that differs.

    name   of their shapes: "context" or "batch"
    over   what differs: "seq_len" or "num_seqs"
    group  query heads that share a KV head
    Of several such sweeps the one with the most rows, then float32, then the larger head size.
    """
    kinds: dict[tuple, dict[int, Row]] = {}
    for row in rows:
        if row["shape"]["name"] == name and group_of(row) == group and "cpu" in row["times"]:
            kinds.setdefault(kind_of(row), {})[row["shape"][over]] = row
    require(kinds, "rows", "none", f"a sweep {name!r} with {group} query heads a KV head")
    best = max(kinds, key=lambda kind: (len(kinds[kind]), kind))
    return [row for _, row in sorted(kinds[best].items())]


def heads(row: Row) -> str:
    shape = row["shape"]
    return f"{shape['num_heads']} query, {shape['num_kv_heads']} KV heads of {shape['head_size']}"


# Lines ------------------------------------------------------------------------------------------


def draw_lines(
    axes: Axes, rows: Sequence[Row], over: str, values: Callable[[Row], dict[str, float]]
) -> dict[str, float]:
    """A line for each of LINES that was measured; returns where each ends."""
    ends = {}
    for name, (_, color, marker) in LINES.items():
        points = [(row["shape"][over], values(row)[name]) for row in rows if name in values(row)]
        if points:
            dashes = "--" if name == "reading" else "-"
            axes.plot(*zip(*points, strict=True), dashes, marker=marker, ms=4, color=color)
            ends[name] = points[-1][1]
    return ends


def heights(
    axes: Axes, values: dict[str, float], gap: float, highest: float = 1
) -> dict[str, float]:
    """Where the names of values stand, as parts of the height of the axes: beside them, but at
    least `gap` apart, and not above `highest`."""
    x, _ = axes.get_xlim()
    axes.get_ylim()  # settles the limits
    to_height = axes.transData + axes.transAxes.inverted()
    found, previous = {}, highest + gap
    for name in sorted(values, key=values.__getitem__, reverse=True):
        previous = min(to_height.transform((x, values[name]))[1], previous - gap)
        found[name] = previous
    return found


def label_ends(axes: Axes, ends: dict[str, float]) -> None:
    """The names of lines, right of the axes."""
    for name, height in heights(axes, ends, 0.08).items():
        label, color, _ = LINES[name]
        axes.text(1.03, height, label, transform=axes.transAxes, va="center", color=color)


def count_ticks(axes: Axes, numbers: Sequence[int]) -> None:
    """A logarithmic axis of counts, with at most six of them named."""
    axes.set_xscale("log", base=2)
    chosen = numbers[:: -(-len(numbers) // 6)]
    axes.set_xticks(chosen, [f"{number:,}" for number in chosen])
    axes.minorticks_off()


@style.styled
def draw_bandwidth(results: dict | None = None) -> Figure:
    """GB/s of K and V by context, with one query head a KV head and with four."""
    rows = (results or load())["decode"]["rows"]
    sweeps = [sweep(rows, "context", "seq_len", group) for group in (1, 4)]
    longest = sweeps[0][-1]
    speeds = gb_per_s(longest)
    figure, axes = style.new_figure(
        f"At {longest['shape']['seq_len']:,} tokens the kernel goes through K and V at "
        f"{speeds['cpu'] / speeds['reading']:.0%} of the speed of reading,\n"
        f"and the best gather + attention at {speeds['gather'] / speeds['reading']:.0%} (left)",
        3.2,
        ncols=2,
        sharey=True,
    )
    for panel, of_panel in zip(axes, sweeps, strict=True):
        panel.set_title(heads(of_panel[0]), weight="normal")
        count_ticks(panel, [row["shape"]["seq_len"] for row in of_panel])
        panel.tick_params(axis="x", rotation=30)
        ends = draw_lines(panel, of_panel, "seq_len", gb_per_s)
        panel.set_xlabel(f"tokens in the cache ({of_panel[0]['shape']['dtype']})")
    axes[0].set_ylim(0, None)
    label_ends(axes[-1], ends)
    axes[0].set_ylabel("GB/s of K and V")
    return figure


@style.styled
def draw_time_by_batch(results: dict | None = None) -> Figure:
    """Milliseconds of a decode step by sequences in the batch."""
    rows = sweep((results or load())["decode"]["rows"], "batch", "num_seqs", 1)
    first, last = rows[0], rows[-1]
    work = last["shape"]["num_seqs"] // first["shape"]["num_seqs"]
    longer = times_ms(last)["cpu"] / times_ms(first)["cpu"]
    slower = [times_ms(row)["gather"] / times_ms(row)["cpu"] for row in rows]
    figure, axes = style.new_figure(
        f"{work} times the sequences take the kernel {longer:.0f} times as long;\n"
        f"the best gather + attention takes {min(slower):.1f} to {max(slower):.1f} times its time",
        3.1,
    )
    count_ticks(axes, [row["shape"]["num_seqs"] for row in rows])
    axes.set_yscale("log")
    label_ends(axes, draw_lines(axes, rows, "num_seqs", times_ms))
    shape = first["shape"]
    axes.set_xlabel(f"sequences of {shape['seq_len']:,} tokens ({heads(first)}, {shape['dtype']})")
    axes.set_ylabel("ms for a decode step")
    return figure
