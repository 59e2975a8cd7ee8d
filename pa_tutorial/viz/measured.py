"""Plots of what `make bench` measured, from the committed results in benchmarks/."""

import json
from pathlib import Path

from matplotlib.figure import Figure

from pa_tutorial.viz import style

RESULTS = Path(__file__).parents[2] / "benchmarks" / "amd-epyc-2-cores.json"

LABELS = {
    "append_token": "append a token",
    "allocate_and_free": "take and give back",
    "look_up_prompt": "find in the cache",
}


@style.styled
def draw_manager_cost() -> Figure:
    """Microseconds per operation of the memory manager, by blocks in the pool."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = results["block_manager"]["time"]
    largest = max(abs(row["ratio"] - 1) for row in rows)
    sizes = [row["num_blocks"] for row in rows if row["operation"] == rows[0]["operation"]]
    figure, axes = style.new_figure(
        f"From {sizes[0]:,} to {sizes[-1]:,} blocks, no operation of the block manager changes "
        f"by more than {largest:.0%}",
        2.4,
    )
    for name, label in LABELS.items():
        times = [row["us"] for row in rows if row["operation"] == name]
        style.label_line(axes, sizes, times, label, style.INK)
        axes.plot(sizes, times, "o", color=style.INK, markersize=4)
    axes.set_xscale("log")
    axes.set_xlim(sizes[0] * 0.8, sizes[-1] * 6)
    axes.set_ylim(0, None)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel(f"blocks in the pool ({results['machine']['cpu']}, Python)")
    axes.set_ylabel("µs per operation")
    return figure
