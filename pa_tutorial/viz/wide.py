"""One vec, read element by element and at once, drawn from traces."""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.simt import Trace, global_traffic
from pa_tutorial.simt.traffic import SECTOR
from pa_tutorial.viz import style
from pa_tutorial.viz.kernel_runs import REFERENCE, Run, run_v1

SHOWN = 2 * SECTOR  # bytes of each array: what fits into a picture
COLORS = {
    "q": style.Q,
    "q_vecs": style.Q,
    "k_cache": style.K,
    "shared_mem": style.LOGITS,
    "v_cache": style.V,
}


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
    runs = {"element by element": elements, "a vec at once": vectors}
    panels = {
        (array, name): first_reads(run, array)
        for array in ("k_cache", "v_cache")
        for name, run in runs.items()
    }
    counts = {key: 1 + max(read.request for read in reads) for key, reads in panels.items()}
    k, v = (counts[array, "element by element"] for array in ("k_cache", "v_cache"))
    figure, all_axes = style.new_figure(
        f"The same bytes, with the same threads: {k} requests for K and {v} for V become one each",
        1.0 + 0.21 * sum(counts.values()) + 0.3 * len(panels),
        nrows=len(panels),
        height_ratios=[count + 0.9 for count in counts.values()],
    )
    itemsize = elements.geometry.ITEMSIZE
    for axes, ((array, name), reads) in zip(all_axes, panels.items(), strict=True):
        what = "K: two tokens in four" if array == "k_cache" else "V"
        del what
        _requests(axes, reads, itemsize, COLORS[array])
        letter = array[0].upper()
        count = counts[array, name]
        heading = f"{letter}, {name}: {count} request{'s' if count > 1 else ''}"
        axes.set_title(heading, weight="normal")
    return figure


def _requests(axes: Axes, reads: list[Read], itemsize: int, color: str) -> None:
    count = 1 + max(read.request for read in reads)
    columns = SHOWN // itemsize
    style.bare(axes, columns, count)
    axes.set_aspect("auto")
    for row in range(count):
        for column in range(columns):
            style.cell(axes, column, row, style.EMPTY)
    for read in reads:
        x, width = read.byte // itemsize, read.num_bytes // itemsize
        shade = style.lighter(color, 0.45 * (read.thread % 2))
        box = Rectangle((x, read.request), width, 1, facecolor=shade, edgecolor=style.PAPER)
        axes.add_patch(box)
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

WHAT = {
    "q": "q, global",
    "k_cache": "K, global",
    "v_cache": "V, global",
    "q_vecs": "q_vecs, shared",
    "shared_mem": "weights for V, shared",
}


def accesses(run: Run) -> dict[str, Trace]:
    """The accesses that the loads decide about, by array."""
    found = {name: run.trace.only(array=name) for name in ("q", "k_cache", "v_cache", "q_vecs")}
    logits = run.trace.only(array="shared_mem")
    sites = [number for number, site in enumerate(run.trace.sites) if site.function == "load_logits"]
    return found | {"shared_mem": logits.only(place=sites)}
