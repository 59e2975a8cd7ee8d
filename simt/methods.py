"""Methods of what a kernel computes with: array.reshape(shape), grid.sync() and the like.

Each takes the value, then the frame and the place, then what the kernel passes.
"""

import math
from collections.abc import Callable

import numpy as np

from simt.arithmetic import Misuse, Value
from simt.intrinsics import FUNCTIONS, Grid
from simt.lanes import Frame
from simt.memory import Array, contiguous


def bit_count(value: Value, frame: Frame, place: int) -> Value:
    return FUNCTIONS["popc"](frame, place, value)


def sync(grid: object, frame: Frame, place: int) -> None:
    if not isinstance(grid, Grid):
        raise Misuse("only cuda.cg.this_grid() has sync")
    frame.gang.sync_grid(frame, place)


def reshape(array: object, frame: Frame, place: int, *shape: object) -> Array:
    """The same items in another shape, of which -1 is what remains."""
    _must_be_whole(array, "reshape")
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
    if not all(isinstance(size, int | np.integer) for size in sizes):
        raise Misuse("reshape takes whole numbers that are the same for all lanes")
    known = math.prod(size for size in sizes if size != -1)
    rest = array.size // known if known else 0
    new = tuple(rest if size == -1 else int(size) for size in sizes)
    if math.prod(new) != array.size or list(sizes).count(-1) > 1:
        raise Misuse(f"{array.name} has the shape {array.shape}, which can't become {sizes}")
    return array.view(new, contiguous(new), array.start, "...")


def view(array: object, frame: Frame, place: int, dtype: np.dtype) -> Array:
    """The same bytes as items of another type, along the last axis."""
    _must_be_whole(array, "view")
    old, new, last = array.dtype.itemsize, dtype.itemsize, array.shape[-1] * array.dtype.itemsize
    first = array.phase + array.start * old
    if last % new or first % new:
        raise Misuse(
            f"{array.name} begins or ends inside an item of {dtype}, which has {new} bytes"
        )
    shape = *array.shape[:-1], last // new
    more = contiguous(shape), first // new, array.name, 0, array.read_only
    other = Array(array.memory, dtype, shape, *more)
    other.base = array.whole
    return other


def _must_be_whole(array: object, what: str) -> None:
    """Is it an array without gaps, of which all lanes have the same items?"""
    if not isinstance(array, Array):
        raise Misuse(f"only an array has {what}")
    sizes = array.start, *array.shape
    same = all(isinstance(size, int) for size in sizes) and array.lane is array.absent is None
    if not same or array.ndim == 0 or array.strides != contiguous(array.shape):
        raise Misuse(
            f"{what} needs an array without gaps, the same for all lanes: not {array.name}"
        )


METHODS: dict[str, Callable] = {
    "bit_count": bit_count,
    "reshape": reshape,
    "sync": sync,
    "view": view,
}
