"""Which multiprocessor of a GPU has work, and how long: v1 beside v2.

A model, not a measurement: a multiprocessor works on one thread block at a time, a thread block
takes as long as it has tokens, and the next one goes to whoever is free first. On a GPU, several
thread blocks share a multiprocessor; what it reads in all stays the same.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.kernels.choose import VLLM_PARTITION_SIZE
from pa_tutorial.simt.gpus import H100, Gpu
from pa_tutorial.viz import style

NUM_HEADS = 32
ONE_LONG = (4096,)
MIXED = (4096, 1024, 512, 512)


@dataclass(frozen=True)
class Piece:
    """One thread block on its multiprocessor, from one token of its time to another."""

    multiprocessor: int
    sequence: int
    start: int
    end: int


def thread_blocks(
    seq_lens: Sequence[int], num_heads: int, partition_size: int = 0
) -> list[tuple[int, int]]:
    """(sequence, tokens) of each thread block that has tokens, in the order of the grid.

    partition_size  0: v1, one thread block reads the whole sequence
    """
    size = partition_size or max(seq_lens)
    return [
        (sequence, min(size, seq_len - start))
        for start in range(0, max(seq_lens), size)
        for sequence, seq_len in enumerate(seq_lens)
        for _ in range(num_heads)
        if start < seq_len
    ]


def schedule(work: Sequence[tuple[int, int]], num_multiprocessors: int) -> list[Piece]:
    """Each thread block, in this order, goes to the multiprocessor that is free first."""
    free = [(0, number) for number in range(num_multiprocessors)]
    pieces = []
    for sequence, tokens in work:
        start, number = heapq.heappop(free)
        pieces.append(Piece(number, sequence, start, start + tokens))
        heapq.heappush(free, (start + tokens, number))
    return pieces


def end_of(pieces: Sequence[Piece]) -> int:
    """When the last multiprocessor has finished."""
    return max(piece.end for piece in pieces)


def busy(pieces: Sequence[Piece], num_multiprocessors: int) -> float:
    """The share of all multiprocessors' time that is work, until the last one has finished."""
    done = sum(piece.end - piece.start for piece in pieces)
    return done / (num_multiprocessors * end_of(pieces))


@style.styled
def draw_idle(
    batches: Sequence[Sequence[int]],
    num_heads: int,
    partition_size: int = VLLM_PARTITION_SIZE,
    gpu: Gpu = H100,
) -> Figure:
    """Left v1, right v2; a row of panels for each batch, a line for each multiprocessor."""
    count = gpu.num_multiprocessors
    found = [
        [schedule(thread_blocks(lens, num_heads, size), count) for size in (0, partition_size)]
        for lens in batches
    ]
    idle = count - len({piece.multiprocessor for piece in found[0][0]})
    figure, panels = style.new_figure(
        f"One sequence: v1 leaves {idle} of {count} multiprocessors idle, v2 has work for all",
        1.0 + 1.75 * len(batches),
        ncols=2,
        nrows=len(batches),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for row, (lens, pair) in enumerate(zip(batches, found, strict=True)):
        for axes, pieces, name in zip(panels[row], pair, ("v1", "v2"), strict=True):
            tokens = " + ".join(f"{n:,}" for n in lens)
            axes.set_title(f"{name}: {tokens} tokens", weight="normal")
            _draw_pieces(axes, pieces, count)
    longest = max(end_of(pieces) for pair in found for pieces in pair)
    panels[0, 0].set_xlim(0, 1.02 * longest)
    panels[0, 0].set_ylim(count, 0)
    ticks = range(0, longest + 1, longest // 4)
    panels[0, 0].set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    for axes in panels[:, 0]:
        axes.set_ylabel(f"{count} multiprocessors")
        axes.set_yticks([])
    for axes in panels[-1]:
        axes.set_xlabel("time, as tokens of one thread block")
    return figure


def _draw_pieces(axes: Axes, pieces: Sequence[Piece], count: int) -> None:
    end = end_of(pieces)
    idle = {"facecolor": style.EMPTY, "hatch": style.UNUSED_HATCH, "linewidth": 0}
    style.add(axes, Rectangle((0, 0), end, count, **idle))
    for piece in pieces:
        bar = piece.end - piece.start, 1
        corner, color = (piece.start, piece.multiprocessor), style.SEQUENCES[piece.sequence]
        style.add(axes, Rectangle(corner, *bar, facecolor=color, linewidth=0))
    ends, places = zip(*((piece.end, piece.multiprocessor) for piece in pieces), strict=True)
    axes.vlines(ends, places, [place + 1 for place in places], color=style.PAPER, linewidth=0.8)
    words = f"ends at {end:,}\n{100 * busy(pieces, count):.0f} % of the time is work"
    behind = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 2}
    place = 0.97, 0.06
    axes.text(*place, words, transform=axes.transAxes, ha="right", va="bottom", bbox=behind)


def draw_idle_of_two_batches() -> Figure:
    return draw_idle((ONE_LONG, MIXED), NUM_HEADS)
