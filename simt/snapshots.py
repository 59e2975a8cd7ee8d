"""Snapshots: the variables of the active lanes, copied at a line or at the end."""

from dataclasses import dataclass

import numpy as np

from simt.arithmetic import Misuse
from simt.lanes import RESULT, Frame, Lanes, Variable
from simt.memory import Array

END = "end"  # in place of a line: the snapshot is taken when the thread block has ended
Index = tuple[int, ...]  # of a thread block, or of an item of an array


@dataclass(frozen=True)
class Snapshot:
    """What the variables of a thread block held at one moment.

    line     about to be executed, its text, and the marks above it; "end": the thread block has
             ended
    threads  [n] numbers of the threads that were there
    values   variable -> [n] one number per thread · local array: [n, *shape] · shared array:
             [*shape]. What was never written is masked.
    """

    block: Index
    line: int | str
    code: str
    threads: np.ndarray
    values: dict[str, np.ma.MaskedArray]
    marks: tuple[str, ...] = ()

    def matches(self, where: int | str) -> bool:
        """Was it taken at this line: its number, a piece of its text, its mark, or "end"?"""
        if isinstance(where, int) or where == END or self.line == END:
            return self.line == where
        return where in self.marks or where in self.code

    def __getitem__(self, name: str) -> np.ma.MaskedArray:
        if name not in self.values:
            raise KeyError(f"{name} has no value here; these have: {', '.join(self.values)}")
        return self.values[name]


def take(
    frame: Frame,
    line: int | str,
    code: str,
    names: tuple[str, ...],
    marks: tuple[str, ...] = (),
) -> list[Snapshot]:
    """Copies the variables of a frame, those in `names` or all, in the active lanes.

    Makes one snapshot per thread block of the gang that has active lanes.
    """
    snapshots = []
    for index, everybody in frame.gang.thread_blocks():
        lanes = frame.lanes.where(everybody)
        if lanes.count:
            values = _values(frame, lanes, everybody, names or tuple(frame.variables))
            threads = frame.gang.threads[lanes.numbers]
            snapshots.append(Snapshot(index, line, code, threads, values, marks))
    return snapshots


def _values(
    frame: Frame, lanes: Lanes, everybody: np.ndarray, names: tuple[str, ...]
) -> dict[str, np.ma.MaskedArray]:
    """The variables in these lanes of one thread block, whose lanes are everybody."""
    values = {}
    for name in names:
        if name not in frame.variables or name == RESULT:
            continue
        variable = frame.variables[name]
        holders = variable.holders.where(everybody)
        if not holders.count:
            continue  # only other thread blocks have assigned to it
        present = lanes.where(holders.flags)
        having = present if present.count else holders
        found = _value(variable, having)
        if isinstance(found, Array) and found.absent is not None:
            having = having.where(~found.absent)
        value = _copied(found, lanes.numbers, having.numbers) if having.count else None
        if value is None:
            continue
        if _per_lane(found):
            value[~having.flags[lanes.numbers]] = np.ma.masked
        values[name] = value
    return values


def _value(variable: Variable, lanes: Lanes) -> object:
    """None if these lanes have different arrays, because some may have returned earlier."""
    try:
        return variable.read(lanes)
    except Misuse:
        return None


def _per_lane(value: object) -> bool:
    return not isinstance(value, Array) or value.memory.space == "local"


def _copied(value: object, lanes: np.ndarray, having: np.ndarray) -> np.ma.MaskedArray | None:
    """A number per lane, a local array per lane, or a shared array; else None, also for records.

    having  lanes that have the value; they must agree on the shape, and on which shared array
    """
    if isinstance(value, bool | int | float | complex | np.generic):
        return np.ma.array(np.full(len(lanes), value))
    if isinstance(value, np.ndarray):
        return np.ma.array(value[lanes])
    if not isinstance(value, Array) or value.memory.space == "global" or value.dtype.names:
        return None
    start, *shape = (_agreed(number, having) for number in (value.start, *value.shape))
    if None in shape:
        return None
    steps = [np.arange(n) * stride for n, stride in zip(shape, value.strides, strict=True)]
    offsets = sum(np.ix_(*steps)) if len(steps) > 1 else steps[0]
    if _per_lane(value):
        each = np.where(np.isin(lanes, having), lanes, having[0]).reshape(-1, *[1] * len(shape))
        if value.lane is None:
            items = value.start[each] + offsets
        else:
            starts = value.start if start is None else np.full(len(value.lane), start)
            items = (starts[each] + offsets) * len(value.lane) + each
    elif start is None:
        return None
    else:
        items = start + offsets
    copy = np.ma.array(value.flat[items])
    if value.memory.written is not None:
        cells = value.cells(items.ravel())
        copy[~value.memory.written[cells].all(axis=1).reshape(items.shape)] = np.ma.masked
    return copy


def _agreed(number: int | np.ndarray, lanes: np.ndarray) -> int | None:
    """The number that these lanes have; None if they differ."""
    if not isinstance(number, np.ndarray):
        return number
    first = int(number[lanes[0]])
    return first if np.all(number[lanes] == first) else None
