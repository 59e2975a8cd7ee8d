"""The figures of notebook 08: who reads what in the first paged kernel, drawn from its traces."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.kernels.launch import prepare_naive
from pa_tutorial.simt import Trace
from pa_tutorial.viz import style
from pa_tutorial.walk.cases import WORKED_EXAMPLE
from pa_tutorial.walk.problem import DecodeProblem

SIZES = {"num_heads": 4, "num_kv_heads": 2, "head_size": 32, "block_size": 8}
# The worked example is sequence 0; one shorter and one longer sequence come with it.
BATCH = DecodeProblem(
    "batch",
    "three sequences of different length",
    "see notebook 08",
    seq_lens=(11, 5, 20),
    tables=((5, 2), (1,), (6, 3, 4)),
    dtype=torch.float16,
    rounded_to=0.125,
    **SIZES,
)
MARKED = (0, 9)  # threads whose addresses are written out


def trace_of(problem: DecodeProblem) -> Trace:
    """All thread blocks of the kernel on this problem."""
    return prepare_naive(**vars(problem.paged("vllm"))).simulate(trace="all").trace


# The grid ------------------------------------------------------------------------------------


def keys_read(trace: Trace, block: int | tuple[int, ...]) -> dict[int, list[tuple[int, ...]]]:
    """Thread -> indices (block, KV head, piece, offset, place) of K that it reads, in order."""
    reads = trace.only(array="k_cache", block=block)
    places = np.stack(reads.the_array().indices(reads.records.address), axis=1).tolist()
    found: dict[int, list[tuple[int, ...]]] = {}
    for thread, place in zip(reads.threads.tolist(), places, strict=True):
        found.setdefault(thread, []).append(tuple(place))
    return found


@style.styled
def draw_grid(trace: Trace, seq_lens: Sequence[int]) -> Figure:
    """A box for each thread block: which blocks of which KV head its threads read."""
    num_heads, num_seqs, _ = trace.grid
    num_threads = trace.block[0]
    num_kv_heads = trace.only(array="k_cache").the_array().shape[1]
    figure, axes = style.new_figure(
        f"{num_heads * num_seqs} thread blocks, one for each head of each sequence"
        + _sharing(trace),
        0.5 + 0.78 * num_seqs,
    )
    style.bare(axes, num_heads, num_seqs)
    axes.set_aspect("auto")
    axes.set_ylim(num_seqs, -0.32)
    axes.set_xlim(-0.62, num_heads)
    quiet = {"va": "center", "color": style.QUIET}
    for head in range(num_heads):
        axes.text(head + 0.48, -0.18, f"query head {head}", ha="center", **quiet)
    for sequence, seq_len in enumerate(seq_lens):
        words = f"sequence {sequence}\n{seq_len} tokens"
        axes.text(-0.04, sequence + 0.45, words, ha="right", **quiet)
        for head in range(num_heads):
            keys = keys_read(trace, (head, sequence))
            first = [places[0] for _, places in sorted(keys.items())]
            blocks = list(dict.fromkeys(place[0] for place in first))
            (kv_head,) = {place[1] for places in keys.values() for place in places}
            hue = style.lighter(style.SEQUENCES[sequence], 0.45 + 0.5 * kv_head / num_kv_heads)
            _thread_block(axes, head, sequence, hue, len(keys) / num_threads)
            name = "block" if len(blocks) == 1 else "blocks"
            words = f"{name} {', '.join(map(str, blocks))}\nKV head {kv_head}"
            words += f"\n{len(keys)} of {num_threads} threads"
            axes.text(head + 0.48, sequence + 0.44, words, ha="center", va="center")
    return figure


def _sharing(trace: Trace) -> str:
    """In words, how many thread blocks of sequence 0 read what thread block 0 reads."""
    firsts = [keys_read(trace, (head, 0))[0] for head in range(trace.grid[0])]
    count = firsts.count(firsts[0])
    return f"; {count} query heads read the same K" if count > 1 else ""


def _thread_block(axes: Axes, x: float, y: float, color: str, at_work: float) -> None:
    """A box, and a strip at its lower end: the part of its threads that have a token."""
    style.add(axes, Rectangle((x + 0.02, y + 0.04), 0.92, 0.86, facecolor=color))
    strip = {"height": 0.07, "linewidth": 0}
    style.add(axes, Rectangle((x + 0.02, y + 0.83), 0.92, facecolor=style.EMPTY, **strip))
    style.add(axes, Rectangle((x + 0.02, y + 0.83), 0.92 * at_work, facecolor=style.INK, **strip))


def draw_grid_of_batch() -> Figure:
    return draw_grid(trace_of(BATCH), BATCH.seq_lens)


# Addresses -----------------------------------------------------------------------------------

CELL, ROW = 0.29, 0.21  # inches: a slot in the picture
LEFT, GAP = 1.42, 0.62  # inches: the words at the left, and between two blocks


@style.styled
def draw_addresses(trace: Trace, block_table: Sequence[int], marked: Sequence[int]) -> Figure:
    """From thread to token, block and byte of K, for thread block 0.

    block_table  as the kernel gets it, padding included
    marked       threads whose addresses are written out; the last one gives the title
    """
    keys = keys_read(trace, 0)
    array = trace.only(array="k_cache").the_array()
    _, _, num_pieces, block_size, _ = array.shape
    last = marked[-1]
    number, _, _, offset, _ = keys[last][0]
    logical = last // block_size
    figure, axes = style.new_figure(
        f"Thread {last} takes token {last}: logical block {logical}, offset {offset}; "
        f"the block table says block {number}",
        2.45 + ROW * (num_pieces + len(marked)),
    )
    axes.set_xlim(0, style.WIDTH)
    axes.axis("off")
    y = _lookup(axes, keys, block_table, block_size, trace.block[0], marked)
    y = _memory(axes, keys, array, block_table, marked, y + 0.4)
    axes.set_ylim(_sums(axes, keys, array, marked, y + 0.32), 0)
    return figure


def _x(token: int, block_size: int) -> float:
    """Where a token stands: there is a gap after each block."""
    return LEFT + CELL * token + GAP * (token // block_size)


def _box(axes: Axes, x: float, y: float, width: float, color: str, text: str, **options) -> None:
    unused = options.pop("unused", False)
    face, hatch = (style.EMPTY, style.UNUSED_HATCH) if unused else (color, None)
    look = {"facecolor": face, "edgecolor": style.PAPER, "hatch": hatch}
    style.add(axes, Rectangle((x, y), width, ROW, linewidth=1.2, **look))
    ink = style.INK if unused else style.ink_on(color)
    middle = x + width / 2, y + ROW / 2
    paper = {"facecolor": style.EMPTY, "edgecolor": "none", "pad": 1} if unused else None
    axes.text(*middle, text, ha="center", va="center", color=ink, bbox=paper, **options)


def _words(axes: Axes, x: float, y: float, text: str, align: str = "right") -> None:
    axes.text(x, y + ROW / 2, text, ha=align, va="center", color=style.QUIET)


def _lookup(
    axes: Axes,
    keys: dict[int, list],
    block_table: Sequence[int],
    block_size: int,
    num_threads: int,
    marked: Sequence[int],
) -> float:
    """Threads, their logical blocks, and the row of the block table; returns where it ends."""
    hue = style.SEQUENCES[0]
    rows = [0.05 + 1.25 * ROW * row for row in range(3)]
    for y, text in zip(rows, ("thread, token", "logical block", "block table"), strict=True):
        _words(axes, LEFT - 0.1, y, text)
    for thread in sorted(keys):
        color = hue if thread in marked else style.lighter(hue)
        _box(axes, _x(thread, block_size), rows[0], CELL, color, str(thread))
    end = len(keys)
    _words(axes, _x(end, block_size) + 0.08, rows[0], f"{end} to {num_threads - 1}: none", "left")
    for logical in range(-(-end // block_size)):
        tokens = min(block_size, end - logical * block_size)
        x, width = _x(logical * block_size, block_size), CELL * tokens
        shown = [token for token in marked if token // block_size == logical and tokens > 2]
        text = f"{shown[0]} // {block_size} = {logical}" if shown else str(logical)
        _box(axes, x, rows[1], width, style.lighter(hue, 0.8), text)
        _box(axes, x, rows[2], width, style.lighter(hue, 0.8), str(block_table[logical]))
    padding = ", ".join(map(str, block_table[-(-end // block_size) :]))
    _words(axes, _x(end, block_size) + 0.08, rows[2], f"padding: {padding}", "left")
    return rows[2] + ROW


def _memory(
    axes: Axes,
    keys: dict[int, list],
    array: object,
    block_table: Sequence[int],
    marked: Sequence[int],
    top: float,
) -> float:
    """The blocks that are read, piece by piece: who reads which slot; returns where it ends."""
    _, _, num_pieces, block_size, _ = array.shape
    steps = _steps(array)
    readers = {place[:4]: thread for thread, places in keys.items() for place in places}
    kv_head = next(iter(readers))[1]
    for logical in range(-(-len(keys) // block_size)):
        block, left = block_table[logical], _x(logical * block_size, block_size)
        width = CELL * block_size
        arrow = {"arrowstyle": "-|>", "color": style.QUIET, "shrinkA": 0, "shrinkB": 0}
        tail = left + CELL * min(block_size, len(keys) - logical * block_size) / 2
        axes.annotate("", (tail, top - 0.2), (tail, top - 0.39), arrowprops=arrow)
        words = f"block {block}, KV head {kv_head}"
        axes.text(left + width, top - 0.13, words, ha="right", va="center", weight="bold")
        for piece in range(num_pieces):
            y = top + ROW * piece
            byte = block * steps[0] + kv_head * steps[1] + piece * steps[2]
            _words(axes, left - 0.06, y, f"{byte}")
            for offset in range(block_size):
                thread = readers.get((block, kv_head, piece, offset))
                color = style.K if thread in marked else style.lighter(style.K, 0.7)
                text = "" if thread is None else str(thread)
                box = left + CELL * offset, y, CELL, color, text
                _box(axes, *box, unused=thread is None)
    for piece in range(num_pieces):
        _words(axes, 0.02, top + ROW * piece, f"piece {piece}", "left")
    _words(axes, LEFT - 0.06, top - ROW - 0.02, "byte", "right")
    return top + ROW * num_pieces


def _sums(axes: Axes, keys: dict[int, list], array: object, marked: Sequence[int], y: float):
    """The addresses of the marked threads, each a sum of five terms; returns where it ends."""
    steps = _steps(array)
    columns = [1.75 + 0.95 * column for column in range(len(steps))]
    names = ("block", "KV head", "piece", "offset", "place")
    for x, name in zip(columns, names, strict=True):
        axes.text(x, y, name, ha="center", va="center", color=style.QUIET)
    axes.text(6.62, y, "byte", ha="center", va="center", color=style.QUIET)
    lines = [(thread, 0) for thread in marked] + [(marked[-1], len(keys[marked[-1]]) - 1)]
    for thread, d in lines:
        y += ROW
        axes.text(0.02, y, f"thread {thread}, d = {d}", va="center")
        place = keys[thread][d]
        for x, index, step in zip(columns, place, steps, strict=True):
            axes.text(x, y, f"{index} · {step}", ha="center", va="center")
        for before, after in pairwise(columns):
            axes.text((before + after) / 2, y, "+", ha="center", va="center")
        byte = sum(index * step for index, step in zip(place, steps, strict=True))
        axes.text(6.1, y, "=", ha="center", va="center")
        axes.text(6.62, y, str(byte), ha="center", va="center", weight="bold")
    return y + ROW


def _steps(array: object) -> list[int]:
    """Bytes that one step of each index passes over."""
    return [stride * array.dtype.itemsize for stride in array.strides]


def draw_worked_addresses() -> Figure:
    table = WORKED_EXAMPLE.paged("vllm").block_tables[0].tolist()
    return draw_addresses(trace_of(WORKED_EXAMPLE), table, MARKED)
