"""Figures of notebook 07: which thread reads and writes which element, as a kernel ran."""

import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.exercises import find
from pa_tutorial.exercises.kernel_grading import Task, parameters
from pa_tutorial.simt import Report
from pa_tutorial.simt.trace import KINDS, NO_ARRAY, block_number
from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import SMALL, board, box, frame, note, plural, write

TINY = 6  # points: indices
COLUMNS, ROW = 25, 0.19  # width of a figure in cells; height of a cell in inches
STEP = 2.3  # rows of cells and of threads are this far apart
GAP = 0.4  # between the runs of an array, and between thread blocks
MOST_LAYERS = 6
Place = tuple[float, float]


@dataclass(frozen=True)
class Access:
    """What one thread did. layer: how often data had been handed on through arrays before."""

    layer: int
    instruction: int
    block: int
    thread: int
    kind: str
    array: str | None
    element: int | None


@dataclass(frozen=True)
class Run:
    """One launch of a kernel on a task."""

    kernel: Callable
    report: Report
    out: np.ndarray

    @cached_property
    def accesses(self) -> list[Access]:
        return list(accesses(self.report))

    @cached_property
    def races(self) -> set[tuple]:
        """(instruction, thread) of both accesses of each race."""
        races = [f for f in self.report.findings if f.check == "race"]
        second = {(f.instruction, f.thread) for f in races}
        return second | {(f.other_instruction, f.other_thread) for f in races}


def accesses(report: Report) -> Iterator[Access]:
    """In order. A thread that reads what was written in layer n is in layer n + 1 from then on."""
    trace, written, layers = report.trace, {}, {}
    for record, thread in zip(trace.records, trace.threads.tolist(), strict=True):
        kind, who = KINDS[record.kind], (int(record.block), thread)
        layer, name, element = layers.get(who, 0), None, None
        if record.array != NO_ARRAY:
            array = trace.arrays[record.array]
            name, index = array.name, array.indices(record.address)
            element = int(np.ravel_multi_index(index, array.shape))
        if kind == "read" and name in written:
            layer = min(max(layer, written[name] + 1), MOST_LAYERS - 1)
        if kind == "write":
            written[name] = layer
        layers[who] = layer
        yield Access(layer, int(record.instruction), *who, kind, name, element)


def drawn(name: str, kernel: Callable) -> style.Shown:
    """What a reader's kernel does in the first case of an exercise; dotted, what ours does."""
    exercise = find(name)
    return style.show(draw_threads(exercise.drawn(), kernel, exercise.solution))


@style.styled
def draw_threads(task: Task, kernel: Callable, ours: Callable) -> Figure:
    """Arrays above, threads, arrays below: a line for each access. Red: what is wrong."""
    wanted, run = run_of(task, ours), run_of(task, kernel)
    title = textwrap.fill(finding_of(task, kernel, run), 95)
    layers = 1 + max(a.layer for r in (wanted, run) if r for a in r.accesses)
    height = 0.3 + 0.15 * title.count("\n") + ROW * (2 * STEP * layers + 3)
    figure, axes = style.new_figure(title, height)
    Picture(axes, task, wanted, run or wanted, layers).draw(is_run=run is not None)
    return figure


def run_of(task: Task, kernel: Callable) -> Run | None:
    try:
        return Run(kernel, *task.launched(kernel, collect=True, max_turns=1000))
    except Exception:  # the simulator does not know what was written: `attempt` says it
        return None


def finding_of(task: Task, kernel: Callable, run: Run | None) -> str:
    """The title: what was found, or what is wrong, or how much was moved."""
    name = kernel.__name__
    if run and run.report.findings:
        return str(run.report.findings[0]).splitlines()[0]
    if run is None or np.isnan(run.out).all():
        return f"{name}: nothing written yet. Dotted: what should happen"
    if num_wrong := int(wrong(task, run).sum()):
        return f"{name}: {num_wrong} of {plural(run.out.size, 'element')} of out wrong or missing"
    kinds = [a.kind for a in run.accesses]
    threads = {(a.block, a.thread) for a in run.accesses if a.array}
    counts = (
        (len(threads), "thread"),
        (kinds.count("read"), "load"),
        (kinds.count("write"), "store"),
    )
    return f"{name}: {', '.join(plural(*count) for count in counts)}"


def wrong(task: Task, run: Run) -> np.ndarray:
    return ~np.isclose(run.out, task.expected, equal_nan=True)


