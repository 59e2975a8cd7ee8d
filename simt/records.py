"""Arrays of records, whose items have fields: a[i].x, a.x[i], a[i]["x"].

A record is a reference, as in Numba: a view without dimensions of the array that holds it. After
r = a[i], what is stored into r.x is in the array. A field of an array is a view, too, and so is an
array inside a record; only a field that is a number is loaded. a[i] = b[j] copies field by field,
because each access must have a number's type. (Numba copies byte by byte, also the gaps between
fields.)

Source: Numba's typing/arraydecl.py and np/arrayobj.py, where they mention records.
"""

import math

import numpy as np
from numba.core import types

from simt.access import load, store
from simt.arithmetic import DTYPES, Misuse
from simt.lanes import Frame
from simt.memory import Array, contiguous
from simt.names import cast_target
from simt.views import partial_view


def item_type(thing: object) -> np.dtype | None:
    """What an array can hold: numbers, or records of a type of NumPy or Numba. None: neither."""
    dtype = thing.dtype if isinstance(thing, types.Record) else thing
    is_record = isinstance(dtype, np.dtype) and dtype.names is not None
    return dtype if is_record else cast_target(thing)


def has_fields(thing: object) -> bool:
    """Is it a record, or an array of records?"""
    return isinstance(thing, Array) and thing.dtype.names is not None


def is_field(thing: object, name: str) -> bool:
    """Does thing.name mean a field? Of an array, what every array has comes first: .size, .T"""
    if not has_fields(thing) or thing.ndim == 0:
        return has_fields(thing)
    return name in thing.dtype.names and not hasattr(np.ndarray, name)


def by_name(thing: object, name: str) -> tuple[str]:
    """The index in thing["x"]."""
    if not has_fields(thing):
        raise Misuse(f"{thing} holds no records, so it has no field {name!r}")
    return (name,)


def read(frame: Frame, array: Array, indices: tuple, place: int) -> object:
    """array[indices]: the number in a field; or a record, or several, or an array: as a view."""
    return _loaded(frame, _chosen(frame, array, indices, place), place)


def _loaded(frame: Frame, found: Array, place: int) -> object:
    return found if found.ndim or has_fields(found) else load(frame, found, (), place)


def write(frame: Frame, array: Array, indices: tuple, value: object, place: int) -> None:
    """array[indices] = value: a number into a field, a record, or an array inside a record."""
    target = _chosen(frame, array, indices, place)
    if array.ndim and target.ndim:
        raise Misuse(
            f"the simulator stores one record or field at a time: write a loop for {target.name}"
        )
    _assign(frame, target, value, place)


def _chosen(frame: Frame, array: Array, indices: tuple, place: int) -> Array:
    """A part of an array of records, or a field, by its name."""
    if isinstance(key := indices[0], str):
        field = _field(array, key)
        is_number = not (array.ndim or field.dtype.names)
        if is_number and (field.phase - array.phase) % field.dtype.alignment:
            raise Misuse(
                f"the field {key} isn't aligned, so Numba doesn't take it from a record: make the "
                "type of the records with align=True"
            )
        return field
    if len(indices) > array.ndim:
        raise Misuse(f"{array.name} has {array.ndim} dimensions, the index has {len(indices)}")
    return partial_view(frame, array, indices, place)


def _field(array: Array, name: str) -> Array:
    """A field, of each record. From one item to the next it is as far as both the records and the
    items in them allow: a float64 in records of 12 bytes has one at every multiple of 4."""
    if name not in array.dtype.names:
        raise Misuse(f"{array.name} has no field {name!r}; it has {', '.join(array.dtype.names)}")
    dtype, offset = array.dtype.fields[name][:2]
    item, memory = dtype.base, array.memory
    if item.names is None and item not in DTYPES:
        raise Misuse(f"the field {name} of {array.name} holds {item.str}, not a number")
    step = math.gcd(array.step, item.itemsize)
    inside = contiguous(dtype.shape) if dtype.shape else ()
    strides = [stride * (array.step // step) for stride in array.strides]
    strides += [stride * (item.itemsize // step) for stride in inside]
    start = array.start * (array.step // step)
    view = array.view((*array.shape, *dtype.shape), tuple(strides), start, name)
    view.name, view.fields = f"{array.name}.{name}", f"{array.fields}.{name}"
    view.dtype, view.step, view.phase = item, step, array.phase + offset
    count = (len(memory.data) - view.phase - item.itemsize) // step + 1
    view.flat = np.ndarray((max(count, 0),), item, memory.data[view.phase :], 0, (step,))
    return view


def _assign(frame: Frame, target: Array, value: object, place: int) -> None:
    """Copies number by number."""
    if not target.ndim and not has_fields(target):
        store(frame, target, (), value, place)
        return
    kind = target.dtype, target.shape
    if not isinstance(value, Array) or (value.dtype, value.shape) != kind:
        raise Misuse(f"{target.name} can only be assigned a copy of the same type and shape")
    for name in target.dtype.names or ():
        _assign(frame, _field(target, name), _loaded(frame, _field(value, name), place), place)
    for index in () if has_fields(target) else np.ndindex(*target.shape):
        store(frame, target, index, load(frame, value, index, place), place)
