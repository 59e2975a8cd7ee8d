"""The figures of notebook 14: what each step brought, and in which order memory is read."""

import json
from collections.abc import Sequence
from itertools import product

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.paging.layouts import PlainLayout
from pa_tutorial.viz import style
from pa_tutorial.viz.cpu_measured import BENCHMARKS
from pa_tutorial.viz.drawing import box

# Of the CPU kernel, measured since it was rewritten.
STEPS = BENCHMARKS / "intel-r-xeon-r-processor-2-cores.json"
SHAPES = {
    "S1": "S1: 8 × 2,048 tokens",
    "GQA": "GQA 32/8: 8 × 2,048 tokens",
    "B1": "B1: one sequence of 8,192",
    "MIXED": "16 sequences, 64 to 4,096",
}
COLORS = {"float32": style.INK, "bfloat16": style.Q}


@style.styled
def draw_steps() -> Figure:
    """Milliseconds of each step in the committed results, and of reading the same bytes."""
    results = json.loads(STEPS.read_text(encoding="utf-8"))
    rows = {(row["shape"]["name"], row["shape"]["dtype"]): row for row in results["steps"]}
    names = list(rows["S1", "float32"]["times"])
    gains = [
        row["times"][names[0]]["median_ms"] / row["times"][names[-1]]["median_ms"]
        for row in rows.values()
    ]
    title = f"The last step is {min(gains):.1f} to {max(gains):.1f} times as fast as the first"
    figure, panels = style.new_figure(title, 4.6, ncols=2, nrows=2, sharey=True)
    for axes, (shape, words) in zip(panels.flat, SHAPES.items(), strict=True):
        axes.set_title(words, weight="normal")
        for dtype, color in COLORS.items():
            row, shift = rows[shape, dtype], 0.14 if dtype == "float32" else -0.14
            _draw_times(axes, row, names, shift, color)
        axes.set_xlim(0, None)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_yticks(range(len(names)), list(reversed(names)))
    for axes in panels[-1]:
        axes.set_xlabel(f"ms ({results['machine']['cpu']}, {results['machine']['cores']} cores)")
    words = "dotted: reading\nthe same bytes"
    panels[0, 1].text(0.97, 0.05, words, transform=panels[0, 1].transAxes, ha="right", va="bottom")
    for place, (dtype, color) in zip((0.75, 1.0), COLORS.items(), strict=True):
        where = panels[0, 0].transAxes  # beside the title, where no time is
        panels[0, 0].text(place, 1.03, dtype, transform=where, ha="right", color=color)
    return figure


def _draw_times(
    axes: Axes, row: dict[str, object], names: Sequence[str], shift: float, color: str
) -> None:
    """A dot for the median and a line from the lowest to the highest time."""
    for place, name in enumerate(reversed(names)):
        time = row["times"][name]
        axes.plot(time["median_ms"], place + shift, "o", color=color, markersize=4)
        ends = time["lowest_ms"], time["highest_ms"]
        axes.plot(ends, [place + shift] * 2, color=color, linewidth=1)
    axes.axvline(row["read_ms"], color=color, linewidth=1, linestyle=":")


def reading_order(
    table: Sequence[int], layout: PlainLayout, block_major: bool
) -> list[tuple[int, int]]:
    """(physical block, piece of it) in the order in which the loops come to the heads of K.

    A piece is what one head has in one block; where it lies is asked of the layout.
    """
    heads, size = range(layout.num_kv_heads), layout.block_size * layout.head_size
    head_major = [(block, head) for head, block in product(heads, table)]
    order = product(table, heads) if block_major else head_major
    pieces = [layout.k_element(block, head, 0, 0) // size for block, head in order]
    return [divmod(piece, layout.num_kv_heads) for piece in pieces]


@style.styled
def draw_order(table: Sequence[int], layout: PlainLayout) -> Figure:
    """K as it lies in memory, a row for each block; the number says when a piece is read."""
    size = layout.block_size * layout.head_size * layout.dtype.itemsize
    row = size * layout.num_kv_heads
    title = (
        f"With the blocks outside, memory is read in pieces of {row // 1024} KiB, "
        f"not of {size // 1024} KiB"
    )
    figure, panels = style.new_figure(title, 3.9, nrows=2)
    names = "heads outside, blocks inside", "blocks outside, heads inside"
    for axes, name, block_major in zip(panels, names, (False, True), strict=True):
        axes.set_title(f"{name}: K of a sequence with block table {list(table)}", weight="normal")
        for block, piece in product(range(layout.num_blocks), range(layout.num_kv_heads)):
            look = {"hatch": style.UNUSED_HATCH, "linewidth": 0.5}
            box(axes, piece, block, 1, 1, style.EMPTY, **look)
        order = reading_order(table, layout, block_major)
        for when, (block, piece) in enumerate(order):
            color = style.lighter(style.K, 0.8 * when / len(order))
            box(axes, piece, block, 1, 1, color, when, linewidth=0.5)
        axes.set_xlim(0, layout.num_kv_heads)
        axes.set_ylim(layout.num_blocks, 0)
        rows = range(layout.num_blocks)
        axes.set_yticks([r + 0.5 for r in rows], [f"block {r}" for r in rows])
        axes.set_xticks([])
        axes.tick_params(left=False)
        axes.spines[:].set_visible(False)
    panels[1].set_xlabel(f"one row is {row // 1024} KiB of memory, one cell {size // 1024} KiB")
    return figure


def draw_order_of_reference() -> Figure:
    """16 heads of 128 elements in float32, blocks of 16 tokens."""
    return draw_order([4, 1, 5, 2], PlainLayout(6, 16, 128, 16))
