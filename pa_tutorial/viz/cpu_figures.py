"""Notebook 23: the order in which memory is read."""

from collections.abc import Sequence
from itertools import product

from matplotlib.figure import Figure

from pa_tutorial.paging.layouts import PlainLayout
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import box


def reading_order(
    table: Sequence[int], layout: PlainLayout, block_major: bool
) -> list[tuple[int, int]]:
    """(physical block, piece of it) in the order in which the loops reach the heads of K.

    A piece is one head's part of one block; the layout says where it is stored.
    """
    heads, size = range(layout.num_kv_heads), layout.block_size * layout.head_size
    head_major = [(block, head) for head, block in product(heads, table)]
    order = product(table, heads) if block_major else head_major
    pieces = [layout.k_element(block, head, 0, 0) // size for block, head in order]
    return [divmod(piece, layout.num_kv_heads) for piece in pieces]


@style.styled
def draw_order_of_reference() -> Figure:
    """K in memory order, one line per block; the number says when a piece is read.

    16 heads of 128 elements in float32, blocks of 16 tokens.
    """
    table, layout = [4, 1, 5, 2], PlainLayout(6, 16, 128, 16)
    size = layout.block_size * layout.head_size * layout.dtype.itemsize
    row = size * layout.num_kv_heads
    title = (
        f"With the outer loop over blocks, memory is read in runs of {row // 1024} KiB, "
        f"instead of {size // 1024} KiB"
    )
    figure, panels = style.new_figure(title, 3.9, nrows=2)
    names = "outer loop over heads, inner over blocks", "outer loop over blocks, inner over heads"
    for axes, name, block_major in zip(panels, names, (False, True), strict=True):
        axes.set_title(f"{name}: K of a sequence with block table {table}", weight="normal")
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
