"""The figures of notebook 08: who reads what in the first paged kernel, drawn from its traces."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import board, box, note, write
from simt import Trace
from simt.trace import TracedArray

# The worked example is sequence 0; one shorter and one longer sequence come with it.
BATCH = replace(WORKED_EXAMPLE, seq_lens=(11, 5, 20), tables=((5, 2), (1,), (6, 3, 4)))
Keys = dict[int, list[tuple[int, ...]]]  # thread -> what it reads


def keys_read(trace: Trace, block: int | tuple[int, ...]) -> Keys:
    """Thread -> the indices (block, KV head, piece, offset, place) of K it reads, in order."""
    reads = trace.only(array="k_cache", block=block)
    places = np.stack(reads.the_array().indices(reads.records.address), axis=1).tolist()
    found: Keys = {}
    for thread, place in zip(reads.threads.tolist(), places, strict=True):
        found.setdefault(thread, []).append(tuple(place))
    return found


@style.styled
def draw_grid(trace: Trace, seq_lens: Sequence[int]) -> Figure:
    """One box per thread block: which blocks of which KV head its threads read."""
    num_heads, num_seqs, _ = trace.grid
    num_threads = trace.block[0]
    num_kv_heads = trace.only(array="k_cache").the_array().shape[1]
    title = f"Each head of each sequence has its thread block, {num_heads * num_seqs} in all"
    of_heads = [keys_read(trace, (head, 0)) for head in range(num_heads)]
    count = of_heads.count(of_heads[0])
    title += f"; {count} query heads read the same K" if count > 1 else ""
    figure, axes = style.new_figure(title, 0.5 + 0.78 * num_seqs)
    board(axes, num_heads, num_seqs, -0.62, -0.32)
    for head in range(num_heads):
        note(axes, head + 0.48, -0.18, f"query head {head}")
    for sequence, seq_len in enumerate(seq_lens):
        note(axes, -0.04, sequence + 0.45, f"sequence {sequence}\n{seq_len} tokens", "right")
        for head in range(num_heads):
            keys = keys_read(trace, (head, sequence))
            first = [places[0] for _, places in sorted(keys.items())]
            blocks = list(dict.fromkeys(place[0] for place in first))
            (kv_head,) = {place[1] for places in keys.values() for place in places}
            hue = style.lighter(style.SEQUENCES[sequence], 0.45 + 0.5 * kv_head / num_kv_heads)
            _thread_block(axes, head, sequence, hue, len(keys) / num_threads)
            words = f"block{'s' * (len(blocks) > 1)} {', '.join(map(str, blocks))}"
            words += f"\nKV head {kv_head}\n{len(keys)} of {num_threads} threads"
            write(axes, head + 0.48, sequence + 0.44, words)
    return figure


def _thread_block(axes: Axes, x: float, y: float, color: str, at_work: float) -> None:
    """A box with a strip at its lower end, which shows how many of its threads have a token."""
    box(axes, x + 0.02, y + 0.04, 0.92, 0.86, color, edgecolor="none")
    box(axes, x + 0.02, y + 0.83, 0.92, 0.07, style.EMPTY, linewidth=0)
    box(axes, x + 0.02, y + 0.83, 0.92 * at_work, 0.07, style.INK, linewidth=0)


CELL, ROW = 0.29, 0.21  # inches: a slot in the picture, and narrower where there are many
LEFT, GAP = 1.42, 0.62  # inches: the words at the left, and between two blocks


@style.styled
def draw_addresses(trace: Trace, block_table: Sequence[int], marked: Sequence[int]) -> Figure:
    """From thread to token, block and byte of K, for thread block 0.

    block_table  as the kernel gets it, padding included
    marked       threads whose addresses are written out, if they read K; the last one gives the
                 title
    """
    array, keys = trace.only(array="k_cache").the_array(), keys_read(trace, 0)
    marked = [thread for thread in marked if thread in keys] or [min(keys)]
    reads = Reads(keys, array, block_table, marked, trace.block[0])
    last = marked[-1]
    logical, offset = divmod(last, reads.block_size)
    title = f"Thread {last} takes token {last}, at offset {offset} of logical block {logical}; "
    title += f"the block table says block {block_table[logical]}"
    place = reads.keys[last][0]
    if (place[0], place[3]) != (block_table[logical], offset):
        title += f",\nbut it reads block {place[0]}, offset {place[3]}"
    figure, axes = style.new_figure(title, 2.45 + ROW * (array.shape[2] + len(marked)))
    y = _lookup(axes, reads)
    y = _memory(axes, reads, y + 0.4)
    y = _sums(axes, reads, y + 0.32)
    board(axes, style.WIDTH, y, 0, 0)
    return figure


@dataclass(frozen=True)
class Reads:
    """The reads of K in thread block 0; `marked`: the threads whose addresses are shown."""

    keys: Keys
    array: TracedArray
    block_table: Sequence[int]
    marked: Sequence[int]
    num_threads: int

    @property
    def block_size(self) -> int:
        return self.array.shape[3]

    @property
    def steps(self) -> list[int]:
        """Bytes that one step of each index passes over."""
        return [stride * self.array.dtype.itemsize for stride in self.array.strides]

    @property
    def cell(self) -> float:
        """The width of a slot."""
        blocks = -(-len(self.keys) // self.block_size)
        room = style.WIDTH - LEFT - GAP * (blocks - 1) - 0.1
        return min(CELL, room / (blocks * self.block_size))

    def x(self, token: int) -> float:
        """The position of a token; there is a gap after each block."""
        return LEFT + self.cell * token + GAP * (token // self.block_size)


def _words(axes: Axes, x: float, y: float, text: str, align: str = "right") -> None:
    note(axes, x, y + ROW / 2, text, align)


def _lookup(axes: Axes, reads: Reads) -> float:
    """Threads, their logical blocks, and the row of the block table; returns the lower edge."""
    hue, end, size = style.SEQUENCES[0], len(reads.keys), reads.block_size
    rows = [0.05 + 1.25 * ROW * row for row in range(3)]
    for y, text in zip(rows, ("thread, token", "logical block", "block table"), strict=True):
        _words(axes, LEFT - 0.1, y, text)
    for thread in sorted(reads.keys):
        color = hue if thread in reads.marked else style.lighter(hue)
        box(axes, reads.x(thread), rows[0], reads.cell, ROW, color, thread, linewidth=1.2)
    words = f"{end} to {reads.num_threads - 1}: none"
    _words(axes, reads.x(end) + 0.08, rows[0], words, "left")
    for logical in range(-(-end // size)):
        tokens = range(logical * size, min(end, logical * size + size))
        shown = [token for token in reads.marked if token in tokens and len(tokens) > 2]
        text = f"{shown[0]} // {size} = {logical}" if shown else str(logical)
        for y, words in ((rows[1], text), (rows[2], reads.block_table[logical])):
            place = reads.x(tokens[0]), y, reads.cell * len(tokens), ROW
            box(axes, *place, style.lighter(hue, 0.8), words, linewidth=1.2)
    padding = ", ".join(map(str, reads.block_table[-(-end // size) :]))
    _words(axes, reads.x(end) + 0.08, rows[2], f"padding: {padding}", "left")
    return rows[2] + ROW


def _memory(axes: Axes, reads: Reads, top: float) -> float:
    """The blocks that are read, one piece at a time, with the readers; returns the lower edge."""
    _, _, num_pieces, size, _ = reads.array.shape
    keys, steps = reads.keys, reads.steps
    readers = {place[:4]: thread for thread, places in keys.items() for place in places}
    kv_head = next(iter(readers))[1]
    for logical in range(-(-len(keys) // size)):
        block, left = reads.block_table[logical], reads.x(logical * size)
        line = {"arrowstyle": "-|>", "color": style.QUIET, "shrinkA": 0, "shrinkB": 0}
        tail = left + reads.cell * min(size, len(keys) - logical * size) / 2
        axes.annotate("", (tail, top - 0.2), (tail, top - 0.39), arrowprops=line)
        words, right = f"block {block}, KV head {kv_head}", left + reads.cell * size
        write(axes, right, top - 0.13, words, "right", weight="bold")
        for piece in range(num_pieces):
            y = top + ROW * piece
            byte = block * steps[0] + kv_head * steps[1] + piece * steps[2]
            _words(axes, left - 0.06, y, f"{byte}")
            for offset in range(size):
                thread = readers.get((block, kv_head, piece, offset))
                place = left + reads.cell * offset, y, reads.cell
                _slot(axes, *place, thread, thread in reads.marked)
    for piece in range(num_pieces):
        _words(axes, 0.02, top + ROW * piece, f"piece {piece}", "left")
    _words(axes, LEFT - 0.06, top - ROW - 0.02, "byte", "right")
    return top + ROW * num_pieces


def _slot(axes: Axes, x: float, y: float, width: float, thread: int | None, marked: bool) -> None:
    """A vec of K with its reader; hatched if no thread reads it."""
    color = style.K if marked else style.lighter(style.K, 0.7)
    look = {"hatch": style.UNUSED_HATCH} if thread is None else {}
    color, text = (style.EMPTY, "") if thread is None else (color, thread)
    box(axes, x, y, width, ROW, color, text, linewidth=1.2, **look)


def _sums(axes: Axes, reads: Reads, y: float) -> float:
    """The addresses of the marked threads, each a sum of five terms; returns the lower edge."""
    keys, steps, marked = reads.keys, reads.steps, reads.marked
    columns = [1.75 + 0.95 * column for column in range(len(steps))]
    names = ("block", "KV head", "piece", "offset", "place", "byte")
    for x, name in zip((*columns, 6.62), names, strict=True):
        note(axes, x, y, name)
    lines = [(thread, 0) for thread in marked] + [(marked[-1], len(keys[marked[-1]]) - 1)]
    for thread, d in lines:
        y += ROW
        write(axes, 0.02, y, f"thread {thread}, d = {d}", "left")
        place = keys[thread][d]
        for x, index, step in zip(columns, place, steps, strict=True):
            write(axes, x, y, f"{index} · {step}")
        for before, after in pairwise(columns):
            write(axes, (before + after) / 2, y, "+")
        write(axes, 6.1, y, "=")
        byte = sum(index * step for index, step in zip(place, steps, strict=True))
        write(axes, 6.62, y, byte, weight="bold")
    return y + ROW
