"""The pool of blocks and its block tables, drawn from what an allocator, ours or a reader's, has.

A reader's may be wrong in any way, so a frame takes what there is: block numbers that don't exist,
negative counts, tables that aren't lists.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.paging.allocator import NULL_BLOCK, BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import (
    LARGE,
    are,
    arrow,
    board,
    box,
    cell,
    compared,
    frame,
    goal,
    note,
    plural,
    write,
)

Number = int | str  # a short text if it isn't a whole number
MOST_NUMBERS = 1_000  # of a list; a wrong loop may have made more


@dataclass(frozen=True)
class Frame:
    """A copy of the pool and the block tables at one moment.

    tokens  block number -> the tokens in the block, from its start, if they are known
    owners  block number -> the sequences whose tables contain it
    free    the list of free blocks, if it is known
    """

    caption: str
    block_size: int
    ref_counts: tuple[Number, ...]
    tables: dict[str, tuple[Number, ...]]
    tokens: dict[Number, tuple[Number, ...]]
    owners: dict[Number, tuple[str, ...]]
    free: tuple[Number, ...] | None = None

    def num_free(self, block: int) -> int:
        """How often it is free: once, unless a wrong allocator has freed it twice."""
        if self.free is None:
            return int(block < len(self.ref_counts) and self.ref_counts[block] == 0)
        return self.free.count(block)


def frame_of(
    caption: str,
    block_size: int,
    ref_counts: Sequence[int],
    sequences: Mapping[str, tuple[Sequence[int], Sequence[int]]],
    cached: Mapping[int, Sequence[int]] | None = None,
    free: Sequence[int] | None = None,
) -> Frame:
    """A frame made from plain lists.

    sequences  name -> (its tokens, its block table)
    cached     the tokens of blocks in the prefix cache, whether in use or not
    free       the list of free blocks; without it, those are free whose reference count is 0
    """
    held = {block: numbers(tokens) for block, tokens in (cached or {}).items()}
    owners: dict[Number, tuple[str, ...]] = {}
    tables = {str(name): numbers(table) for name, (_, table) in sequences.items()}
    for (name, table), (tokens, _) in zip(tables.items(), sequences.values(), strict=True):
        known = numbers(tokens)
        for index, block in enumerate(table):
            if block != NULL_BLOCK:
                held[block] = known[index * block_size : (index + 1) * block_size]
                owners[block] = (*owners.get(block, ()), name)
    frees = None if free is None else numbers(free)
    return Frame(caption, block_size, numbers(ref_counts), tables, held, owners, frees)


def frame_of_pool(caption: str, pool: object, sequences: Mapping[str, object]) -> Frame:
    """A frame of a `Pool` and the `Sequence`s of notebook 03, whatever became of them."""
    parts = {
        name: (getattr(one, "tokens", ()), getattr(one, "blocks", ()))
        for name, one in sequences.items()
    }
    return frame_of(caption, pool.block_size, pool.ref_counts, parts, free=pool.free_blocks)


def numbers(values: object) -> tuple[Number, ...]:
    """What a wrong function left as a list of numbers: as much of it as can be read."""
    try:
        return tuple(number(value) for value in islice(values, MOST_NUMBERS))
    except TypeError:  # not a list
        return ()


def number(value: object) -> Number:
    """In at most three characters if it isn't a whole number, or too large for a cell."""
    try:
        if not abs(value) < 1_000:
            return "nan" if value != value else "…"
        return int(value) if int(value) == value else f"{value:.1f}"[:3]
    except (TypeError, ValueError, RuntimeError):
        return "?"


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
    return style.SEQUENCES[(ord(name[:1] or "a") - ord("a")) % len(style.SEQUENCES)]


def letter(token: Number) -> str:
    """A token as a picture shows it: bytes as characters."""
    if isinstance(token, int) and (32 <= token < 127 or token == 10):
        return {32: "␣", 10: "↵"}.get(token, chr(token))
    return "·"


GAP = 0.7  # between blocks, in cells
POOL = 18.8  # the width of a row of blocks, in cells
MOST_SLOTS, MOST_BLOCKS, MOST_TABLES, MOST_ENTRIES = 16, 16, 8, 6  # that are drawn
FREE = "free"  # beside the free list, in the place of a sequence's name
HUE = style.SEQUENCES[0]
PALE = style.lighter(HUE, 0.55)


