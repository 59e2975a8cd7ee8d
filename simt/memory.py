"""Memory as bytes, with a shadow that remembers who accessed them; arrays as views of it.

A Memory is one allocation: a NumPy array of the caller, a shared array of a thread block, the
dynamic shared memory, or one local array of every lane. Arrays are views, and several of them may
cover the same bytes with different types. So the checks remember accesses by address. The smallest
item of any view determines the size of a shadow cell.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from simt.arithmetic import Misuse
from simt.lanes import Lanes

# Addresses are made up, so that they are the same in every run. cudaMalloc aligns to 256 bytes.
ALIGNMENT = 256
MOST_LATER = 32  # accesses that may wait, so that they don't fill the memory
LARGEST_ITEM = 16  # bytes; also the alignment of the dynamic shared memory


class Memory:
    """One allocation.

    data         [num_bytes] uint8
    space        "global", "shared" or "local"
    address      of the first byte
    cell         bytes covered by one shadow cell: the smallest item of any view so far
    written      [num_cells] bool: was it ever written? None: all of it was
    only_read    the kernel's text never writes to it, so no access to it can race
    accesses     kind of access -> stamps [num_cells] int64 of the latest ones, see races.py
    later        kind -> functions that enter what isn't in `accesses` yet: most accesses are before
                 a barrier when another kind of access comes, and need never be entered
    latest       kind -> the start of the latest interval between barriers with such an access
    atomics      byte -> how many atomic operations it has had, if the kernel has fences, and
    handed_over  (byte, thread block or None for all) -> what these hand over; see fences.py
    """

    def __init__(self, data: np.ndarray, space: str, address: int, written: bool) -> None:
        self.data, self.space, self.address = data, space, address
        self.cell = LARGEST_ITEM
        self.written = None if written else np.zeros(self.num_cells, bool)
        self.accesses: dict[str, tuple[np.ndarray, ...]] = {}
        self.later: dict[str, list[Callable[[], None]]] = {}
        self.latest: dict[str, int] = {}
        self.atomics: dict[int, int] = {}
        self.handed_over: dict[tuple[int, int | None], dict] = {}
        self.only_read = False
        self.scratch = np.zeros(0, np.int64)  # for sorting the lanes of one access by cell

    @property
    def num_cells(self) -> int:
        return -(-len(self.data) // self.cell)

    def noted(self, kind: str, count: int) -> tuple[np.ndarray, ...]:
        """`count` stamps per cell, allocated when the first access of a kind is noted."""
        if kind not in self.accesses:
            stamps = np.zeros((count, self.num_cells), np.int64)
            self.accesses[kind] = tuple(stamps)
        return self.accesses[kind]

    def note_later(self, kind: str, note: Callable[[], None], floor: int) -> None:
        """note  enters an access; it is called before another access could race with this one
        floor  the start of this interval: what is shared within a thread block can't race with
               anything earlier
        """
        if self.space == "shared" and self.latest.get(kind, 0) < floor:
            self.later.pop(kind, None)
        self.later.setdefault(kind, []).append(note)
        if len(self.later[kind]) == MOST_LATER:
            self.settle(kind)

    def settle(self, kind: str) -> None:
        """Enters all accesses of this kind."""
        for note in self.later.pop(kind, ()):
            note()

    def forget_accesses(self) -> None:
        for kept in (self.accesses, self.later, self.latest):
            kept.clear()

    def room(self) -> np.ndarray:
        """[num_cells] int64 with arbitrary contents."""
        if len(self.scratch) < self.num_cells:
            self.scratch = np.zeros(self.num_cells, np.int64)
        return self.scratch

    def split_cells(self, size: int) -> None:
        """Makes the cells small enough for items of this size, or at this offset."""
        finer = math.gcd(self.cell, size) if size else self.cell
        if finer == self.cell:
            return
        for kind in [*self.later]:
            self.settle(kind)
        pieces = self.cell // finer
        self.cell = finer
        if self.written is not None:
            self.written = np.repeat(self.written, pieces)[: self.num_cells]
        for kind, stamps in self.accesses.items():
            finer_stamps = (np.repeat(s, pieces)[: self.num_cells] for s in stamps)
            self.accesses[kind] = tuple(finer_stamps)


class Array:
    """A view of a memory, as a kernel sees it.

    flat     the memory as items of the array's type
    shape    sizes; a number, or one per lane
    strides  in items
    start    item of flat that is element [0, 0, ...]; a number, or one per lane
    step     bytes from one item of flat to the next; the items of a field may overlap (records.py)
    fields   of a field of a record: what follows the record in its name, such as .x
    absent   [width] bool: lanes that have no valid view, after a finding; None: no lane
    lane     [width] the numbers of the lanes, if each has an array of its own, whose items count
             from its start. flat has item 0 of all lanes, then item 1, and so on, so that one item
             of all lanes is a part without gaps. None: all lanes share the items
    """

    absent: np.ndarray | None = None
    lane: np.ndarray | None = None
    fields = ""
    base: "Array | None" = None  # the array that this is a view of; None: it isn't a view

    def __init__(
        self,
        memory: Memory,
        dtype: np.dtype,
        shape: tuple,
        strides: tuple[int, ...],
        start: object = 0,
        name: str = "",
        phase: int = 0,
        read_only: bool = False,
    ) -> None:
        self.memory, self.dtype, self.name, self.read_only = memory, dtype, name, read_only
        self.shape, self.strides, self.start = shape, strides, start
        self.step = dtype.itemsize
        for size in (phase, *_sizes_and_offsets(dtype)):
            memory.split_cells(size)
        self.phase = phase  # bytes before the first item of flat
        usable = (len(memory.data) - phase) // dtype.itemsize * dtype.itemsize
        self.flat = memory.data[phase : phase + usable].view(dtype)

    def __str__(self) -> str:
        return f"the array {self.name}"

    __repr__ = __str__  # in a tuple

    @property
    def whole(self) -> "Array":
        return self.base or self

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> object:
        return math.prod(self.shape)

    def must_be_writable(self) -> None:
        if self.read_only:
            raise Misuse(f"{self.name} is read-only: Numba doesn't store into it")

    def view(self, shape: tuple, strides: tuple[int, ...], start: object, what: str) -> "Array":
        """Another view of the same items."""
        other = object.__new__(Array)
        other.__dict__.update(self.__dict__)
        other.shape, other.strides, other.start = shape, strides, start
        other.base = self.whole
        other.name = f"{self.name}[{what}]"
        return other

    def merged_with(self, old: object, lanes: Lanes) -> "Array":
        """This view in some lanes, an older one of the same memory in the others."""
        same = (
            isinstance(old, Array)
            and old.memory is self.memory
            and (old.dtype, old.strides, old.phase) == (self.dtype, self.strides, self.phase)
            and old.step == self.step
        )
        if not same:
            raise Misuse(f"{self.name} would refer to different arrays in different lanes")
        flags = lanes.flags
        shape = tuple(
            a if a is b else np.where(flags, b, a)
            for a, b in zip(old.shape, self.shape, strict=True)
        )
        start = np.where(flags, self.start, old.start)
        view = self.view(shape, self.strides, start, "...")
        if old.whole is not self.whole:  # two arguments that share memory
            names = f"{old.whole.name} or {self.whole.name}"
            view.base = self.view((len(self.flat),), (1,), 0, "...")
            view.base.name, view.base.base = names, None
        if self.absent is not None or old.absent is not None:
            nobody = np.zeros_like(flags)
            sides = (nobody if a is None else a for a in (self.absent, old.absent))
            view.absent = np.where(flags, *sides)
        return view

    def places(self, items: int | np.ndarray, lanes: Lanes) -> int | slice | np.ndarray:
        """Where these lanes have their items in flat."""
        if self.lane is None:
            return items if type(items) is int or lanes.everyone else items[lanes.numbers]
        width = len(self.lane)
        if type(items) is int:
            first = items * width
            return slice(first, first + width) if lanes.everyone else lanes.numbers + first
        places = items * width + self.lane
        return places if lanes.everyone else places[lanes.numbers]

    def addresses(self, items: np.ndarray) -> np.ndarray:
        """Byte addresses of items."""
        return self.memory.address + self.phase + items * self.step

    def cells(self, items: np.ndarray, count: int = 1) -> np.ndarray:
        """The shadow cells of `count` items, starting at each of these: [items, cells]."""
        first = (items * self.step + self.phase) // self.memory.cell
        return first[:, None] + np.arange(self.dtype.itemsize // self.memory.cell * count)

    def item_of(self, cell: int) -> int:
        """The item of flat that a shadow cell belongs to."""
        return (cell * self.memory.cell - self.phase) // self.step


def _sizes_and_offsets(dtype: np.dtype) -> Iterator[int]:
    """Of an item, and of everything in it: no cell may hold parts of two fields."""
    yield dtype.base.itemsize
    for part, offset, *_ in (dtype.base.fields or {}).values():
        yield offset
        yield from _sizes_and_offsets(part)


def root_extent(array: np.ndarray) -> tuple[int, int]:
    """The first byte of the allocation that an array views, and one past its last."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return np.lib.array_utils.byte_bounds(root)


def index_of(
    items: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[np.ndarray, ...]:
    """The index along each axis, for items counted from element [0, 0, ...]."""
    # from here on, counted from the item with the lowest address
    rest = items - sum(min(s, 0) * (n - 1) for n, s in zip(shape, strides, strict=True))
    index = [np.zeros_like(rest)] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda axis: -abs(strides[axis])):
        step = abs(strides[axis])
        if step and shape[axis] != 1:  # the stride of an axis of size 1 means nothing
            index[axis] = rest // step
            rest = rest % step
        if strides[axis] < 0:
            index[axis] = shape[axis] - 1 - index[axis]
    return tuple(index)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in items, of an array without gaps, last index fastest."""
    strides = [1]
    for size in shape[:0:-1]:
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))


def aligned(number: int, to: int) -> int:
    """The number rounded up to a multiple of `to`."""
    return -(-number // to) * to
