"""Two reads of K and V in both layouts, by the layouts' own addresses (notebook 04)."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.paging.layouts import PlainLayout, VllmLayout
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


@style.styled
def draw_neighbours(vllm: VllmLayout, plain: PlainLayout) -> Figure:
    """Two reads from both layouts: 16 bytes of K of every token of a block, by as many threads;
    and dimension 0 of V of every token, by one thread. The bytes of block 0, head 0."""
    x, itemsize, tokens = vllm.x, vllm.dtype.itemsize, range(vllm.block_size)
    questions = (
        (f"K: {len(tokens)} threads, each reads {x} elements of another token",
         [(0, 0, token, dim) for token in tokens for dim in range(x)], style.K, "k_element"),
        (f"V: one thread reads one element of {len(tokens)} tokens",
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