@dataclass(frozen=True)
class Panel:
    """A frame beside the right one, which may be the same."""

    caption: str
    drawn: Frame
    right: Frame
    shows_free: bool = False  # the end of the free list, below the tables

    @property
    def row_height(self) -> float:
        """In cells: a block, its number, and two lines for what is wrong."""
        return 2.2 if self.drawn is self.right else 3.4

    @property
    def tables(self) -> list[str]:
        names = [*dict.fromkeys((*self.drawn.tables, *self.right.tables))][:MOST_TABLES]
        return [*names, FREE] if self.shows_free else names

    @property
    def head(self) -> float:
        return 1.1 if self.caption else 0.3

    def height(self, num_rows: int) -> float:
        return self.head + max(num_rows * self.row_height, 1.15 * len(self.tables))


def draw_frames(frames: Sequence[Frame], title: str) -> Figure:
    """Per frame: every block of the pool, and the block tables on the right.

    A hue is a sequence; two hues in a cell mark a shared block. Hatched: a slot without a token in
    a block that is in use. Light: a block that is unused but still in the prefix cache.
    Below a block: its number, and its reference count if it is in use.
    """
    blocks = range(max(len(one.ref_counts) for one in frames))
    return _draw_panels([Panel(one.caption, one, one) for one in frames], blocks, title)


def draw_pools(frames: Mapping[str, Frame], title: str = "") -> Figure:
    """A reader's pool above the right one, what differs in red; the right one alone is the goal.

    frames  "yours" and "right"; yours may be of a wrong function
    title   of which case they are; what is wrong is added
    """
    right, yours = frames["right"], frames.get("yours")
    blocks = blocks_to_draw(yours or right, right)
    if yours is None:
        alone = Panel(right.caption, right, right)
        used = sum(block in right.owners for block in blocks)
        finding = f"{plural(used, 'block')} in use, {len(blocks) - used} free"
        return _draw_panels([alone], blocks, goal(title, finding))
    reordered = is_reordered(yours, right)
    panels = [
        Panel(whose("yours", yours), yours, right, reordered),
        Panel(whose("right", right), right, right, reordered),
    ]
    return _draw_panels(panels, blocks, compared(title, in_short(panels[0])))


def is_reordered(yours: Frame, right: Frame) -> bool:
    """The same blocks are free, in another order."""
    both = yours.free, right.free
    return None not in both and both[0] != both[1] and Counter(both[0]) == Counter(both[1])


def whose(words: str, one: Frame) -> str:
    return f"{words}: {one.caption}" if one.caption else words


