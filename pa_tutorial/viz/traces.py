"""Figures of notebook 09: which thread accesses which bytes, drawn from a kernel's trace."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import board, box, cell, note, span
from simt.gpus import WARP_SIZE
from simt.trace import Trace
from simt.traffic import SECTOR, global_traffic, units

SHOWN = 8 * SECTOR  # bytes: the addresses of a whole warp would be too fine to see


@style.styled
def draw_walk(traces: Mapping[str, Trace], title: str) -> Figure:
    """The addresses of a warp: a line per transaction, a column per byte of the array, for as many
    bytes as eight sectors have.

    traces  heading -> accesses to one array by one warp; one panel each
    """
    most = max(trace.num_instructions for trace in traces.values())
    figure, panels = style.new_figure(
        title, 1.2 + 0.16 * most, ncols=len(traces), squeeze=False, sharey=True
    )
    for axes, (heading, trace) in zip(panels[0], traces.items(), strict=True):
        table = global_traffic(trace)
        sectors, ideal = table.total("sectors"), table.total("ideal sectors")
        axes.set_title(f"{heading}: {sectors:,} sectors, {ideal:,} at best", weight="normal")
        _walk(axes, trace)
    panels[0][0].set_ylabel("memory transaction")
    return figure


def _walk(axes: Axes, trace: Trace) -> None:
    array, records = trace.the_array(), trace.records
    _, transaction = np.unique(records.instruction, return_inverse=True)
    record, sector = units(records, SECTOR)
    first = sector * SECTOR - array.address
    low, high = int(first.min()), min(int(first.max()) + SECTOR, int(first.min()) + SHOWN)
    for row, x in sorted({*zip(transaction[record].tolist(), first.tolist(), strict=True)}):
        if x < high:
            box(axes, x, row + 0.1, SECTOR, 0.8, style.lighter(style.K))
    begin = (records.address - array.address).tolist()
    wanted = {*zip(transaction.tolist(), begin, records.num_bytes.tolist(), strict=True)}
    for row, x, size in sorted(wanted):
        if x < high:
            box(axes, x, row + 0.1, size, 0.8, style.K, edgecolor="none")
    axes.set_xlim(low, high)
    axes.set_ylim(int(transaction.max()) + 1.2, -0.2)
    axes.set_xticks(np.linspace(low, high, 5, dtype=int))
    axes.set_yticks([0.5, transaction.max() + 0.5], ["first", "last"])
    axes.set_xlabel(f"first {high - low} bytes of {array.name}; faint: sectors transferred")


@style.styled
def draw_thread_map(
    traces: Mapping[str, Trace], title: str, group: int, row_name: str, run_name: str
) -> Figure:
    """Which thread touches which element with the first warp instruction; below, the sectors.

    traces   heading -> accesses to one array with rows of whole sectors; one panel each. Its last
             two axes run along a row, with a gap after each run of the last one.
    group    neighbouring lanes that share a shade; a later warp is lighter
    row_name, run_name   words for the rows, and for the runs in a row
    """
    shapes = [_rows_runs_elements(trace) for trace in traces.values()]
    heights = [num_rows + 2 for num_rows, _, _ in shapes]
    options = {"nrows": len(traces), "squeeze": False, "height_ratios": heights}
    figure, panels = style.new_figure(title, 0.4 + sum(0.22 * n + 0.25 for n in heights), **options)
    for axes, heading, shape in zip(panels[:, 0], traces, shapes, strict=True):
        axes.set_title(heading, weight="normal")
        _draw_elements(axes, traces[heading], shape, group)
        _draw_sectors(axes, traces[heading], shape)
        _draw_words(axes, shape, row_name, run_name)
    return figure


def _rows_runs_elements(trace: Trace) -> tuple[int, int, int]:
    """(rows, runs in a row, elements of a run)."""
    *rows, runs, elements = (1, 1, *trace.the_array().shape)
    return int(np.prod(rows)), runs, elements


def _x(column: int, elements: int) -> float:
    """Where a column begins, with a gap after each run."""
    return column + 0.3 * (column // elements)


def _draw_words(axes: Axes, shape: tuple[int, int, int], row_name: str, run_name: str) -> None:
    num_rows, runs, elements = shape
    for row in range(num_rows):
        note(axes, -0.3, row + 0.5, f"{row_name} {row}", "right")
    for run in range(runs):
        note(axes, _x(run * elements, elements) + elements / 2, -0.5, f"{run_name} {run}")
    board(axes, _x(runs * elements, elements), num_rows + 1.15, top=-0.95)


def _draw_elements(axes: Axes, trace: Trace, shape: tuple[int, int, int], group: int) -> None:
    first = trace.only(instruction=int(trace.records.instruction.min()))
    threads = threads_of_elements(first)
    num_rows, runs, elements = shape
    for number in range(num_rows * runs * elements):
        row, column = divmod(number, runs * elements)
        color, here = style.EMPTY, threads.get(number, [])
        if here:
            warp, lane = divmod(here[0], WARP_SIZE)
            shade = 0.5 * (lane // group % 2) + 0.4 * warp / trace.num_warps
            color = style.lighter(style.K, shade)
        cell(axes, _x(column, elements), row, color, span(here) if here else "")


def _draw_sectors(axes: Axes, trace: Trace, shape: tuple[int, int, int]) -> None:
    (num_rows, runs, elements), array = shape, trace.the_array()
    size = SECTOR // array.dtype.itemsize
    if array.address % SECTOR or runs * elements % size:
        raise ValueError(f"traces: the rows of {array.name} are not whole sectors")
    for first in range(0, runs * elements, size):
        start, end = _x(first, elements) + 0.15, _x(first + size - 1, elements) + 0.85
        axes.plot((start, end), [num_rows + 0.25] * 2, color=style.INK, linewidth=1.2)
        note(axes, (start + end) / 2, num_rows + 0.75, "sector")


def threads_of_elements(trace: Trace) -> dict[int, list[int]]:
    """Element of the array, counted in the order of its indices -> threads that touch it."""
    found: dict[int, set[int]] = {}
    for elements, thread in zip(elements_of_records(trace), trace.threads.tolist(), strict=True):
        for element in elements:
            found.setdefault(element, set()).add(thread)
    return {number: sorted(threads) for number, threads in found.items()}


def elements_of_records(trace: Trace) -> list[range]:
    """For each record, the elements that it touches; a vector has several."""
    array = trace.the_array()
    first = np.ravel_multi_index(array.indices(trace.records.address), array.shape)
    counts = trace.records.num_bytes // array.dtype.itemsize
    return [range(n, n + c) for n, c in zip(first.tolist(), counts.tolist(), strict=True)]
