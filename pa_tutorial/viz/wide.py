"""The figure of notebook 12: which thread reads a block's first bytes in which transaction."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.simt import Trace
from pa_tutorial.simt.traffic import SECTOR
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import board, box, note, plural

SHOWN = 2 * SECTOR  # bytes of each array: what fits into a picture
ARRAYS = {"K": ("k_cache", style.K), "V": ("v_cache", style.V)}


@dataclass(frozen=True)
class Read:
    """What one thread reads in one transaction; bytes count from the start of a block."""

    transaction: int
    thread: int
    byte: int
    num_bytes: int


def first_reads(trace: Trace, array: str, start: int) -> list[Read]:
    """The reads from byte `start` on, where a block begins: which thread in which transaction."""
    trace = trace.only(array=array)
    byte = trace.records.address - trace.the_array().address - start
    here = (byte >= 0) & (byte < SHOWN)
    _, transaction = np.unique(trace.records.instruction[here], return_inverse=True)
    columns = transaction, trace.threads[here], byte[here], trace.records.num_bytes[here]
    return [Read(*map(int, read)) for read in zip(*columns, strict=True)]


@style.styled
def draw_first_reads(traces: Mapping[str, Trace], start: int) -> Figure:
    """One line per memory transaction: which bytes of a block each thread reads.

    traces  two ways to load, by name: traces of launches of a v1 kernel on the same step
    start   byte at which the block begins, the same in K and V
    """
    panels = {
        f"{letter}, {way}": (color, first_reads(trace, array, start))
        for letter, (array, color) in ARRAYS.items()
        for way, trace in traces.items()
    }
    counts = [1 + max(read.transaction for read in reads) for _, reads in panels.values()]
    who = [
        {(read.thread, read.byte + i) for read in reads for i in range(read.num_bytes)}
        for _, reads in panels.values()
    ]
    same = ": the same bytes, the same threads" if who[::2] == who[1::2] else ""
    figure, all_axes = style.new_figure(
        f"A vec of K takes {plural(counts[0], 'transaction')} or {counts[1]}, "
        f"a vec of V {counts[2]} or {counts[3]}{same}",
        0.9 + 0.21 * sum(counts) + 0.3 * len(panels),
        nrows=len(panels),
        height_ratios=[count + 0.9 for count in counts],
    )
    for axes, count, (name, (color, reads)) in zip(all_axes, counts, panels.items(), strict=True):
        times = plural(count, "memory transaction") + ", a line each" * (count > 1)
        axes.set_title(f"{name}: {times}", weight="normal")
        _transactions(axes, reads, count, color)
    return figure


def _transactions(axes: Axes, reads: list[Read], count: int, color: str) -> None:
    board(axes, SHOWN, count + 0.9)
    for row in range(count):
        box(axes, 0, row, SHOWN, 1, style.EMPTY, edgecolor="none")
    for read in reads:
        shade = style.lighter(color, 0.5 * (read.thread % 2))
        text = str(read.thread) if read.num_bytes < 4 else f"thread {read.thread}"
        box(axes, read.byte, read.transaction, read.num_bytes, 1, shade, text, linewidth=1.2)
    for byte in range(0, SHOWN + 1, SECTOR):
        side = {0: "left", SHOWN: "right"}.get(byte, "center")
        words = "byte 0" if byte == 0 else str(byte)
        note(axes, byte, count + 0.45, words, side)
