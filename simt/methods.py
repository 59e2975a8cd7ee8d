"""Methods of what a kernel computes with: array.reshape(shape), grid.sync() and the like.

Each takes the value, then the frame and the place, then what the kernel passes.
"""

import math
from collections.abc import Callable

import numpy as np

from simt.arithmetic import Misuse, Value, dtype_of, plain
from simt.intrinsics import Grid
from simt.lanes import NUMBERS, Frame
from simt.memory import Array, contiguous


def conjugate(number: object, frame: Frame, place: int) -> Value:
    if not isinstance(number, NUMBERS):
        raise Misuse("only a number has conjugate")
    return plain(np.conjugate(number))


def sync(grid: object, frame: Frame, place: int) -> None:
    if not isinstance(grid, Grid):
        raise Misuse("only cuda.cg.this_grid() has sync")
    frame.gang.sync_grid(frame, place)


def reshape(array: object, frame: Frame, place: int, *shape: object) -> Array:
    """The same items in another shape, of which -1 is what remains."""
    size = math.prod(_shape(array, frame, "reshape"))
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
    if not all(isinstance(one, int | np.integer) for one in sizes):
        raise Misuse("reshape takes whole numbers that are the same for all lanes")
    known = math.prod(one for one in sizes if one != -1)
    new = tuple(int(size // max(known, 1) if one == -1 else one) for one in sizes)
    if math.prod(new) != size or list(sizes).count(-1) > 1:
        raise Misuse(f"{array.name} has {size} items, so its shape can't become {sizes}")
    return array.view(new, contiguous(new), array.start, "...")


def view(array: object, frame: Frame, place: int, dtype: np.dtype) -> Array | Value:
    """The same bytes as items of another type, along the last axis; or the bits of a number."""
    if isinstance(array, NUMBERS):
        own = dtype_of(array)
        if own.itemsize != dtype.itemsize:
            has = f"a {own} has {own.itemsize} bytes, so it can't be viewed as {dtype}"
            raise Misuse(f"{has}, which has {dtype.itemsize}")
        return plain(np.asarray(array, own).view(dtype)[()])
    *shape, last = _shape(array, frame, "view")
    old, new = array.dtype.itemsize, dtype.itemsize
    first, length = array.phase + array.start * old, last * old
    firsts = np.broadcast_to(first, frame.gang.width)[frame.lanes.numbers]
    if length % new or np.any(firsts % new):
        raise Misuse(f"{array.name} begins or ends inside an item of {dtype}, of {new} bytes")
    if array.lane is not None:
        raise Misuse(f"the simulator doesn't support view on a local array such as {array.name}")
    shape = *shape, length // new
    name = f"{array.name}.view({dtype})"
    start, more = first // new, (name, 0, array.read_only)
    other = Array(array.memory, dtype, shape, contiguous(shape), start, *more)
    other.base, other.absent = array.whole, array.absent
    other.fields = f"{array.fields}.view({dtype})"  # an item is named by the one that holds it
    return other


def _shape(array: object, frame: Frame, what: str) -> list[int]:
    """The shape of an array without gaps, the same in all lanes."""
    if not isinstance(array, Array):
        raise Misuse(f"only an array has {what}")
    width, lanes = frame.gang.width, frame.lanes.numbers
    found = [np.unique(np.broadcast_to(size, width)[lanes]) for size in array.shape]
    shape = [int(sizes[0]) for sizes in found]
    steps = zip(shape, array.strides, contiguous(shape), strict=True)
    has_gaps = 0 not in shape and any(n > 1 and own != step for n, own, step in steps)
    if not shape or has_gaps or any(len(sizes) > 1 for sizes in found):
        why = f"a contiguous array of one shape in all lanes; {array.name} isn't one"
        raise Misuse(f"{what} needs {why}")
    return shape


METHODS: dict[str, Callable] = {
    "conjugate": conjugate,
    "reshape": reshape,
    "sync": sync,
    "view": view,
}
