"""Loads and stores: which address an access has, whether it is allowed, and what it moves.

Three checks are made here. memory: is the index inside the array, and is a vector aligned? init:
was the value ever written? race: see races.py.
"""

import numpy as np

from simt.arithmetic import INT64, Misuse, Value, cast, dtype_of, plain
from simt.lanes import Frame, Lanes
from simt.memory import Array, index_of
from simt.races import PLACE, PLACES, THREADS, Conflict

DOES = {"read": "reads", "write": "writes", "atomic": "atomically updates", "view": "indexes"}
DID = {"read": "read", "write": "wrote", "atomic": "atomically updated"}
VECTOR_SIZES = (1, 2, 4, 8, 16)  # bytes that one lane can load or store at once
Items = int | np.ndarray  # one for all lanes, or one per lane
Places = int | slice | np.ndarray  # where lanes have these items in array.flat


def load(frame: Frame, array: Array, indices: tuple[Value, ...], place: int) -> Value:
    """array[indices], for each active lane."""
    items, lanes = locate(frame, array, indices, place, "read")
    if not lanes.count:
        return cast(0, array.dtype)
    check(frame, array, items, lanes, place, "read")
    places = array.places(items, lanes)
    if type(places) is int:
        return plain(array.flat[places])
    if lanes.everyone:
        return array.flat[places].copy() if type(places) is slice else array.flat[places]
    result = np.zeros(frame.gang.width, array.dtype)
    result[lanes.numbers] = array.flat[places]
    return result


def store(frame: Frame, array: Array, indices: tuple[Value, ...], value: Value, place: int) -> None:
    """array[indices] = value. If several lanes write one item, the last one wins."""
    array.must_be_writable()
    items, lanes = locate(frame, array, indices, place, "write")
    if not lanes.count:
        return
    check(frame, array, items, lanes, place, "write")
    _put(array, array.places(items, lanes), cast(value, array.dtype), lanes)


def _put(array: Array, places: Places, value: Value, lanes: Lanes) -> None:
    """value  of one type with the array: one number, or one per lane of the gang"""
    if type(value) is np.ndarray:
        if type(places) is int:
            value = value[lanes.numbers[-1]]
        elif not lanes.everyone:
            value = value[lanes.numbers]
    array.flat[places] = value


