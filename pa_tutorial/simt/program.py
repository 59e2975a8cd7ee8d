"""A program: a kernel and the device functions that it calls, translated."""

import ast
from collections.abc import Callable
from types import FunctionType

import numpy as np

from pa_tutorial.simt.lanes import Frame
from pa_tutorial.simt.machine import Machine
from pa_tutorial.simt.memory import Array
from pa_tutorial.simt.report import Snapshot
from pa_tutorial.simt.source import Site, Source, source_of
from pa_tutorial.simt.statements import RESULT, DeviceFunction, Statements

END = "end"
Watch = int | str


class Program:
    """Translates a kernel for one launch.

    watch  lines at which to take snapshots: numbers, or pieces of their text, or "end"
    names  variables that a snapshot keeps; empty: all that hold numbers, local or shared arrays
    """

    def __init__(
        self,
        kernel: FunctionType,
        machine: Machine,
        watch: tuple[Watch, ...],
        names: tuple[str, ...],
    ) -> None:
        self.machine, self.names = machine, names
        self.watch, self.unmatched = watch, set(watch) - {END}
        self.snapshots: list[Snapshot] = []
        self.functions: dict[FunctionType, DeviceFunction] = {}
        self.kernel = self.device_function(kernel)
        if self.unmatched:
            wanted = ", ".join(repr(w) for w in sorted(self.unmatched, key=str))
            raise ValueError(f"watch: no statement of {kernel.__name__} is at {wanted}")

    def add_place(self, site: Site) -> int:
        return self.machine.add_place(site)

    def device_function(self, function: FunctionType) -> DeviceFunction:
        if function not in self.functions:
            source = source_of(function)
            self.functions[function] = device = DeviceFunction(self, function, source)
            device.body = Statements(self, function, source).body(source.tree.body)
        return self.functions[function]

    def run(self, arguments: dict[str, object]) -> None:
        def at_end(frame: Frame) -> None:
            if END in self.watch:
                frame.lanes = frame.gang.everybody
                self.take(frame, END, END)

        self.machine.run(self.kernel.body, arguments, at_end)

    # Looking inside ---------------------------------------------------------------------------

    def watched(self, source: Source, node: ast.stmt, step: Callable) -> Callable:
        """The step, with a snapshot before it if its line is watched."""
        line, text = node.lineno, source.line(node.lineno)
        hits = {
            w for w in self.watch if w == line or (isinstance(w, str) and w != END and w in text)
        }
        self.unmatched -= hits
        if not hits:
            return step

        def run(frame: Frame) -> None:
            self.take(frame, line, text)
            step(frame)

        return run

    def take(self, frame: Frame, line: int | str, code: str) -> None:
        lanes = frame.lanes.numbers
        values = {}
        for name in self.names or tuple(frame.values):
            if name not in frame.values or name == RESULT:
                continue
            value = _copied(frame, frame.values[name], lanes)
            if value is None:
                continue
            if value.shape[:1] == lanes.shape and _per_lane(frame.values[name]):
                value = np.ma.array(value, copy=True)
                value[~frame.holders[name].flags[lanes]] = np.ma.masked
            values[name] = value
        threads = lanes + frame.gang.first
        self.snapshots.append(Snapshot(frame.gang.block.index, line, code, threads, values))

    def partial_view(self, frame: Frame, array: Array, indices: tuple, place: int) -> Array:
        """array[i], array[a:b]: a view with fewer items. Nothing is read."""
        from pa_tutorial.simt.access import locate

        fixed = tuple(0 if type(i) is slice else i for i in indices)
        whole = [i for i, index in enumerate(indices) if type(index) is slice]
        whole += range(len(indices), array.ndim)
        starts, shape = [], []
        for axis in whole:
            index = indices[axis] if axis < len(indices) else slice(None, None)
            first, size = _part(index, array.shape[axis])
            starts.append(first * array.strides[axis])
            shape.append(size)
        checked = array.view(
            tuple(1 if a in whole else n for a, n in enumerate(array.shape)),
            array.strides,
            array.start,
            "",
        )
        checked.name = array.name
        start, lanes = locate(frame, checked, fixed, place)
        start = start + sum(starts)
        if lanes is not frame.lanes and isinstance(start, np.ndarray):
            start = np.where(lanes.flags, start, 0)
        strides = tuple(array.strides[axis] for axis in whole)
        return array.view(tuple(shape), strides, start, _in_words(indices))


def _part(index: slice, size: object) -> tuple[object, object]:
    """First item and size of a slice, as Python cuts it: ends outside move to the border."""

    def bounded(bound: object, default: object) -> object:
        if bound is None:
            return default
        bound = np.where(np.less(bound, 0), np.add(bound, size), bound)
        return np.clip(bound, 0, size)

    first, last = bounded(index.start, 0), bounded(index.stop, size)
    length = np.maximum(np.subtract(last, first), 0)
    return _number(first), _number(length)


def _number(value: object) -> object:
    return value if isinstance(value, np.ndarray) and value.ndim else int(value)


def _in_words(indices: tuple) -> str:
    words = []
    for index in indices:
        words.append(":" if type(index) is slice else str(index) if type(index) is int else "...")
    return ", ".join(words)


def _per_lane(value: object) -> bool:
    return not isinstance(value, Array) or value.memory.space == "local"


def _copied(frame: Frame, value: object, lanes: np.ndarray) -> np.ma.MaskedArray | None:
    """A number for each lane; a local array for each lane; a shared array; else None."""
    if isinstance(value, bool | int | float | np.generic):
        return np.ma.array(np.full(len(lanes), value))
    if isinstance(value, np.ndarray):
        return np.ma.array(value[lanes])
    if not isinstance(value, Array) or value.memory.space == "global":
        return None
    starts, shape = value.start, value.shape
    if any(isinstance(n, np.ndarray) for n in shape):
        return None
    steps = [np.arange(n) * stride for n, stride in zip(shape, value.strides, strict=True)]
    offsets = sum(np.ix_(*steps)) if len(steps) > 1 else steps[0]
    if _per_lane(value):
        starts = np.broadcast_to(starts, frame.gang.width)[lanes]
        items = starts.reshape(-1, *[1] * len(shape)) + offsets
    elif isinstance(starts, np.ndarray):
        return None
    else:
        items = starts + offsets
    copy = np.ma.array(value.flat[items])
    if value.memory.written is not None:
        cells = value.cells(items.ravel())
        copy[~value.memory.written[cells].all(axis=1).reshape(items.shape)] = np.ma.masked
    return copy
