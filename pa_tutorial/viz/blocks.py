"""The figures of notebook 03: the pool of blocks, drawn from the allocator's own state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from pa_tutorial.paging.allocator import NULL_BLOCK, BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from pa_tutorial.viz import style


@dataclass(frozen=True)
class BlockState:
    """One block at one moment.

    tokens  what it holds, from the start
    owners  names of the sequences whose tables name it
    """

    number: int
    ref_count: int
    tokens: tuple[int, ...]
    owners: tuple[str, ...]


@dataclass(frozen=True)
class Frame:
    """The pool and the block tables at one moment, copied: later operations do not change it."""

    caption: str
    block_size: int
    blocks: tuple[BlockState, ...]
    tables: dict[str, tuple[int, ...]]

    @property
    def num_used(self) -> int:
        return sum(block.ref_count > 0 for block in self.blocks)


def frame_of(
    caption: str,
    block_size: int,
    ref_counts: Sequence[int],
    sequences: Mapping[str, tuple[Sequence[int], Sequence[int]]],
    cached: Mapping[int, Sequence[int]] | None = None,
) -> Frame:
    """A frame of plain lists.

    sequences  name -> (its tokens, its block table)
    cached     the tokens of blocks that can be found again, held or not
    """
    contents = {block: tuple(tokens) for block, tokens in (cached or {}).items()}
    owners: dict[int, list[str]] = {}
    for name, (tokens, table) in sequences.items():
        for index, block in enumerate(table):
            if block == NULL_BLOCK:
                continue
            contents[block] = tuple(tokens[index * block_size : (index + 1) * block_size])
            owners.setdefault(block, []).append(name)
    return Frame(
        caption,
        block_size,
        tuple(
            BlockState(number, count, contents.get(number, ()), tuple(owners.get(number, ())))
            for number, count in enumerate(ref_counts)
        ),
        {name: tuple(table) for name, (_, table) in sequences.items()},
    )


def snapshot(caption: str, allocator: BlockAllocator, tables: Mapping[str, BlockTable]) -> Frame:
    """Copy the state of a pool and of the sequences in it."""
    cached = {}
    if isinstance(allocator, PrefixCachingAllocator):
        cached = {block: full.tokens for block, full in allocator.named_blocks().items()}
    here = {name: table for name, table in tables.items() if table.allocator is allocator}
    return frame_of(
        caption,
        max((table.block_size for table in tables.values()), default=4),
        allocator.ref_counts,
        {name: (table.token_ids, table.blocks) for name, table in here.items()},
        cached,
    )


def hue(name: str) -> str:
    """The colour of a sequence; sequences are named a, b, c, …"""
    return style.SEQUENCES[(ord(name[0]) - ord("a")) % len(style.SEQUENCES)]


def letter(token: int) -> str:
    """A token as a picture shows it: bytes as characters."""
    return {32: "␣", 10: "↵"}.get(token, chr(token)) if 32 <= token < 127 or token == 10 else "·"


GAP = 0.7  # between blocks, in cells
ROW = 3.6  # height of a frame


@style.styled
def draw_frames(frames: Sequence[Frame], title: str) -> Figure:
    """One row a frame: every block of the pool, and beside it the block tables.

    A hue is a sequence; two hues in a cell: a shared block. Hatched: a slot without a token in
    a block that is held. Light: a block that nobody holds but the cache still knows.
    Under a block: its number, and its reference count if it is held.
    """
    lengths = [len(frame.tables) for frame in frames]
    heights = [max(ROW, 1.5 + 1.25 * length) for length in lengths]
    size = frames[0].block_size
    width = max(len(frame.blocks) for frame in frames) * (size + GAP)
    total = width + 9.5  # cells, the block tables included
    figure, axes = style.new_figure(title, 0.35 + sum(heights) * (style.WIDTH - 0.3) / total)
    axes.set_xlim(0, total)
    axes.set_ylim(sum(heights), 0)
    axes.set_aspect("equal")
    axes.axis("off")
    y = 0.0
    for frame, height in zip(frames, heights, strict=True):
        axes.text(0, y + 0.75, frame.caption, va="center")
        for block in frame.blocks:
            _draw_block(axes, block.number * (size + GAP), y + 1.35, block, size)
        for row, (name, blocks) in enumerate(frame.tables.items()):
            _draw_table(axes, width + 0.3, y + 1.35 + 1.25 * row, name, blocks)
        y += height
    return figure


def _draw_block(axes: Axes, x: float, y: float, block: BlockState, size: int) -> None:
    """Its slots, then its number and reference count."""
    for offset in range(size):
        token = block.tokens[offset] if offset < len(block.tokens) else None
        _draw_slot(axes, x + offset, y, block, token)
    frame_color = style.INK if block.ref_count else style.QUIET
    style.add(axes, Rectangle((x, y), size, 1, fill=False, edgecolor=frame_color, linewidth=0.8))
    if block.number == NULL_BLOCK:
        note = "0: null"
    elif block.ref_count:
        note = f"{block.number}: {block.ref_count} ref" + "s" * (block.ref_count > 1)
    else:
        note = f"{block.number}: " + ("cached" if block.tokens else "free")
    color = style.INK if block.ref_count else style.QUIET
    axes.text(x + size / 2, y + 1.5, note, ha="center", va="center", color=color, fontsize=7.5)


def _draw_slot(axes: Axes, x: float, y: float, block: BlockState, token: int | None) -> None:
    """One slot: a stripe for every sequence whose token it is."""
    owners = block.owners
    if token is None:
        held = block.ref_count > 0
        style.cell(axes, x, y, style.EMPTY, unused=held)
        return
    colors = [hue(name) for name in owners] or [style.lighter(style.QUIET, 0.7)]
    if len(colors) > 1:  # light, so that the letter can be read over all of them
        colors = [style.lighter(color, 0.5) for color in colors]
    for stripe, color in enumerate(colors):
        height = 1 / len(colors)
        style.add(
            axes, Rectangle((x, y + stripe * height), 1, height, facecolor=color, edgecolor="none")
        )
    style.add(axes, Rectangle((x, y), 1, 1, fill=False, edgecolor=style.PAPER, linewidth=1.2))
    ink = style.ink_on(colors[0]) if len(colors) == 1 else style.INK
    place = (x + 0.5, y + 0.53)
    axes.text(*place, letter(token), ha="center", va="center", color=ink, fontsize=7.5)


def _draw_table(axes: Axes, x: float, y: float, name: str, blocks: Sequence[int]) -> None:
    """A block table: the name of the sequence, then one physical block number a column."""
    axes.text(x + 0.4, y + 0.5, name, ha="center", va="center", weight="bold")
    for index, block in enumerate(blocks):
        style.cell(axes, x + 1 + 1.1 * index, y, hue(name), str(block))


@style.styled
def draw_translation(
    tokens: Sequence[str], table: Sequence[int], block_size: int, num_blocks: int, position: int
) -> Figure:
    """From the position of a token to its slot: logical block, block table, physical block.

    tokens  a short label for each token of the sequence
    """
    logical, offset = divmod(position, block_size)
    slot = table[logical] * block_size + offset
    figure, axes = style.new_figure(
        f"Token {position}: logical block {position} // {block_size} = {logical} is block "
        f"{table[logical]} of the pool; slot {table[logical]} × {block_size} + {offset} = {slot}",
        0.9 + 0.27 * num_blocks,
    )
    step = 1.15
    table_x, pool_x = block_size + 5, block_size + 9.5
    style.bare(axes, pool_x + block_size + 4, num_blocks * step + 1.3)
    first_row = 1 + (num_blocks - len(table)) / 2  # the sequence stands at half height
    headings = ((0, "the sequence"), (table_x - 1, "block table"), (pool_x, "the pool"))
    for x, text in headings:
        axes.text(x, 0.4, text, va="center", color=style.QUIET)
    for row, number in enumerate(table):
        y, chosen = (first_row + row) * step, row == logical
        labels = tokens[row * block_size : (row + 1) * block_size]
        _draw_row(axes, 0, y, labels, block_size, offset if chosen else None)
        axes.text(block_size + 0.3, y + 0.5, f"logical {row}", va="center", color=style.QUIET)
        color = style.SEQUENCES[0] if chosen else style.lighter(style.SEQUENCES[0], 0.55)
        style.cell(axes, table_x, y, color, str(number))
        _draw_arrow(axes, (block_size + 3.3, y + 0.5), (table_x - 0.1, y + 0.5), chosen)
        end = (pool_x - 0.1, (1 + number) * step + 0.5)
        _draw_arrow(axes, (table_x + 1.1, y + 0.5), end, chosen)
    for number in range(num_blocks):
        y = (1 + number) * step
        axes.text(pool_x + block_size + 0.3, y + 0.5, f"block {number}", va="center")
        if number in table:
            row = list(table).index(number)
            labels = tokens[row * block_size : (row + 1) * block_size]
            _draw_row(axes, pool_x, y, labels, block_size, offset if row == logical else None)
        else:
            for place in range(block_size):
                style.cell(axes, pool_x + place, y, style.EMPTY)
    return figure


def _draw_row(
    axes: Axes, x: float, y: float, labels: Sequence[str], block_size: int, chosen: int | None
) -> None:
    """The slots of one block; `chosen` is the offset of the token that we follow."""
    for place in range(block_size):
        strong = place == chosen
        color = style.SEQUENCES[0] if strong else style.lighter(style.SEQUENCES[0], 0.55)
        known = place < len(labels)
        style.cell(axes, x + place, y, color, labels[place] if known else "", unused=not known)


def _draw_arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], chosen: bool
) -> None:
    color, width = (style.INK, 1.4) if chosen else (style.QUIET, 0.7)
    style.add(
        axes,
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=9,
            color=color,
            linewidth=width,
            shrinkA=0,
            shrinkB=0,
        ),
    )
