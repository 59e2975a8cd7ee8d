"""Figures of notebook 07: which thread read and wrote which element in a run of a kernel."""

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pa_tutorial.viz import style
from pa_tutorial.viz.drawing import SMALL, board, box, frame, note, plural, write
from simt import Finding, Report, Trace
from simt.names import function_behind, names_of
from simt.trace import KINDS, NO_ARRAY

TINY = 8  # points: indices, and numbers of four digits
COLUMNS, ROW = 25, 0.19  # width of a figure in cells; height of a cell in inches
STEP = 2.3  # distance from the cells of an array to the threads below
GAP = 0.4  # between the runs of an array, and between thread blocks
MOST_LAYERS = 6
Place = tuple[float, float]


class Task(Protocol):
    """A launch that can be drawn: kernel[grid, num_threads](out, *inputs)."""

    num_threads: int
    inputs: Sequence[np.ndarray]
    expected: np.ndarray
    grid: tuple[int, ...]

    def launched(self, kernel: Callable, **options: object) -> tuple[Report, np.ndarray]:
        """A launch with all accesses traced, and out."""


@dataclass(frozen=True)
class Access:
    """What one thread did. layer: how often data had passed through arrays before."""

    layer: int
    instruction: int
    block: int
    thread: int
    kind: str
    array: str | None
    element: int | None


@dataclass(frozen=True)
class Run:
    """What a launch did. shared: the sizes of its shared arrays; error: why it didn't run."""

    out: np.ndarray
    accesses: Sequence[Access] = ()
    findings: Sequence[Finding] = ()
    shared: Mapping[str, int] = field(default_factory=dict)
    error: str = ""

    def found(self, check: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.check == check]


def run_of(task: Task, kernel: Callable) -> Run:
    try:
        report, out = task.launched(kernel, collect=True, max_turns=1000)
    except Exception as error:  # a reader's kernel may raise anything
        return Run(np.full_like(task.expected, np.nan), error=str(error).partition("\n")[0])
    shared = {a.name: math.prod(a.shape) for a in report.trace.arrays if a.space == "shared"}
    return Run(out, list(accesses(report.trace)), report.findings, shared)


def accesses(trace: Trace) -> Iterator[Access]:
    """In order. A thread that reads data written in layer n is in layer n + 1 from then on."""
    written, layers = {}, {}
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


@style.styled
def draw_threads(task: Task, kernel: Callable, ours: Callable) -> Figure:
    """Arrays above, threads, arrays below, with a line per access. Red: what is wrong."""
    wanted, run = run_of(task, ours), run_of(task, kernel)
    title = textwrap.fill(finding_of(task, kernel.__name__, run), 95)
    layers = 1 + max(access.layer for access in (*wanted.accesses, *run.accesses))
    height = 0.3 + 0.15 * title.count("\n") + ROW * (2 * STEP * layers + 3)
    figure, axes = style.new_figure(title, height)
    Picture(axes, task, names_of(function_behind(kernel)), wanted, run, layers).draw()
    return figure


def finding_of(task: Task, name: str, run: Run) -> str:
    """The title: the finding, or what is wrong, or how many accesses there were."""
    if run.findings or run.error:
        return run.error or str(run.findings[0]).splitlines()[0]
    if np.isnan(run.out).all():
        return f"{name} has written nothing yet; the dotted lines show what should happen"
    if num_wrong := int(wrong(task, run).sum()):
        count = plural(run.out.size, "element")
        return f"{name}: {num_wrong} of {count} of out are wrong or missing"
    loads, stores = ([a.kind for a in run.accesses].count(kind) for kind in ("read", "write"))
    threads = len({(a.block, a.thread) for a in run.accesses if a.array})
    counts = f"{plural(loads, 'load')} and {plural(stores, 'store')}"
    return f"{name} takes {plural(threads, 'thread')}, {counts}"


def wrong(task: Task, run: Run) -> np.ndarray:
    return ~np.isclose(run.out, task.expected, equal_nan=True)


