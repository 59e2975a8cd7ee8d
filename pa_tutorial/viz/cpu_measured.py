"""Notebook 25: one call timed again and again, and decode steps on the CPU beside their limit."""

import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.arguments import require
from pa_tutorial.viz import style

# What `make bench` wrote
RESULTS = Path(__file__).parents[2] / "benchmarks" / "amd-epyc-2-cores.json"

Row = dict  # an entry of results["decode"]["rows"]: a shape, and the times of all that ran on it
Series = Sequence[float]

# name of a line -> label, colour, marker, and prefixes of names, of which it shows the fastest
LINES = {
    "reading": ("reading K and V once", style.QUIET, "", ("read",)),
    "cpu": ("the kernel", style.INK, "o", ("cpu",)),
    "contiguous": ("best on contiguous K, V", style.QUIET, "s", ("sdpa", "matmul")),
    "gather": ("best gather + attention", style.QUIET, "^", ("gather_",)),
}


@style.styled
def draw_noise(seconds: Series, times: Series, apart: Series, together: Series) -> Figure:
    """times: milliseconds of the same call; apart, together: ratios of the call to itself."""
    title = (
        f"One call timed against itself, one after another: {min(apart):.2f} to {max(apart):.2f} "
        f"times as long.\nInterleaved, one ratio per round: {min(together):.2f} to "
        f"{max(together):.2f}"
    )
    figure, (series, compared) = style.new_figure(title, 2.6, ncols=2, width_ratios=(2, 1))
    series.plot(seconds, times, "o", ms=2.5, color=style.INK)
    series.set_xlabel("seconds since the first call")
    series.set_ylabel("ms for the same call")
    series.set_ylim(0, None)
    for place, found in enumerate((apart, together)):
        xs = [place + 0.5 * (i / len(found) - 0.5) for i in range(len(found))]
        compared.plot(xs, found, "o", ms=3, color=style.INK)
    compared.axhline(1, color=style.QUIET, linewidth=1)
    compared.set_xticks((0, 1), ("one after\nanother", "interleaved"))
    compared.set_xlim(-0.6, 1.6)
    compared.set_ylabel("B over A")
    return figure


def gb_per_s(row: Row) -> dict[str, float]:
    """Bytes of K and V divided by the time, for each of LINES that was measured."""
    medians = {name: time["median_ms"] for name, time in row["times"].items()}
    times = {
        line: min((ms for name, ms in medians.items() if name.startswith(starts)), default=None)
        for line, (*_, starts) in LINES.items()
    }
    return {line: row["kv_bytes"] / (1e6 * ms) for line, ms in times.items() if ms}


def contexts(rows: Sequence[Row], num_heads: int, num_kv_heads: int) -> list[Row]:
    """One sequence of every length, the shortest first: float32, heads of 64."""
    wanted = {"name": "context", "num_heads": num_heads, "num_kv_heads": num_kv_heads}
    wanted |= {"head_size": 64, "dtype": "float32"}
    found = [row for row in rows if wanted.items() <= row["shape"].items()]
    require(found, "rows", "none", f"some with {num_heads} query and {num_kv_heads} KV heads")
    return sorted(found, key=lambda row: row["shape"]["seq_len"])


def label_ends(axes: Axes, ends: dict[str, float]) -> None:
    """Name the lines right of the axes, at their ends but at least 8 % of the height apart."""
    _, top = axes.get_ylim()
    gap, height = 0.08, 1.08
    for name in sorted(ends, key=ends.__getitem__, reverse=True):
        height = min(ends[name] / top, height - gap)
        label, color, *_ = LINES[name]
        axes.text(1.03, height, label, transform=axes.transAxes, va="center", color=color)


@style.styled
def draw_bandwidth() -> Figure:
    """GB/s of K and V by context length, with one query head per KV head and with four."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["decode"]["rows"]
    sweeps = [contexts(rows, *heads) for heads in ((16, 16), (32, 8))]
    kernel, gather, shared = (
        gb_per_s(sweep[-1])[name] / gb_per_s(sweep[-1])["reading"]
        for sweep, name in ((sweeps[0], "cpu"), (sweeps[0], "gather"), (sweeps[1], "cpu"))
    )
    title = (
        f"Long contexts: the kernel reaches {kernel:.0%} of the speed of reading, the best gather "
        f"{gather:.0%};\nwith four query heads per KV head the kernel reaches {shared:.0%}"
    )
    figure, axes = style.new_figure(title, 3.2, ncols=2, sharey=True)
    groups = "one query head", "four query heads"
    for panel, sweep, group in zip(axes, sweeps, groups, strict=True):
        panel.set_title(f"{group} per KV head", weight="normal")
        lens = [row["shape"]["seq_len"] for row in sweep]
        speeds = [gb_per_s(row) for row in sweep]
        for name, (_, color, marker, _) in LINES.items():
            points = [(n, s[name]) for n, s in zip(lens, speeds, strict=True) if name in s]
            line = "--" if name == "reading" else "-"
            panel.plot(*zip(*points, strict=True), line, marker=marker, ms=4, color=color)
        panel.set_xscale("log", base=2)
        panel.set_xticks(lens, [f"{n:,}" for n in lens], rotation=30)
        panel.minorticks_off()
        panel.set_xlabel("tokens in the cache (float32)")
    axes[0].set_ylim(0, None)
    axes[0].set_ylabel("GB/s of K and V")
    label_ends(axes[-1], gb_per_s(sweeps[-1][-1]))
    return figure