@style.styled
def _draw_panels(panels: Sequence[Panel], blocks: Sequence[int], title: str) -> Figure:
    """One below the other; the blocks in rows, the tables on the right."""
    pitch = max(4, min(panels[-1].right.block_size, MOST_SLOTS)) + GAP  # 4: for the words below
    a_row = int(POOL / pitch)
    num_rows = -(-len(blocks) // a_row)
    tables = (entries(panel.drawn, name) or () for panel in panels for name in panel.tables)
    longest = min(MOST_ENTRIES + 1, max(3, *map(len, tables), 0))
    height = sum(panel.height(num_rows) for panel in panels)
    width = POOL + 2 + 1.1 * longest
    figure, axes = style.new_figure("", 0.3 + 7 * height / width + 0.16 * (len(title) // 88))
    figure.suptitle(fill(title, 88), parse_math=False, **style.TITLE)
    board(axes, width, height, square=True)
    top = 0.0
    for panel in panels:
        write(axes, 0, top + 0.4, panel.caption, "left", size=LARGE - 1, parse_math=False)
        for index, block in enumerate(blocks):
            row, column = divmod(index, a_row)
            y = top + panel.head + row * panel.row_height
            _draw_block(axes, column * pitch, y, block, panel)
        for line, name in enumerate(panel.tables):
            _draw_table(axes, top + panel.head + 1.15 * line, name, panel)
        top += panel.height(num_rows)
    return figure


def in_short(panel: Panel) -> str:
    """What the picture shows."""
    yours, right = panel.drawn, panel.right
    blocks = sum(differs(block, yours, right) for block in range(num_blocks_of(yours, right)))
    tables = sum(entries(yours, name) != entries(right, name) for name in panel.tables)
    tables -= panel.shows_free
    words = [plural(blocks, "block")] * (blocks > 0) + [plural(tables, "table")] * (tables > 0)
    if not words and panel.shows_free:
        return "the free list is in another order (red)"
    if not words:
        return "all blocks and tables are right"
    return f"{' and '.join(words)} {are(blocks + tables)} wrong (red)"


def num_blocks_of(yours: Frame, right: Frame) -> int:
    return max(len(yours.ref_counts), len(right.ref_counts))


def blocks_to_draw(yours: Frame, right: Frame) -> list[int]:
    """All blocks of a small pool; of a large one those that differ, then those in a table. The null
    block only if it does."""

    def rank(block: int) -> tuple[bool, bool]:
        return not differs(block, yours, right), block not in yours.owners | right.owners

    first = 0 if differs(NULL_BLOCK, yours, right) else 1
    return sorted(sorted(range(first, num_blocks_of(yours, right)), key=rank)[:MOST_BLOCKS])


def differs(block: int, one: Frame, other: Frame) -> bool:
    return state(block, one) != state(block, other)


def state(block: int, one: Frame) -> tuple:
    owners, tokens = one.owners.get(block, ()), one.tokens.get(block, ())
    return count_of(block, one), one.num_free(block), owners, tokens


def count_of(block: int, one: Frame) -> Number | None:
    """The reference count; None if the pool doesn't have that block."""
    return one.ref_counts[block] if block < len(one.ref_counts) else None


def _draw_block(axes: Axes, x: float, y: float, block: int, panel: Panel) -> None:
    """Its slots, its number and reference count; in red what isn't as in the right pool."""
    one, right = panel.drawn, panel.right
    size = min(right.block_size, MOST_SLOTS)
    tokens, other = one.tokens.get(block, ()), right.tokens.get(block, ())
    for offset in range(size):
        if offset < len(tokens):
            owners = one.owners.get(block, ())
            _draw_token(axes, x + offset, y, owners, tokens[offset])
        else:
            cell(axes, x + offset, y, style.EMPTY, unused=block in one.owners)
        if tokens[offset : offset + 1] != other[offset : offset + 1]:
            frame(axes, x + offset + 0.1, y + 0.1, 0.8, 0.8, style.WRONG, linewidth=1.2)
    count, is_wrong = count_of(block, one), differs(block, one, right)
    color = style.INK if count else style.QUIET
    frame(axes, x, y, size, 1, style.WRONG if is_wrong else color, linewidth=2 if is_wrong else 0.8)
    words = count_in_words(block, one)
    if count != count_of(block, right):
        words = plural(0, "ref") if words == "free" else words
        words, color = f"{words}, not {count_of(block, right) or 0}", style.WRONG
    write(axes, x, y + 1.5, f"{block}: {words}", "left", size=LARGE - 1, color=color)
    words = what_is_wrong(block, one, right) if is_wrong else ""
    axes.text(x, y + 1.95, words, va="top", size=LARGE - 1, color=style.WRONG, linespacing=1)


def count_in_words(block: int, one: Frame) -> str:
    count = count_of(block, one)
    if count is None:
        return "missing"
    if block == NULL_BLOCK and block not in one.owners:
        return "null"
    if count == 0 and block not in one.owners and one.num_free(block):
        return "cached" if one.tokens.get(block) else "free"
    return plural(count, "ref") if isinstance(count, int) else count


def what_is_wrong(block: int, one: Frame, right: Frame) -> str:
    """In two short lines; empty where the reference count or the slots say it."""
    num_free, owners = one.num_free(block), one.owners.get(block, ())
    if num_free > 1:
        return "twice in the\nfree list"
    if num_free and owners:
        return "in a table,\nbut free"
    if not num_free and not owners and (right.num_free(block) or block in right.owners):
        return "lost: not free,\nin no table"
    others = right.owners.get(block, ())
    if owners == others:
        return ""
    if not others:
        return "must be free"
    return f"not in\n{whose_table(others)}" if not owners else f"must be in\n{whose_table(others)}"


def whose_table(names: Sequence[str]) -> str:
    short = [name[:2] for name in names[:3]]
    return f"{short[0]}'s table" if len(short) == 1 else f"tables {', '.join(short)}"


def entries(one: Frame, name: str) -> tuple[Number, ...] | None:
    """Of a table, or the end of the free list."""
    return one.free[-MOST_ENTRIES:] if name == FREE else one.tables.get(name)


def _draw_table(axes: Axes, y: float, name: str, panel: Panel) -> None:
    """What differs in red: a missing entry as an empty box, a wrong row's name too."""
    one, right = panel.drawn, panel.right
    table, other, x = entries(one, name) or (), entries(right, name) or (), POOL + 1.9
    is_right = entries(one, name) == entries(right, name)
    look = {"weight": "bold", "size": LARGE, "color": style.INK if is_right else style.WRONG}
    write(axes, POOL + 1.6, y + 0.5, name[:4], "right", parse_math=False, **look)
    color = style.EMPTY if name == FREE else hue(name)
    for index in range(min(max(len(table), len(other)), MOST_ENTRIES)):
        left = x + 1.1 * index
        if index < len(table):
            there = isinstance(table[index], int) and 0 <= table[index] < len(one.ref_counts)
            box(axes, left, y, 1, 1, color if there else style.PAPER, table[index], LARGE)
        if table[index : index + 1] != other[index : index + 1]:
            frame(axes, left, y, 1, 1, style.WRONG, linewidth=2, zorder=3)
    if (more := len(table) - MOST_ENTRIES) > 0:
        color = style.INK if table[MOST_ENTRIES:] == other[MOST_ENTRIES:] else style.WRONG
        write(axes, x + 1.1 * MOST_ENTRIES, y + 0.5, f"+{more}", "left", size=LARGE, color=color)


def _draw_token(axes: Axes, x: float, y: float, owners: Sequence[str], token: Number) -> None:
    """One slot: a stripe for every sequence whose token it is."""
    colors = [hue(name) for name in owners] or [style.lighter(style.QUIET, 0.7)]
    if len(colors) > 1:  # light, so that the letter is readable on all of them
        colors = [style.lighter(color, 0.5) for color in colors]
    height = 1 / len(colors)
    for stripe, color in enumerate(colors):
        box(axes, x, y + stripe * height, 1, height, color, edgecolor="none")
    frame(axes, x, y, 1, 1, style.PAPER, linewidth=1.2)
    ink = style.ink_on(colors[0]) if len(colors) == 1 else style.INK
    write(axes, x + 0.5, y + 0.53, letter(token), color=ink, size=LARGE)


@style.styled
def draw_translation(
    tokens: Sequence[object], table: Sequence[int], block_size: int, num_blocks: int, position: int
) -> Figure:
    """From the position of a token to its slot: logical block, block table, physical block.

    tokens  a short label for each token of the sequence, for example range(11)
    """
    logical, offset = divmod(position, block_size)
    slot = table[logical] * block_size + offset
    figure, axes = style.new_figure(
        f"Token {position} is at offset {offset} of logical block {logical}, which is block "
        f"{table[logical]} of the pool: slot {slot}",
        0.9 + 0.27 * num_blocks,
    )
    step = 1.15
    table_x, pool_x = block_size + 4.4, block_size + 8.5
    board(axes, pool_x + block_size + 3.4, num_blocks * step + 1.3, square=True)
    first_row = 1 + (num_blocks - len(table)) / 2  # the sequence is at half height
    for x, text in ((0, "the sequence"), (table_x - 1, "block table"), (pool_x, "the pool")):
        note(axes, x, 0.4, text, "left", size=LARGE)
    for index, number in enumerate(table):
        y, below, strong = (first_row + index) * step, (1 + number) * step, index == logical
        labels, chosen = tokens[index * block_size :][:block_size], offset if strong else None
        _draw_slots(axes, 0, y, labels, block_size, chosen)
        _draw_slots(axes, pool_x, below, labels, block_size, chosen)
        note(axes, block_size + 0.3, y + 0.5, f"logical {index}", "left", size=LARGE - 1)
        cell(axes, table_x, y, HUE if strong else PALE, number, size=LARGE)
        line = {"color": style.INK, "linewidth": 1.4} if strong else {"linewidth": 0.7}
        arrow(axes, (block_size + 3.5, y + 0.5), (table_x - 0.1, y + 0.5), size=9, **line)
        arrow(axes, (table_x + 1.1, y + 0.5), (pool_x - 0.1, below + 0.5), size=9, **line)
    for number in range(num_blocks):
        y = (1 + number) * step
        write(axes, pool_x + block_size + 0.3, y + 0.5, f"block {number}", "left", size=LARGE - 1)
        for place in range(0 if number in table else block_size):
            cell(axes, pool_x + place, y, style.EMPTY)
    return figure


def _draw_slots(
    axes: Axes, x: float, y: float, labels: Sequence[object], block_size: int, chosen: int | None
) -> None:
    """The slots of one block; `chosen` is the offset of the token that we follow."""
    for place in range(block_size):
        known = place < len(labels)
        color = HUE if place == chosen else PALE
        cell(axes, x + place, y, color, labels[place] if known else "", not known, LARGE - 1)
