"""Parts of arrays: a row, a slice. They are views: nothing is read."""

from functools import reduce

import numpy as np

from simt.access import locate, store
from simt.arithmetic import Misuse, Value, dtype_of
from simt.lanes import Frame
from simt.memory import Array
from simt.tuples import is_tuple


def partial_view(frame: Frame, array: Array, indices: tuple, place: int) -> Array:
    """array[i], array[a:b]: a view with fewer items. Nothing is read."""
    whole = [i for i, index in enumerate(indices) if type(index) is slice]
    whole += range(len(indices), array.ndim)
    start, lanes = locate(frame, array, indices, place, "view", 0)
    shape, strides = [], []
    for axis in whole:
        index = indices[axis] if axis < len(indices) else slice(None, None)
        first, size, step = _part(index, array.shape[axis])
        start = start + first * array.strides[axis]
        shape.append(size)
        strides.append(step * array.strides[axis])
    view = array.view(tuple(shape), tuple(strides), start, _in_words(indices))
    if lanes.count < frame.lanes.count:
        lost = frame.lanes.flags & ~lanes.flags
        view.absent = lost if array.absent is None else lost | array.absent
    return view


def fill(frame: Frame, view: Array, value: Value | tuple[Value, ...], place: int) -> None:
    """view[:] = value, one item after another, like the loop that Numba generates. A tuple has a
    number for each item."""
    outer = frame.lanes
    if is_tuple(value):
        _require_fits(frame, view, value)
    most = (np.max(np.broadcast_to(n, outer.flags.shape)[outer.numbers]) for n in view.shape)
    for index in np.ndindex(*most):
        inside = [np.less(i, n) for i, n in zip(index, view.shape, strict=True)]
        frame.lanes = outer.where(reduce(np.logical_and, inside))
        if frame.lanes.count:
            store(frame, view, index, value[index[0]] if isinstance(value, tuple) else value, place)
    frame.lanes = outer


def _require_fits(frame: Frame, view: Array, value: tuple) -> None:
    if view.ndim != 1 or any(isinstance(part, (tuple, Array)) for part in value):
        raise Misuse("a tuple of numbers can only be stored in a slice with one axis")
    if len(set(map(dtype_of, value))) > 1:
        raise Misuse("Numba stores a tuple only if its numbers have one type")
    sizes = np.broadcast_to(view.shape[0], frame.gang.width)[frame.lanes.numbers]
    if np.any(sizes != len(value)):
        wrong = sizes[sizes != len(value)][0]
        raise Misuse(f"{view.name} has {wrong} items, and the tuple {len(value)}")


def _part(index: slice, size: object) -> tuple[object, object, int]:
    """First item, size and step of a slice; ends out of bounds are clipped, as in Python."""
    step = 1 if index.step is None else index.step
    lowest, highest = (0, size) if step > 0 else (-1, np.subtract(size, 1))
    ends = (lowest, highest) if step > 0 else (highest, lowest)

    def bounded(bound: object, default: object) -> object:
        if bound is None:
            return default
        bound = np.where(np.less(bound, 0), np.add(bound, size), bound)
        return np.clip(bound, lowest, highest)

    first, last = bounded(index.start, ends[0]), bounded(index.stop, ends[1])
    length = np.maximum(-(np.subtract(first, last) // step), 0)
    return _number(first), _number(length), step


def _number(value: object) -> object:
    return value if isinstance(value, np.ndarray) and value.ndim else int(value)


def _in_words(indices: tuple) -> str:
    words = (":" if type(i) is slice else str(i) if type(i) is int else "..." for i in indices)
    return ", ".join(words)