def load_vector(
    frame: Frame, array: Array, indices: tuple[Value, ...], count: int, place: int
) -> tuple[np.ndarray, ...]:
    """`count` neighbours along the last index, as one aligned access: a tuple of values."""
    items, lanes = _locate_vector(frame, array, indices, count, place, "read")
    if lanes.count:
        check(frame, array, items, lanes, place, "read", count)
    size, first = count * array.dtype.itemsize, array.memory.address + array.phase
    if array.lane is None and first % size == 0 and frame.gang.machine.memory:
        # Aligned vectors are rows of flat.
        rows = array.flat[: len(array.flat) // count * count].reshape(-1, count)
        found = rows[array.places(items, lanes) >> count.bit_length() - 1]
    else:
        each = [array.flat[array.places(items + i, lanes)] for i in range(count)]
        found = np.stack(each, axis=-1)
    if lanes.everyone:
        return tuple(np.ascontiguousarray(found.T))
    result = np.zeros((frame.gang.width, count), array.dtype)
    result[lanes.numbers] = found
    return tuple(np.ascontiguousarray(result.T))


def store_vector(
    frame: Frame, array: Array, indices: tuple[Value, ...], values: tuple[Value, ...], place: int
) -> None:
    """Writes neighbours along the last index, as one aligned access."""
    array.must_be_writable()
    items, lanes = _locate_vector(frame, array, indices, len(values), place, "write")
    if not lanes.count:
        return
    check(frame, array, items, lanes, place, "write", len(values))
    for i, value in enumerate(values):
        _put(array, array.places(items + i, lanes), cast(value, array.dtype), lanes)


def locate(
    frame: Frame, array: Array, indices: tuple[Value, ...], place: int, kind: str, count: int = 1
) -> tuple[Items, Lanes]:
    """The items that the lanes access, and the lanes whose index is allowed (all, if unchecked).

    Slices are skipped here; views.py handles them.
    count  items accessed along the last index; 0 only checks the index
    """
    lanes = frame.lanes if array.absent is None else frame.lanes.where(~array.absent)
    checked = frame.gang.machine.memory
    if (quick := _items_inside(array, indices, checked, count)) is not None:
        return quick, lanes
    items: Items = array.start
    for axis, index in enumerate(indices):
        if type(index) is slice:
            continue
        index = _as_integer(index, array)
        if checked:
            outside = lanes.where(np.less(index, 0) | np.greater_equal(index, array.shape[axis]))
            if outside.count:
                _report_outside(frame, array, indices, outside, place, kind)
            lanes = lanes.minus(outside)
        else:
            index = _from_start(index, array.shape[axis])
        items = items + index * array.strides[axis]
    if count and not checked:
        _must_be_in_memory(frame, array, items, lanes, place, count)
    return items, lanes


def _from_start(index: int | np.ndarray, size: int | np.ndarray) -> int | np.ndarray:
    """A negative index counts from the end of its axis, as in Numba."""
    if type(index) is int and type(size) is int:
        return index + size if index < 0 else index
    return np.where(np.less(index, 0), index + size, index)


def _items_inside(
    array: Array, indices: tuple[Value, ...], checked: bool, count: int
) -> Items | None:
    """The items if the index fits in every lane, idle ones included; None: look closer."""
    if not checked and array.base is not None:
        return None  # the view itself may be out of bounds: the indices that made it are unchecked
    items, last = array.start, len(indices) - 1
    for axis, index in enumerate(indices):
        if type(index) is slice:
            continue
        index, size, stride = _as_integer(index, array), array.shape[axis], array.strides[axis]
        if type(size) is not int:
            return None
        if axis == last and count > 1:
            size -= count - 1
        if type(index) is int:
            if not 0 <= index < size:
                return None
        elif size < 0 or np.maximum.reduce(index.view(np.uint64)) >= size:  # -1 becomes large
            return None
        step = index if stride == 1 else index * stride
        items = step if type(items) is int and items == 0 else items + step
    return items


def _as_integer(index: Value, array: Array) -> int | np.ndarray:
    if _is_plain(index):
        return index
    if dtype_of(index).kind not in "iu":
        raise Misuse(f"an index of {array.name} must be an integer, not {dtype_of(index)}")
    if not isinstance(index, np.ndarray):
        return int(index)
    return index if index.dtype == INT64 else index.astype(np.int64)


def _is_plain(index: Value) -> bool:
    return type(index) is int or (type(index) is np.ndarray and index.dtype is INT64)


def _report_outside(
    frame: Frame, array: Array, indices: tuple[Value, ...], outside: Lanes, place: int, kind: str
) -> None:
    lane = outside.numbers[0]
    index = tuple(":" if type(i) is slice else _of_lane(i, lane) for i in indices)
    shape = tuple(_of_lane(s, lane) for s in array.shape)
    what = f"{DOES[kind]} {_item(array, index)}, out of bounds: the shape is {shape}"
    is_dynamic = array.base is None and array.memory is frame.gang.block.dynamic
    more = {"array": array.name, "index": index, "shape": shape, "is_dynamic": is_dynamic}
    frame.gang.find("memory", place, lane, what, **more)


def _item(array: Array, index: tuple[int, ...]) -> str:
    return f"{array.name}[{', '.join(map(str, index))}]" if index else array.name


def _owner(array: Array, item: int, lane: int) -> tuple[Array, tuple[int, ...]]:
    """The array that an item belongs to, and its index there; of a field, those of its record."""
    whole = array.whole if array.fields else array
    item = (array.phase + item * array.step - whole.phase) // whole.step
    shape = tuple(_of_lane(size, lane) for size in whole.shape)
    found = index_of(np.asarray(item - _of_lane(whole.start, lane)), shape, whole.strides)
    return whole, tuple(map(int, found))


def _of_lane(value: Value, lane: int) -> int:
    return int(value[lane]) if isinstance(value, np.ndarray) else int(value)


def _locate_vector(
    frame: Frame, array: Array, indices: tuple[Value, ...], count: int, place: int, kind: str
) -> tuple[np.ndarray, Lanes]:
    """Like locate, for a vector: its last item must be inside too, and it must be aligned."""
    if len(indices) != array.ndim:
        raise Misuse(f"{array.name} has {array.ndim} dimensions, the index has {len(indices)}")
    if array.strides[-1] != 1:
        raise Misuse(f"a vector of {array.name} must be contiguous; its last stride is not 1")
    size = count * array.dtype.itemsize
    if size not in VECTOR_SIZES:
        raise Misuse(f"a lane moves 1, 2, 4, 8 or 16 bytes of {array.name} at once, not {size}")
    machine, outer = frame.gang.machine, frame.lanes
    items = None
    if array.absent is None and _is_plain(indices[-1]):
        items, lanes = _items_inside(array, indices, machine.memory, count), outer
    if items is None:
        _, lanes = locate(frame, array, (*indices[:-1], indices[-1] + (count - 1)), place, kind, 0)
        frame.lanes = lanes
        items, lanes = locate(frame, array, indices, place, kind, count)
        frame.lanes = outer
    if type(items) is int and array.lane is None:
        items = np.full(outer.flags.shape, items)
    if machine.memory and lanes.count and _may_be_misaligned(array, size):
        lanes = aligned_lanes(frame, array, items, lanes, size, place, kind)
    return items, lanes


def _may_be_misaligned(array: Array, size: int) -> bool:
    """Can an access of so many bytes begin at an address that isn't a multiple of them?"""
    return size > array.dtype.itemsize or array.phase != 0 or array.memory.address % size != 0


def aligned_lanes(
    frame: Frame, array: Array, items: np.ndarray, lanes: Lanes, size: int, place: int, kind: str
) -> Lanes:
    """The lanes whose access begins at a multiple of its size; the others are reported."""
    # Local memory holds the arrays of the lanes one after another, each as long as the first.
    own = 0 if array.lane is None else array.lane * (len(array.flat) // len(array.lane))
    past = array.addresses(items + own) % size
    crooked = lanes.where(past != 0)
    if crooked.count:
        lane = crooked.numbers[0]
        where = f"misaligned: {past[lane]} bytes past a multiple of {size}"
        what = f"{DOES[kind]} {size} bytes of {array.name}, {where}"
        frame.gang.find("memory", place, lane, what, array=array.name)
    return lanes.minus(crooked)


def touched(
    frame: Frame, array: Array, items: Items, lanes: Lanes, count: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """The shadow cells under an access and the thread of each, [n] and [n].

    If all lanes access one item, the first and the last lane represent them all.
    """
    if type(items) is int:
        numbers = lanes.ends
        here = np.array((items,) * len(numbers))
    else:
        numbers = lanes.numbers
        here = items if lanes.everyone else items[numbers]
    first = frame.gang.first
    threads = numbers + first if first else numbers
    if array.dtype.itemsize == array.memory.cell and count == 1:
        return (here + array.phase // array.memory.cell if array.phase else here), threads
    cells = array.cells(here, count)
    return cells.ravel(), np.repeat(threads, cells.shape[1])


def check(
    frame: Frame, array: Array, items: Items, lanes: Lanes, place: int, kind: str, count: int = 1
) -> None:
    """Check init and race for an access inside its array; in a traced block, record it.

    kind  "read", "write", or "atomic", which is both
    """
    gang, memory = frame.gang, array.memory
    if gang.recorder is not None:
        gang.recorder.access(frame, place, kind, lanes, array, items, count)
    if memory.only_read and kind != "read":
        raise AssertionError(f"{array.name} is written, but simt/writes.py says it never is")
    races = gang.machine.race and memory.space != "local" and not memory.only_read
    if memory.written is None and not races:
        return
    if array.lane is not None:
        _check_own(frame, array, items, lanes, place, kind, count)
        return
    cells, threads = touched(frame, array, items, lanes, count)
    if memory.written is not None:
        if kind != "write":
            written = memory.written[cells]
            if np.count_nonzero(written) < len(cells):
                item = array.item_of(int(cells[~written][0]))
                _report_unwritten(frame, array, threads[~written][0], item, place)
        if kind != "read":
            memory.written[cells] = True
    if races:
        conflict = gang.note_access(memory, kind, cells, threads, place)
        if conflict:
            _report_race(frame, array, conflict, kind, place)


def _check_own(
    frame: Frame, array: Array, items: Items, lanes: Lanes, place: int, kind: str, count: int
) -> None:
    """Check init where each lane has an array of its own, whose items are the shadow cells."""
    written, vector = array.memory.written, range(count)
    if kind != "write":
        parts = [written[array.places(items + i, lanes)] for i in vector]
        if sum(map(np.count_nonzero, parts)) < count * lanes.count:
            lane, i = np.argwhere(~np.stack(parts, axis=1))[0]
            number = lanes.numbers[lane]
            item = _of_lane(items, number) + int(i)
            _report_unwritten(frame, array, frame.gang.first + number, item, place)
    if kind != "read":
        for i in vector:
            written[array.places(items + i, lanes)] = True


def _must_be_in_memory(
    frame: Frame, array: Array, items: Items, lanes: Lanes, place: int, count: int
) -> None:
    """Without the memory check an access may leave its array, but never the array's memory."""
    outside = np.asarray(items).view(np.uint64) > len(array.flat) - count  # -1 becomes large
    if np.count_nonzero(outside) and (outside := lanes.where(outside[()])).count:
        site, who = frame.gang.machine.places[place], frame.gang.name_of(outside.numbers[0])
        what = f"{who} accesses memory outside {array.name} in line {site.line} of {site.function}"
        raise frame.gang.error(IndexError(f"{what}: {site.code}"))


def _report_unwritten(frame: Frame, array: Array, thread: int, item: int, place: int) -> None:
    lane = thread - frame.gang.first
    whole, index = _owner(array, item, lane)
    shape = tuple(_of_lane(size, lane) for size in whole.shape)
    where = f"{_item(whole, index)}{array.fields} in {array.memory.space} memory"
    what = f"reads {where}, which was never written"
    more = {"array": whole.name, "index": index, "shape": shape}
    frame.gang.find("init", place, lane, what, **more)


def _report_race(frame: Frame, array: Array, conflict: Conflict, kind: str, place: int) -> None:
    gang, machine = frame.gang, frame.gang.machine
    *parts, other_kind = conflict
    cell, now, before = (int(part[0]) for part in parts)
    lane, other = (now & THREADS) - gang.first, before & THREADS
    other_site = machine.places[before >> PLACE & PLACES]
    other_block = machine.block_of(before)
    same = other_block == gang.block.index
    who = machine.thread_name(other) + ("" if same else f" of {machine.block_name(other_block)}")
    whole, index = _owner(array, array.item_of(cell), lane)
    what = (
        f"{DOES[kind]} {_item(whole, index)}{array.fields}, which {who} {DID[other_kind]} "
        f"({other_site.text}, line {other_site.line}): "
        + ("no barrier in between" if same else "nothing orders two thread blocks")
    )
    more = {"other_site": other_site, "other_block": other_block, "other_thread": other}
    gang.find("race", place, lane, what, array=whole.name, index=index, **more)