class Picture:
    """Rows from top to bottom: inputs; then for each layer its threads, and what they write."""

    def __init__(
        self, axes: Axes, task: Task, names: Sequence[str], wanted: Run, run: Run, layers: int
    ) -> None:
        self.axes, self.task, self.wanted, self.run, self.layers = axes, task, wanted, run, layers
        self.grid = (*task.grid, 1)[:2]
        self.out, *self.inputs = names
        self.places: dict[tuple[int, str, int], Place] = {}  # layer (-1: inputs), array, element
        self.threads: dict[tuple[int, int], float] = {}  # block, thread -> its middle

    def draw(self) -> None:
        pairs = zip(self.inputs, self.task.inputs, strict=False)
        self.draw_arrays(-1, {name: array for name, array in pairs if array.shape})
        for layer in range(self.layers):
            self.draw_thread_row(layer)
            self.draw_arrays(layer, self.written_in(layer))
        for access in self.wanted.accesses:
            self.draw_line(access, color=style.QUIET, linewidth=1.2, linestyle=":")
        races = self.run.found("race")
        parties = {(f.instruction, f.thread) for f in races}
        parties |= {(f.other_instruction, f.other_thread) for f in races}
        for access in self.run.accesses:
            is_red = (access.instruction, access.thread) in parties
            place = self.draw_line(access, color=style.NAN if is_red else style.INK, linewidth=1)
            if place and is_red:
                frame(self.axes, place[0] - 0.5, place[1], 1, 1, style.NAN, linewidth=2)
        for finding in self.run.found("memory"):
            if cells := [key for key in self.places if key[1] == finding.array]:
                x, y = self.places[cells[-1]]
                text = f"{finding.array}[{', '.join(map(str, finding.index))}]"
                write(self.axes, x + 0.8, y + 0.5, text, "left", color=style.NAN)
        board(self.axes, COLUMNS - 2, STEP * 2 * self.layers + 1.9, -2, -1.1)

    def written_in(self, layer: int) -> Mapping[str, np.ndarray]:
        """Shared arrays, with as many elements as there are threads; out at the end."""
        found = {}
        for run in (self.wanted, self.run):
            names = {a.array for a in run.accesses if (a.layer, a.kind) == (layer, "write")}
            for name in names & run.shared.keys():
                found[name] = np.full(min(run.shared[name], self.task.num_threads), np.nan)
        return found | ({self.out: self.run.out} if layer == self.layers - 1 else {})

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
                text = f"{value:g}" if is_there else ""
                box(self.axes, left, y, 1, 1, color, text, SMALL if len(text) < 4 else TINY)
                if layer < 0 or name == self.out:
                    self.draw_index(left + 0.5, y + (1.5 if layer >= 0 else -0.5), element, array)
            x += width + 2.2

    def draw_index(self, x: float, y: float, element: int, array: np.ndarray) -> None:
        """The index of each element; with several axes, one per run along the last axis."""
        *first, last = map(int, np.unravel_index(element, array.shape))
        if not first or last == array.shape[-1] // 2:
            text = ", ".join([*map(str, first), ":"]) if first else last
            note(self.axes, x, y, f"[{text}]" if first else text, size=TINY)

    def draw_thread_row(self, layer: int) -> None:
        y, count, (grid_x, grid_y) = STEP * (2 * layer + 1), self.task.num_threads, self.grid
        busy = {(a.block, a.thread) for a in self.run.accesses if a.array and a.layer == layer}
        bad = [(*f.block, f.thread) for f in self.run.found("memory")]
        outside = {(x + grid_x * y, thread) for x, y, _, thread in bad}
        num_blocks = grid_x * grid_y
        head = 1 if num_blocks > 1 else 0  # a thread block is framed, and begins with its index
        x = (COLUMNS - 2 - num_blocks * (head + count + GAP) + GAP) / 2
        note(self.axes, x - 0.2, y + 0.5, "block, threads" if head else "threads", "right")
        for block in range(num_blocks):
            if head:
                frame(self.axes, x, y - 0.12, head + count + 0.1, 1.24, style.QUIET)
                text = f"{block % grid_x},{block // grid_x}" if grid_y > 1 else block
                note(self.axes, x + 0.5, y + 0.5, text, size=TINY)
            for thread in range(count):
                left, here = x + head + thread, (block, thread)
                color = style.INK if here in busy else style.lighter(style.QUIET, 0.5)
                color = style.NAN if here in outside else color
                box(self.axes, left + 0.05, y, 0.9, 1, color, thread, SMALL)
                self.threads[here] = left + 0.5
            x += head + count + GAP
        barriers = [a for a in self.run.accesses if a.kind == "barrier"]
        met = {a.instruction for a in barriers if a.layer == layer - 1}
        waiting = np.unique([self.threads[0, a.thread] for a in barriers if a.instruction in met])
        if waiting.size:
            ys = np.full(waiting.shape, y - 0.45)
            self.axes.hlines(ys, waiting - 0.6, waiting + 0.6, style.INK, linewidth=2.5)
            note(self.axes, self.threads[0, count - 1] + 0.8, y - 0.45, "barrier", "left")

    def draw_line(self, access: Access, **look: object) -> Place | None:
        """Returns the place of the element; for a read, where it was written last."""
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
