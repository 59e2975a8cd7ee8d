"""Vecs read element by element and at once: two runs of one kernel, drawn from their traces."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.simt import Trace, global_traffic
from pa_tutorial.simt.traffic import SECTOR
from pa_tutorial.viz import style
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, reads_of_weights, run_v1

SHOWN = 2 * SECTOR  # bytes of each array: what fits into a picture


def reference_runs() -> tuple[Run, Run]:
    """The kernel at the reference sizes: with element_loads, and with vector_loads."""
    return run_v1(REFERENCE), run_v1(REFERENCE, loads=vector_loads)


# Who reads which bytes -----------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """What one thread reads with one request; the byte is counted from the start of a block."""

    request: int
    thread: int
    byte: int
    num_bytes: int


def first_reads(run: Run, array: str) -> list[Read]:
    """The reads of the first bytes of the first block: who takes part in which request."""
    block = int(run["block_tables"][0, 0])
    start = run.start_of_block(block) * run.geometry.ITEMSIZE
    trace = run.trace.only(array=array)
    byte = trace.records.address - trace.the_array().address - start
    here = (byte >= 0) & (byte < SHOWN)
    _, request = np.unique(trace.records.instruction[here], return_inverse=True)
    columns = request, trace.threads[here], byte[here], trace.records.num_bytes[here]
    return [Read(*map(int, read)) for read in zip(*columns, strict=True)]


@style.styled
def draw_first_reads(elements: Run, vectors: Run) -> Figure:
    """A row for each request, a column for each element: the thread that reads it."""
    panels = {
        f"{letter}, {way}": (color, first_reads(run, array))
        for letter, array, color in (("K", "k_cache", style.K), ("V", "v_cache", style.V))
        for way, run in (("element by element", elements), ("a vec at once", vectors))
    }
    counts = [1 + max(read.request for read in reads) for _, reads in panels.values()]
    figure, all_axes = style.new_figure(
        f"A vec of K is read by {counts[0]} requests or by {counts[1]}, "
        f"one of V by {counts[2]} or by {counts[3]}: the same bytes, the same threads",
        0.9 + 0.21 * sum(counts) + 0.3 * len(panels),
        nrows=len(panels),
        height_ratios=[count + 0.9 for count in counts],
    )
    itemsize = elements.geometry.ITEMSIZE
    for axes, count, (name, (color, reads)) in zip(all_axes, counts, panels.items(), strict=True):
        times = f"{count} requests, a row each" if count > 1 else "1 request"
        axes.set_title(f"{name}: {times}", weight="normal")
        _requests(axes, reads, count, itemsize, color)
    return figure


def _requests(axes: Axes, reads: list[Read], count: int, itemsize: int, color: str) -> None:
    columns = SHOWN // itemsize
    style.bare(axes, columns, count)
    axes.set_aspect("auto")
    for row in range(count):
        for column in range(columns):
            style.cell(axes, column, row, style.EMPTY)
    for read in reads:
        x, width = read.byte / itemsize, read.num_bytes / itemsize
        shade = style.lighter(color, 0.5 * (read.thread % 2))
        box = (x, read.request), width, 1
        style.add(axes, Rectangle(*box, facecolor=shade, edgecolor=style.PAPER, linewidth=1.2))
        text = str(read.thread) if width == 1 else f"thread {read.thread}"
        middle = x + width / 2, read.request + 0.5
        axes.text(*middle, text, ha="center", va="center", color=style.ink_on(shade))
    for byte in range(0, SHOWN + 1, SECTOR):
        side = {0: "left", SHOWN: "right"}.get(byte, "center")
        words = "byte 0" if byte == 0 else str(byte)
        axes.text(byte / itemsize, count + 0.45, words, ha=side, va="center", color=style.QUIET)
    axes.set_ylim(count + 0.9, -0.05)


def draw_reference_first_reads() -> Figure:
    return draw_first_reads(*reference_runs())


# How often the kernel asks -------------------------------------------------------------------

WAYS = "by element (light)", "by vec"
COLORS = {"q": style.Q, "K": style.K, "V": style.V, "q_vecs": style.Q, "weights": style.LOGITS}


def accesses(run: Run) -> dict[str, Trace]:
    """What is read vec by vec: the reads of q, K and V, then those of shared memory."""
    arrays = {"q": "q", "K": "k_cache", "V": "v_cache", "q_vecs": "q_vecs"}
    found = {name: run.trace.only(array=array, kind="read") for name, array in arrays.items()}
    return found | {"weights": reads_of_weights(run.trace)}


@style.styled
def draw_requests(elements: Run, vectors: Run) -> Figure:
    """Requests of what is read vec by vec, and the sectors that those of q, K and V touch."""
    before, after = accesses(elements), accesses(vectors)
    requests = {
        name: (before[name].num_instructions, after[name].num_instructions) for name in before
    }
    sectors = {name: (_sectors(before[name]), _sectors(after[name])) for name in ("q", "K", "V")}
    most, least = (sectors["K"][run] + sectors["V"][run] for run in (0, 1))
    figure, (left, right) = style.new_figure(
        f"K and V: {most:,} sectors asked for become {least:,}", 2.6, ncols=2
    )
    _bars(left, requests, "requests for these arrays, one thread block", WAYS)
    _bars(right, sectors, "sectors that these requests touch")
    return figure


def _sectors(trace: Trace) -> int:
    return global_traffic(trace).total("sectors")


def _bars(
    axes: Axes, counts: Mapping[str, tuple[int, int]], title: str, ways: tuple[str, str] = ("", "")
) -> None:
    """Two bars for each array; `ways` stand at the first two."""
    axes.set_title(title, weight="normal")
    most = max(max(pair) for pair in counts.values())
    for row, (name, pair) in enumerate(counts.items()):
        for place, number in enumerate(pair):
            y, color = row + 0.36 * place - 0.18, COLORS[name]
            color = color if place else style.lighter(color)
            axes.barh(y, number, 0.34, color=color)
            words = f"{number:,} {ways[place]}" if row == 0 else f"{number:,}"
            axes.annotate(
                words, (number, y), (3, 0), textcoords="offset points", va="center", size=8
            )
    axes.set_xlim(0, 1.25 * most)
    axes.set_ylim(len(counts) - 0.5, -0.5)
    axes.set_yticks(range(len(counts)), list(counts))
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def draw_reference_requests() -> Figure:
    return draw_requests(*reference_runs())
