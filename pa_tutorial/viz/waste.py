"""The figures of notebook 02, and the first of notebook 00."""

from collections.abc import Mapping, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.paging.reservations import (
    Blocks,
    Contiguous,
    Request,
)
from pa_tutorial.paging.waste import NOBODY, Kind, MemoryMap, Simulation, memory_map_at
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import arrow, board, box, note, plate, write

PAGES_A_ROW = 32  # in the picture of notebook 00
TABLE_WIDTH = 11  # left of its pages, in pages
OTHERS = style.lighter(style.QUIET)

KIND_STYLES = {
    Kind.TOKENS: ("tokens", {"color": style.INK}),
    Kind.RESERVED: ("for later", {"color": style.lighter(style.INK, 0.65)}),
    Kind.INTERNAL: ("never used", {"color": style.EMPTY, "hatch": style.UNUSED_HATCH}),
    Kind.EXTERNAL: ("gaps", {"color": style.PAPER, "hatch": "...."}),
    Kind.FREE: ("free", {"color": style.PAPER}),
}


@style.styled
def draw_shares(runs: Mapping[str, Simulation]) -> Figure:
    """One bar per run: what the slots are used for, on average while requests wait."""
    tokens = [run.shares[Kind.TOKENS] for run in runs.values()]
    figure, axes = style.new_figure(
        f"Between {min(tokens):.1%} and {max(tokens):.1%} of the memory holds tokens, "
        "depending on how it is allocated",
        0.6 + 0.55 * len(runs),
    )
    for row, run in enumerate(runs.values()):
        left = 0.0
        for kind, share in run.shares.items():
            _draw_share(axes, row, left, share, kind)
            left += share
        write(axes, 1.02, row, f"{run.mean_running:.1f} requests\nat once", "left")
    axes.set_yticks(range(len(runs)), list(runs))
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.set_xlim(0, 1.003)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def _draw_share(axes: Axes, row: int, left: float, share: float, kind: Kind) -> None:
    """One piece of a bar, with its name if there is room."""
    name, look = KIND_STYLES[kind]
    box(axes, left, row - 0.38, share, 0.76, edgecolor=style.QUIET, linewidth=0.6, **look)
    if share < 0.045:
        return
    text, color = f"{name}\n{share:.1%}" if share > 0.1 else f"{share:.1%}", look["color"]
    behind = plate(0.8, color)
    write(axes, left + share / 2, row, text, color=style.ink_on(color), bbox=behind)


def _requests_of(*maps: MemoryMap) -> list[int]:
    return sorted({int(number) for one in maps for number in one.owner if number != NOBODY})


def hues_of(*maps: MemoryMap) -> dict[int, str]:
    """A colour for each request of a picture, the same in all its parts."""
    return dict(zip(_requests_of(*maps), cycle(style.SEQUENCES), strict=False))


def _draw_slots(axes: Axes, drawn: MemoryMap, row_len: int, hues: Mapping[int, str]) -> None:
    """A slot in the colour of its request, if it has one."""
    pairs = zip(drawn.kinds.tolist(), drawn.owner.tolist(), strict=True)
    for slot, (kind, number) in enumerate(pairs):
        look = {"edgecolor": style.PAPER, **KIND_STYLES[Kind(kind)][1]}
        if kind == Kind.FREE:  # outlined, so that one sees how large the memory is
            look["edgecolor"] = style.QUIET
        if number != NOBODY:
            hue = hues.get(number, OTHERS)
            look["color"] = hue if kind == Kind.TOKENS else style.lighter(hue, 0.6)
        box(axes, slot % row_len, slot // row_len, 1, 1, linewidth=0.4, **look)


@style.styled
def draw_with_and_without_pages(
    requests: Sequence[Request], reserved: Contiguous, paged: Blocks, step: int
) -> Figure:
    """The same memory after that many steps, reserved and in pages; a square is a page.

    On the right we follow the request that has the fewest pages, through its block table.
    """
    maps = [memory_map_at(step, requests, memory) for memory in (reserved, paged)]
    fit, pages = [len(_requests_of(one)) for one in maps], paged.block_size
    title = (
        f"The same memory serves {fit[0]} requests when each reserves room for the longest text, "
        f"and {fit[1]} in pages"
    )
    widths = PAGES_A_ROW, PAGES_A_ROW + TABLE_WIDTH
    figure, panels = style.new_figure(title, 4.3, ncols=2, width_ratios=widths)
    names = (f"reserved for {reserved.max_len:,} tokens each", f"pages of {pages} tokens")
    followed = min(paged.slots, key=lambda number: len(paged.slots[number]))
    hues = hues_of(maps[0]), {followed: style.INK}
    for axes, name, drawn, hue, left in zip(
        panels, names, maps, hues, (0, -TABLE_WIDTH), strict=True
    ):
        used, count = (drawn.kinds == Kind.TOKENS).mean(), len(_requests_of(drawn))
        text = f"{name}: {count} requests,\n{used:.0%} of the memory holds tokens"
        # A page is drawn as its first slot.
        drawn = MemoryMap(drawn.kinds[::pages], drawn.owner[::pages])
        _draw_slots(axes, drawn, PAGES_A_ROW, hue)
        write(axes, 0, -2.2, text, "left")
        board(axes, PAGES_A_ROW, -(-len(drawn.kinds) // PAGES_A_ROW), left, -4.2, square=True)
    _draw_table(panels[1], followed, [slot // pages for slot in paged.slots[followed][::pages]])
    figure.supxlabel(
        "left: a colour for each request · full: tokens · faint: its next tokens go here\n"
        f"hatched: reserved, never used · blank: free · a square: {pages} slots · "
        f"right: request {followed} in black"
    )
    return figure


def _draw_table(axes: Axes, followed: int, table: Sequence[int]) -> None:
    """The block table, left of the pool, with an arrow from each entry to its page."""
    write(axes, 0.5 - TABLE_WIDTH, 0, f"request {followed}'s\nblock table", "left", va="top")
    for index, page in enumerate(table):
        y, (row, column) = 4.5 + 3 * index, divmod(page, PAGES_A_ROW)
        note(axes, 2.5 - TABLE_WIDTH, y + 1.1, index, "right")
        box(axes, 3 - TABLE_WIDTH, y, 4.5, 2.2, style.INK, page)
        tail, head = (7.6 - TABLE_WIDTH, y + 1.1), (column + 0.5, row + 0.5)
        arrow(axes, tail, head, color=style.INK, shrinkB=3)
