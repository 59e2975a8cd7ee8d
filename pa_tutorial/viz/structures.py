"""What the block manager writes down: block table, reference counts and free list, one picture."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.paging.allocator import NULL_BLOCK
from pa_tutorial.viz import style
from pa_tutorial.viz.blocks import BlockState, Frame, hue

# In the units of the drawing; a row of boxes is 1 high.
LABELS = 8.0  # room for the words at the left
BLOCK = 6.0
GAP = 0.8
TOKEN = 1.5  # width of a token in a logical block
TABLE, POOL = 6.0, 5.6  # height of a block table with its arrows; of a pool with its lists


@style.styled
def draw_structures(frames: Sequence[Frame], name: str) -> Figure:
    """One part a frame: the block table of one sequence, above the pool and its two lists.

    name  the sequence whose block table is drawn out; of the others the pool tells the owner
    """
    heights = [POOL + (TABLE if name in frame.tables else 0) for frame in frames]
    taken = " and ".join(str(number) for number in frames[-1].tables[name])
    figure, axes = style.new_figure(
        f"Blocks {taken} leave the free list, and the block table of {name} names them",
        0.4 + 0.2 * sum(heights),
    )
    num_blocks = len(frames[0].blocks)
    axes.set_xlim(0, LABELS + num_blocks * (BLOCK + GAP))
    axes.set_ylim(sum(heights), 0)
    axes.axis("off")
    y = 0.0
    for frame, height in zip(frames, heights, strict=True):
        axes.text(0, y + 0.5, frame.caption, va="center", weight="bold", fontsize=8)
        if name in frame.tables:
            _draw_block_table(axes, y + 1.4, frame, name)
        _draw_pool(axes, y + height - POOL + 1.2, frame)
        y += height
    return figure


def _x_of_block(number: int) -> float:
    return LABELS + number * (BLOCK + GAP)


def _label(axes: Axes, y: float, text: str) -> None:
    axes.text(LABELS - 0.6, y + 0.5, text, ha="right", va="center", color=style.QUIET)


def _box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    text: str,
    color: str = style.PAPER,
    hatch: str = "",
) -> None:
    """A field of a list."""
    edge = {"edgecolor": style.QUIET, "linewidth": 0.7, "hatch": hatch}
    style.add(axes, Rectangle((x, y), width, 1, facecolor=color, **edge))
    ink = style.ink_on(color)
    axes.text(x + width / 2, y + 0.5, text, ha="center", va="center", color=ink, fontsize=8)


def _draw_block_table(axes: Axes, y: float, frame: Frame, name: str) -> None:
    """The logical blocks side by side: their tokens, and below the physical block number."""
    size, color = frame.block_size, hue(name)
    _label(axes, y + 1, f"tokens of {name}")
    _label(axes, y + 2, "block table")
    for index, number in enumerate(frame.tables[name]):
        x = LABELS + index * (size * TOKEN + 4)
        middle = x + size * TOKEN / 2
        words = f"logical block {index}"
        axes.text(middle, y + 0.4, words, ha="center", va="center", color=style.QUIET)
        tokens = frame.blocks[number].tokens
        for offset in range(size):
            left = x + offset * TOKEN
            if offset < len(tokens):
                _box(axes, left, y + 1, TOKEN, str(tokens[offset]), style.lighter(color))
            else:
                _box(axes, left, y + 1, TOKEN, "", hatch=style.UNUSED_HATCH)
        _box(axes, x, y + 2, size * TOKEN, f"block {number}", color)
        head = (_x_of_block(number) + BLOCK / 2, y + TABLE - 0.35)
        style.add(axes, style.arrow((middle, y + 3.05), head))


def _draw_pool(axes: Axes, y: float, frame: Frame) -> None:
    """The physical blocks with their reference counts, and the free list."""
    for row, text in enumerate(("physical block", "reference count", "free list")):
        _label(axes, y + row + 0.5 * (row == 2), text)
    for block in frame.blocks:
        x = _x_of_block(block.number)
        color, content = _content(block)
        _box(axes, x, y, BLOCK, f"{block.number}: {content}", color)
        _box(axes, x, y + 1, BLOCK, str(block.ref_count))
    for place, number in enumerate(frame.free):
        _box(axes, LABELS + place * BLOCK / 2, y + 2.5, BLOCK / 2, str(number))
    end = LABELS + len(frame.free) * BLOCK / 2 + 0.6
    axes.text(end, y + 3, "the left one is given out next", va="center", color=style.QUIET)


def _content(block: BlockState) -> tuple[str, str]:
    """The colour of a block, and in two words what it holds."""
    if block.number == NULL_BLOCK:
        return style.EMPTY, "null"
    if not block.ref_count:
        return style.PAPER, "free"
    return hue(block.owners[0]), f"{len(block.tokens)} of {', '.join(block.owners)}"
