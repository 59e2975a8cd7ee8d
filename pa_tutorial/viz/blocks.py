"""The figures of notebook 03: the pool of blocks, drawn from the allocator's own state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.paging.allocator import NULL_BLOCK, BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import arrow, board, box, cell, frame, note, plural, write


@dataclass(frozen=True)
class Frame:
    """A copy of the pool and the block tables at one moment.

    tokens  block number -> the tokens in the block, from its start, if they are known
    owners  block number -> the sequences whose tables contain it
    """

    caption: str
    block_size: int
    ref_counts: tuple[int, ...]
    tables: dict[str, tuple[int, ...]]
    tokens: dict[int, tuple[int, ...]]
    owners: dict[int, tuple[str, ...]]


def frame_of(
    caption: str,
    block_size: int,
    ref_counts: Sequence[int],
    sequences: Mapping[str, tuple[Sequence[int], Sequence[int]]],
    cached: Mapping[int, Sequence[int]] | None = None,
) -> Frame:
    """A frame made from plain lists.

    sequences  name -> (its tokens, its block table)
    cached     the tokens of blocks in the prefix cache, whether in use or not
    """
    held = {block: tuple(tokens) for block, tokens in (cached or {}).items()}
    owners: dict[int, tuple[str, ...]] = {}
    for name, (tokens, table) in sequences.items():
        for index, block in enumerate(table):
            if block != NULL_BLOCK:
                held[block] = tuple(tokens[index * block_size : (index + 1) * block_size])
                owners[block] = (*owners.get(block, ()), name)
    tables = {name: tuple(table) for name, (_, table) in sequences.items()}
    return Frame(caption, block_size, tuple(ref_counts), tables, held, owners)


def snapshot(caption: str, allocator: BlockAllocator, tables: Mapping[str, BlockTable]) -> Frame:
    """Copy the state of a pool and its sequences."""
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
    """The colour of a sequence, named a, b, c, …"""
    return style.SEQUENCES[(ord(name[0]) - ord("a")) % len(style.SEQUENCES)]


def letter(token: int) -> str:
    """A token as a picture shows it: bytes as characters."""
    return {32: "␣", 10: "↵"}.get(token, chr(token)) if 32 <= token < 127 or token == 10 else "·"


GAP = 0.7  # between blocks, in cells
ROW = 2.2  # height of a row of blocks
HUE = style.SEQUENCES[0]
PALE = style.lighter(HUE, 0.55)


@style.styled
def draw_frames(frames: Sequence[Frame], title: str) -> Figure:
    """Per frame: every block of the pool, in two rows, and the block tables on the right.

    A hue is a sequence; two hues in a cell mark a shared block. Hatched: a slot without a token in
    a block that is in use. Light: a block that is unused but still in the prefix cache.
    Below a block: its number, and its reference count if it is in use.
    """
    num_blocks, size = max(len(frame.ref_counts) for frame in frames), frames[0].block_size
    a_row = -(-num_blocks // 2)
    heights = [1.5 + max(2 * ROW, 1.25 * len(frame.tables)) for frame in frames]
    width = a_row * (size + GAP)
    total = width + 9.5  # cells, the block tables included
    figure, axes = style.new_figure(title, 0.35 + sum(heights) * (style.WIDTH - 0.3) / total)
    board(axes, total, sum(heights), 0, 0, square=True)
    y = 0.0
    for one, height in zip(frames, heights, strict=True):
        write(axes, 0, y + 0.75, one.caption, "left")
        for number in range(len(one.ref_counts)):
            row, column = divmod(number, a_row)
            _draw_block(axes, column * (size + GAP), y + 1.35 + ROW * row, one, number)
        for line, (name, blocks) in enumerate(one.tables.items()):
            top = y + 1.35 + 1.25 * line
            write(axes, width + 0.7, top + 0.5, name, weight="bold")
            for index, number in enumerate(blocks):
                cell(axes, width + 1.3 + 1.1 * index, top, hue(name), number)
        y += height
    return figure


def _draw_block(axes: Axes, x: float, y: float, moment: Frame, number: int) -> None:
    """Its slots, then its number and reference count."""
    count, tokens = moment.ref_counts[number], moment.tokens.get(number, ())
    size = moment.block_size
    for offset in range(size):
        if offset < len(tokens):
            _draw_token(axes, x + offset, y, moment.owners.get(number, ()), tokens[offset])
        else:
            cell(axes, x + offset, y, style.EMPTY, unused=count > 0)
    color = style.INK if count else style.QUIET
    frame(axes, x, y, size, 1, color, linewidth=0.8)
    words = "null" if number == NULL_BLOCK else _in_words(count, bool(tokens))
    write(axes, x + size / 2, y + 1.5, f"{number}: {words}", color=color)


def _in_words(ref_count: int, is_known: bool) -> str:
    unheld = "cached" if is_known else "free"
    return plural(ref_count, "ref") if ref_count else unheld


def _draw_token(axes: Axes, x: float, y: float, owners: Sequence[str], token: int) -> None:
    """One slot: a stripe for every sequence whose token it is."""
    colors = [hue(name) for name in owners] or [style.lighter(style.QUIET, 0.7)]
    if len(colors) > 1:  # light, so that the letter is readable on all of them
        colors = [style.lighter(color, 0.5) for color in colors]
    height = 1 / len(colors)
    for stripe, color in enumerate(colors):
        box(axes, x, y + stripe * height, 1, height, color, edgecolor="none")
    frame(axes, x, y, 1, 1, style.PAPER, linewidth=1.2)
    ink = style.ink_on(colors[0]) if len(colors) == 1 else style.INK
    write(axes, x + 0.5, y + 0.53, letter(token), color=ink)


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
    board(axes, pool_x + block_size + 4, num_blocks * step + 1.3, square=True)
    first_row = 1 + (num_blocks - len(table)) / 2  # the sequence is at half height
    for x, text in ((0, "the sequence"), (table_x - 1, "block table"), (pool_x, "the pool")):
        note(axes, x, 0.4, text, "left")
    for index, number in enumerate(table):
        y, below, strong = (first_row + index) * step, (1 + number) * step, index == logical
        labels, chosen = tokens[index * block_size :][:block_size], offset if strong else None
        _draw_slots(axes, 0, y, labels, block_size, chosen)
        _draw_slots(axes, pool_x, below, labels, block_size, chosen)
        note(axes, block_size + 0.3, y + 0.5, f"logical {index}", "left")
        cell(axes, table_x, y, HUE if strong else PALE, number)
        line = {"color": style.INK, "linewidth": 1.4} if strong else {"linewidth": 0.7}
        arrow(axes, (block_size + 3.3, y + 0.5), (table_x - 0.1, y + 0.5), size=9, **line)
        arrow(axes, (table_x + 1.1, y + 0.5), (pool_x - 0.1, below + 0.5), size=9, **line)
    for number in range(num_blocks):
        y = (1 + number) * step
        write(axes, pool_x + block_size + 0.3, y + 0.5, f"block {number}", "left")
        for place in range(0 if number in table else block_size):
            cell(axes, pool_x + place, y, style.EMPTY)
    return figure


def _draw_slots(
    axes: Axes, x: float, y: float, labels: Sequence[str], block_size: int, chosen: int | None
) -> None:
    """The slots of one block; `chosen` is the offset of the token that we follow."""
    for place in range(block_size):
        known = place < len(labels)
        color = HUE if place == chosen else PALE
        cell(axes, x + place, y, color, labels[place] if known else "", unused=not known)
