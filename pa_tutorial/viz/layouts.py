"""The figures of notebook 04: where the numbers of a token lie, by the layouts' own addresses."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.paging.layouts import CacheLayout, PlainLayout, VllmLayout
from pa_tutorial.viz import style

SECTOR = 32  # bytes: the smallest piece that a GPU fetches from memory


def byte_runs(element: Callable[..., int], itemsize: int, places: Sequence[tuple]) -> list:
    """The bytes of some places (block, head, token, dim), as runs (first, one past the last)."""
    runs: list[list[int]] = []
    for first in sorted(element(*place) * itemsize for place in places):
        if runs and runs[-1][1] == first:
            runs[-1][1] = first + itemsize
        else:
            runs.append([first, first + itemsize])
    return [tuple(run) for run in runs]


def sectors(runs: Sequence[tuple[int, int]]) -> int:
    """How many sectors of 32 bytes the runs touch."""
    return len({byte // SECTOR for first, end in runs for byte in range(first, end)})


def _sides(layout: CacheLayout) -> tuple[tuple[str, Callable[..., int], str], ...]:
    return ("K", layout.k_element, style.K), ("V", layout.v_element, style.V)


@style.styled
def draw_token(layouts: Sequence[CacheLayout], block: int, head: int, token: int) -> Figure:
    """The memory of one block and head, in the order of addresses; one token is marked.

    A row is what block_size * x numbers take; the cells of a token have one lightness.
    """
    vllm = layouts[0]
    pieces = [
        len(byte_runs(element, vllm.dtype.itemsize, _dims(vllm, block, head, token)))
        for _, element, _ in _sides(vllm)
    ]
    figure, panels = style.new_figure(
        f"In vLLM's layout, the K of a token lies in {pieces[0]} pieces and its V in "
        f"{pieces[1]}; in the plain one each lies together",
        2.8,
        ncols=2,
        nrows=2,
    )
    for row, layout in zip(panels, layouts, strict=True):
        for axes, (name, element, color) in zip(row, _sides(layout), strict=True):
            axes.set_title(f"{layout.name}: {name}", weight="normal")
            _draw_memory(axes, layout, element, color, block, head, token)
    return figure


def _dims(layout: CacheLayout, block: int, head: int, token: int) -> list[tuple]:
    return [(block, head, token, dim) for dim in range(layout.head_size)]


def _draw_memory(
    axes: Axes,
    layout: CacheLayout,
    element: Callable[..., int],
    color: str,
    block: int,
    head: int,
    marked: int,
) -> None:
    columns, itemsize = layout.block_size * layout.x, layout.dtype.itemsize
    start = element(block, head, 0, 0)
    for token in range(layout.block_size):
        shade = color if token == marked else style.lighter(color, 0.7 + 0.18 * (token % 2))
        for place in _dims(layout, block, head, token):
            row, column = divmod(element(*place) - start, columns)
            style.add(axes, Rectangle((column, row), 1, 1, facecolor=shade, edgecolor="none"))
    rows = layout.head_size * layout.block_size // columns
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.set_yticks(
        [row + 0.5 for row in range(rows)],
        [f"{(start + row * columns) * itemsize}" for row in range(rows)],
    )
    ticks = range(0, columns + 1, 16)
    axes.set_xticks(list(ticks), [f"+{tick * itemsize}" for tick in ticks])
    axes.set_ylabel("byte")
    axes.tick_params(length=2, labelsize=7.5)
    for row in range(1, rows):
        axes.axhline(row, color=style.PAPER, linewidth=1.5)


@style.styled
def draw_neighbours(vllm: VllmLayout, plain: PlainLayout) -> Figure:
    """Two reads from both layouts: 16 bytes of K of every token of a block, by as many threads;
    and dimension 0 of V of every token, by one thread. The bytes of block 0, head 0."""
    x, itemsize, tokens = vllm.x, vllm.dtype.itemsize, range(vllm.block_size)
    questions = (
        (f"K: {len(tokens)} threads, each reads {x} numbers of another token",
         [(0, 0, token, dim) for token in tokens for dim in range(x)], style.K, "k_element"),
        (f"V: one thread reads one dimension of {len(tokens)} tokens",
         [(0, 0, token, 0) for token in tokens], style.V, "v_element"),
    )  # fmt: skip
    answers = [
        [byte_runs(getattr(layout, element), itemsize, places) for layout in (vllm, plain)]
        for _, places, _, element in questions
    ]
    k_sectors = [sectors(runs) for runs in answers[0]]
    v_loads = [len(runs) for runs in answers[1]]
    figure, axes = style.new_figure(
        f"In vLLM's layout, {len(tokens)} threads touch {k_sectors[0]} sectors of K, not "
        f"{k_sectors[1]}; a thread needs {v_loads[0]} load for V, not {v_loads[1]}",
        2.7,
    )
    size = vllm.head_size * vllm.block_size * itemsize
    y = 0.0
    labels = ([f"{count} sectors" for count in k_sectors], [f"{count} loads" for count in v_loads])
    for (text, _, color, _), pair, notes in zip(questions, answers, labels, strict=True):
        axes.text(0, y + 0.4, text, va="center")
        for layout, runs, note in zip((vllm, plain), pair, notes, strict=True):
            y += 1
            _draw_strip(axes, y, size, runs, color)
            note = note.removesuffix("s") if note.startswith("1 ") else note
            axes.text(size + 8, y + 0.35, f"{layout.name}: {note}", va="center")
        y += 1.3
    axes.set_xlim(-2, size * 1.27)
    axes.set_ylim(y + 0.2, -0.1)
    axes.set_yticks([])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xticks(range(0, size + 1, 64))
    axes.set_xlabel("byte in the block; a box is a sector of 32 bytes", loc="left")
    return figure


def _draw_strip(
    axes: Axes, y: float, size: int, runs: Sequence[tuple[int, int]], color: str
) -> None:
    """The memory of a block and head as boxes of one sector; what is read is coloured."""
    for first, end in runs:
        style.add(axes, Rectangle((first, y), end - first, 0.7, facecolor=color, edgecolor="none"))
    for first in range(0, size, SECTOR):
        style.add(
            axes,
            Rectangle((first, y), SECTOR, 0.7, fill=False, edgecolor=style.QUIET, linewidth=0.7),
        )
