"""Figures of notebook 07: a kernel's accesses, drawn from its trace: which bytes, which thread."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.simt.trace import Trace
from pa_tutorial.simt.traffic import SECTOR, global_traffic, units
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import board, box, cell, frame, note

# Which bytes ---------------------------------------------------------------------------------


@style.styled
def draw_walk(traces: Mapping[str, Trace], title: str) -> Figure:
    """The address walk of a warp: a row for each request, a column for each byte of the array.

    traces  heading -> accesses to one array by one warp; a panel each
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
    panels[0][0].set_ylabel("request")
    return figure


def _walk(axes: Axes, trace: Trace) -> None:
    array, records = trace.the_array(), trace.records
    _, request = np.unique(records.instruction, return_inverse=True)
    record, sector = units(records, SECTOR)
    first = sector * SECTOR - array.address
    for row, x in sorted({*zip(request[record].tolist(), first.tolist(), strict=True)}):
        box(axes, x, row + 0.1, SECTOR, 0.8, style.lighter(style.K))
    begin = (records.address - array.address).tolist()
    wanted = {*zip(request.tolist(), begin, records.num_bytes.tolist(), strict=True)}
    for row, x, size in sorted(wanted):
        box(axes, x, row + 0.1, size, 0.8, style.K, edgecolor="none")
    low, high = int(first.min()), int(first.max()) + SECTOR
    axes.set_xlim(low, high)
    axes.set_ylim(int(request.max()) + 1.2, -0.2)
    axes.set_xticks(np.linspace(low, high, 5, dtype=int))
    axes.set_yticks([0.5, request.max() + 0.5], ["first", "last"])
    axes.set_xlabel(f"byte of {array.name}; light: sectors that move")


# Which thread --------------------------------------------------------------------------------


@style.styled
def draw_thread_map(traces: Mapping[str, Trace], title: str, **options: object) -> Figure:
    """Which thread touches which element of an array: the thread's number stands in the element.

    traces   heading -> accesses to one array; a panel each. The last two axes of the array run
             along a row, with a gap after each run of the last one.
    options  as in ThreadMap
    """
    maps = {heading: ThreadMap(trace, **options) for heading, trace in traces.items()}
    heights = [one.height for one in maps.values()]
    figure, panels = style.new_figure(
        title,
        0.4 + sum(0.22 * height + 0.25 for height in heights),
        nrows=len(maps),
        squeeze=False,
        height_ratios=heights,
    )
    for axes, (heading, one) in zip(panels[:, 0], maps.items(), strict=True):
        axes.set_title(heading, weight="normal")
        one.draw(axes)
    return figure


@dataclass(frozen=True)
class ThreadMap:
    """One panel of draw_thread_map.

    group          neighbouring lanes that share a shade; a later warp is lighter
    first_request  outline the elements of the first warp instruction
    only_first     show no others
    color          of the array
    sectors        mark below what lies in one sector; rows must be whole sectors
    row_name, run_name   words for the rows, and for the runs in a row
    """

    trace: Trace
    group: int = 1
    first_request: bool = False
    only_first: bool = False
    color: str = style.K
    sectors: bool = False
    row_name: str = "row"
    run_name: str = ""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(rows, runs in a row, elements of a run)."""
        *rows, runs, elements = (1, 1, *self.trace.the_array().shape)
        return int(np.prod(rows)), runs, elements

    @property
    def height(self) -> float:
        return self.shape[0] + 0.9 * bool(self.run_name) + 1.1 * self.sectors

    def x(self, column: int) -> float:
        """Where a column begins: there is a gap after each run."""
        _, runs, elements = self.shape
        return column + (0.3 * (column // elements) if runs > 1 else 0)

    def draw(self, axes: Axes) -> None:
        num_rows, runs, elements = self.shape
        bottom, top = num_rows + 0.05 + 1.1 * self.sectors, -0.05 - 0.9 * bool(self.run_name)
        board(axes, self.x(runs * elements), bottom, top=top)
        self._elements(axes)
        for row in range(num_rows):
            note(axes, -0.3, row + 0.5, f"{self.row_name} {row}", "right")
        for run in range(runs if self.run_name else 0):
            middle = self.x(run * elements) + elements / 2
            note(axes, middle, -0.5, f"{self.run_name} {run}")
        if self.sectors:
            self._sectors(axes)

    def _elements(self, axes: Axes) -> None:
        threads = threads_of_elements(self.trace)
        first = first_elements(self.trace) if self.first_request or self.only_first else set()
        num_rows, runs, elements = self.shape
        for number in range(num_rows * runs * elements):
            row, column = divmod(number, runs * elements)
            x, here = self.x(column), threads.get(number, [])
            if self.only_first and number not in first:
                cell(axes, x, row, style.EMPTY)
                continue
            color = self._color(here[0]) if here else style.EMPTY
            cell(axes, x, row, color, _in_words(here), unused=not here)
            if self.first_request and number in first:
                frame(axes, x + 0.04, row + 0.05, 0.92, 0.9, linewidth=1.6)

    def _color(self, thread: int) -> str:
        warp, lane = divmod(thread, WARP_SIZE)
        shade = 0.5 * (lane // self.group % 2) + 0.4 * warp / self.trace.num_warps
        return style.lighter(self.color, shade)

    def _sectors(self, axes: Axes) -> None:
        (num_rows, runs, elements), array = self.shape, self.trace.the_array()
        size = SECTOR // array.dtype.itemsize
        if array.address % SECTOR or runs * elements % size:
            raise ValueError(f"sectors: the rows of {array.name} are not whole sectors")
        for first in range(0, runs * elements, size):
            ends = self.x(first) + 0.15, self.x(first + size - 1) + 0.85
            axes.plot(ends, [num_rows + 0.25] * len(ends), color=style.INK, linewidth=1.2)
            middle = sum(ends) / len(ends)
            note(axes, middle, num_rows + 0.75, "sector")


def threads_of_elements(trace: Trace) -> dict[int, list[int]]:
    """Element of the array, counted in the order of its indices -> threads that touch it."""
    found: dict[int, set[int]] = {}
    for number, thread in zip(element_numbers(trace), trace.threads.tolist(), strict=True):
        for element in number:
            found.setdefault(element, set()).add(thread)
    return {number: sorted(threads) for number, threads in found.items()}


def first_elements(trace: Trace) -> set[int]:
    """The elements of the first warp instruction."""
    first = trace.only(instruction=int(trace.records.instruction.min()))
    return {element for number in element_numbers(first) for element in number}


def element_numbers(trace: Trace) -> list[range]:
    """For each record the elements that it touches, several for a vector."""
    array = trace.the_array()
    first = np.ravel_multi_index(array.indices(trace.records.address), array.shape)
    counts = trace.records.num_bytes // array.dtype.itemsize
    return [range(n, n + c) for n, c in zip(first.tolist(), counts.tolist(), strict=True)]


def _in_words(threads: list[int]) -> str:
    if len(threads) < 2:
        return "".join(map(str, threads))
    if threads == list(range(threads[0], threads[-1] + 1)):
        return f"{threads[0]}–{threads[-1]}"
    return f"{threads[0]}, …"
