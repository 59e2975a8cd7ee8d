"""The roofline of the stages: operations a second against operations per byte, as measured."""

from collections.abc import Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.viz import style
from pa_tutorial.viz.cpu_measured import Row, heights, load, times_ms
from pa_tutorial.walk.ladder import STAGES

BITS = {"float32": 32, "float16": 16, "bfloat16": 16}
LEFT, RIGHT = 0.1, 1000  # operations per byte
LARGE = 2**26  # bytes of K and V: smaller ones are in part still in the caches


def flops(row: Row) -> int:
    """Operations of q . k and of weight * v; a multiply and an add for each element."""
    shape = row["shape"]
    return 4 * shape["num_seqs"] * shape["seq_len"] * shape["num_heads"] * shape["head_size"]


def flops_per_byte(row: Row) -> float:
    return flops(row) / row["kv_bytes"]


def gflop_per_s(row: Row, name: str) -> float:
    """Of the operations that a step needs; a stage that does more gets nothing for it."""
    return flops(row) / (1e6 * times_ms(row)[name])


def best_of_stages(rows: Sequence[Row]) -> dict[str, Row]:
    """Stage -> the shape on which it is fastest, of those with the fewest operations per byte."""
    best: dict[str, Row] = {}
    for name in STAGES:
        measured = [row for row in rows if name in row["times"]]
        least = min(map(flops_per_byte, measured), default=0)
        alike = [row for row in measured if flops_per_byte(row) == least]
        if alike:
            best[name] = max(alike, key=lambda row: gflop_per_s(row, name))
    return best


def best_of_kernel(rows: Sequence[Row]) -> dict[str, Row]:
    """Heads and bits, in words -> the shape on which the kernel is fastest."""
    best: dict[str, Row] = {}
    for row in rows:
        shape = row["shape"]
        name = f"{shape['num_heads']}/{shape['num_kv_heads']}, {BITS[shape['dtype']]} bits"
        if "cpu" not in row["times"] or shape["name"] == "tiny":
            continue  # the tiny one is for the simulator: starting the threads takes longer
        if name not in best or gflop_per_s(row, "cpu") > gflop_per_s(best[name], "cpu"):
            best[name] = row
    return best


def draw_roofs(axes: Axes, read: float, peak: float) -> None:
    """What memory allows, rising with the operations per byte, up to what the cores can do."""
    ridge = peak / read
    axes.plot([LEFT, ridge, RIGHT], [LEFT * read, peak, peak], color=style.INK, linewidth=1.2)
    axes.plot([ridge, ridge], [axes.get_ylim()[0], peak], ":", color=style.QUIET, linewidth=1)
    axes.text(RIGHT, 1.3 * peak, f"matrices: {peak:.0f} · 10⁹/s", ha="right", va="bottom")
    axes.text(1.1 * LEFT, 4.5 * LEFT * read, f"reading:\n{read:.0f} GB/s", va="bottom")


def name_stages(axes: Axes, points: dict[str, tuple[float, float]], below: float) -> None:
    """A dot for each stage, and its name right of it, below the dots of the kernel."""
    found = heights(axes, {"": below}, 0)
    places = heights(axes, {name: y for name, (_, y) in points.items()}, 0.055, found[""])
    line = {"arrowstyle": "-", "color": style.QUIET, "linewidth": 0.5}
    for name, (x, y) in points.items():
        axes.plot(x, y, "o", ms=5, color=style.INK)
        axes.annotate(name, (x, y), xytext=(0.38, places[name]), textcoords=axes.transAxes,
                      va="center", arrowprops=line)  # fmt: skip


def name_kernel(axes: Axes, kernel: dict[str, Row], above: float) -> None:
    """A dot for each kind of heads, and what they are above the roofs."""
    names: dict[float, list[str]] = {}
    for name, row in kernel.items():
        x = flops_per_byte(row)
        axes.plot(x, gflop_per_s(row, "cpu"), "o", ms=5, color=style.INK)
        names.setdefault(x, []).append(name)
    for x, at_x in names.items():
        axes.text(x, above, "\n".join(at_x), rotation=60, ha="left", va="bottom",
                  rotation_mode="anchor", size=8, linespacing=1.5)  # fmt: skip
    axes.text(1, 1, "cpu, by query/KV heads\nand bits of a number", ha="right",
              va="top", color=style.QUIET, transform=axes.transAxes)  # fmt: skip


def large(rows: Sequence[Row]) -> list[Row]:
    """The rows that say something about memory; all of them if no row is large."""
    return [row for row in rows if row["kv_bytes"] >= LARGE] or list(rows)


def reached_of_reading(rows: Sequence[Row]) -> float:
    """What part of the speed of reading the kernel reaches, each in its own row: the median."""
    return median(
        row["kv_bytes"] / times_ms(row)["cpu"] / 1e6 / row["read_gb_per_s"] for row in large(rows)
    )


@style.styled
def draw_roofline(results: dict | None = None) -> Figure:
    """Every stage that was measured, the simulated ones too, below two roofs."""
    decode = (results or load())["decode"]
    rows, peak = decode["rows"], decode["peak_gflop_per_s"]
    read = median(row["read_gb_per_s"] for row in large(rows))
    stages = best_of_stages(rows)
    least = flops_per_byte(stages["cpu"])
    reached = reached_of_reading([row for row in rows if flops_per_byte(row) == least])
    figure, axes = style.new_figure(
        f"With {least:g} operations per byte memory is the roof, and the kernel reaches "
        f"{reached:.0%} of it\n(median of large steps); from {peak / read:.1f} on, the cores are "
        "the roof",
        4.4,
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(LEFT, RIGHT)
    points = {name: (flops_per_byte(row), gflop_per_s(row, name)) for name, row in stages.items()}
    bottom = min(y for _, y in points.values()) / 200
    axes.set_ylim(bottom, peak * (peak / bottom) ** 0.3)  # above the roofs there is text
    draw_roofs(axes, read, peak)
    kernel = best_of_kernel(rows)
    name_stages(axes, points, min(gflop_per_s(row, "cpu") for row in kernel.values()) / 2)
    name_kernel(axes, kernel, 1.4 * peak)
    axes.set_xlabel("operations per byte of K and V")
    axes.set_ylabel("10⁹ operations per second")
    return figure