class Picture:
    """Rows from top to bottom: inputs; then for each layer its threads, and what they write."""

    def __init__(self, axes: Axes, task: Task, wanted: Run, run: Run, layers: int) -> None:
        self.axes, self.task, self.wanted, self.run, self.layers = axes, task, wanted, run, layers
        self.out, *self.inputs = parameters(run.kernel)
        self.places: dict[tuple[int, str, int], Place] = {}  # layer (-1: inputs), array, element
        self.threads: dict[tuple[int, int], float] = {}  # block, thread -> its middle

    def draw(self, is_run: bool) -> None:
        pairs = zip(self.inputs, self.task.inputs, strict=False)
        self.draw_arrays(-1, {name: array for name, array in pairs if array.shape})
        for layer in range(self.layers):
            self.draw_thread_row(layer, is_run)
            self.draw_arrays(layer, self.written_in(layer, is_run))
        for access in self.wanted.accesses:
            self.draw_line(access, color=style.QUIET, linewidth=1.2, linestyle=":")
        for access in self.run.accesses if is_run else ():
            is_red = (access.instruction, access.thread) in self.run.races
            place = self.draw_line(access, color=style.NAN if is_red else style.INK, linewidth=1)
            if place and is_red:
                frame(self.axes, place[0] - 0.5, place[1], 1, 1, style.NAN, linewidth=2)
        for finding in self.run.report.findings:
            cells = [key for key in self.places if key[1] == finding.array]
            if cells and finding.check == "memory":
                x, y = self.places[cells[-1]]
                text = f"{finding.array}[{', '.join(map(str, finding.index))}]"
                write(self.axes, x + 0.8, y + 0.5, text, "left", color=style.NAN)
        board(self.axes, COLUMNS - 2, STEP * 2 * self.layers + 1.9, -2, -1.1)

    def written_in(self, layer: int, is_run: bool) -> Mapping[str, np.ndarray]:
        """Shared arrays, as many elements as there are threads; out at the end."""
        found = {}
        for run in (self.wanted, self.run):
            names = {a.array for a in run.accesses if (a.layer, a.kind) == (layer, "write")}
            shared = {a.name: a for a in run.report.trace.arrays if a.space == "shared"}
            for name in names & shared.keys():
                found[name] = np.full(min(shared[name].shape[0], self.task.num_threads), np.nan)
        if layer == self.layers - 1:
            found[self.out] = self.run.out if is_run else np.full_like(self.run.out, np.nan)
        return found

    def draw_arrays(self, layer: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Side by side, each with its indices: above the inputs, below out."""
        y, bad = STEP * 2 * (layer + 1), wrong(self.task, self.run).ravel()
        widths = [a.size + GAP * (a.size // a.shape[-1] - 1) for a in arrays.values()]
        x = (COLUMNS - 2 - sum(widths) - 2.2 * (len(widths) - 1)) / 2
        for (name, array), width in zip(arrays.items(), widths, strict=True):
            note(self.axes, x - 0.2, y + 0.5, name, "right")
            for element, value in enumerate(array.ravel().tolist()):
                left = x + element + GAP * (element // array.shape[-1])
                self.places[layer, name, element] = left + 0.5, y
                color, is_there = style.lighter(style.QUIET, 0.7), value == value
                if layer >= 0:
                    color = style.lighter(style.OUT, 0.4) if is_there else style.EMPTY
                    color = style.NAN if is_there and bad[element] else color
                box(self.axes, left, y, 1, 1, color, f"{value:g}" if is_there else "", SMALL)
                if layer < 0 or name == self.out:
                    self.draw_index(left + 0.5, y + (1.5 if layer >= 0 else -0.5), element, array)
            x += width + 2.2

    def draw_index(self, x: float, y: float, element: int, array: np.ndarray) -> None:
        """Of each element; of several axes, once for each run along the last."""
        *first, last = map(int, np.unravel_index(element, array.shape))
        if not first or last == array.shape[-1] // 2:
            text = ", ".join([*map(str, first), ":"]) if first else last
            note(self.axes, x, y, f"[{text}]" if first else text, size=TINY)

    def draw_thread_row(self, layer: int, is_run: bool) -> None:
        y, count, grid = STEP * (2 * layer + 1), self.task.num_threads, self.wanted.report.grid
        busy = {(a.block, a.thread) for a in self.run.accesses if a.array and a.layer == layer}
        bad = [f for f in self.run.report.findings if f.check == "memory"]
        outside = {(block_number("block", f.block, grid), f.thread) for f in bad}
        num_blocks = int(np.prod(grid))
        head = 1 if num_blocks > 1 else 0  # a thread block is framed, and begins with its index
        x = (COLUMNS - 2 - num_blocks * (head + count + GAP) + GAP) / 2
        note(self.axes, x - 0.2, y + 0.5, "block, threads" if head else "threads", "right")
        for block in range(num_blocks):
            if head:
                frame(self.axes, x, y - 0.12, head + count + 0.1, 1.24, style.QUIET)
                index = np.unravel_index(block, grid[::-1])[::-1]
                text = ",".join(map(str, index[: 1 + (grid[1] > 1)]))
                note(self.axes, x + 0.5, y + 0.5, text, size=TINY)
            for thread in range(count):
                left, here = x + head + thread, (block, thread)
                color = style.INK if is_run and here in busy else style.lighter(style.QUIET, 0.5)
                color = style.NAN if is_run and here in outside else color
                box(self.axes, left + 0.05, y, 0.9, 1, color, thread, SMALL)
                self.threads[here] = left + 0.5
            x += head + count + GAP
        kinds = {a.kind for a in self.run.accesses if a.layer == layer - 1}
        if is_run and "barrier" in kinds:
            ends = self.threads[0, 0] - 0.6, self.threads[0, count - 1] + 0.6
            self.axes.plot(ends, [y - 0.45] * 2, color=style.INK, linewidth=2.5)
            note(self.axes, ends[1] + 0.2, y - 0.45, "barrier", "left")

    def draw_line(self, access: Access, **look: object) -> Place | None:
        """Returns where the element is; for a read, where it was written last."""
        is_write, layer = access.kind == "write", access.layer
        layers = range(layer, self.layers) if is_write else range(layer - 1, -2, -1)
        keys = ((n, access.array, access.element) for n in layers)
        place = next((self.places[key] for key in keys if key in self.places), None)
        if place:
            y = STEP * (2 * layer + 1)
            ys = (place[1], y + 1) if is_write else (place[1] + 1, y)
            middle = self.threads[access.block, access.thread]
            self.axes.plot((place[0], middle), ys, zorder=0.5, **look)
        return place
