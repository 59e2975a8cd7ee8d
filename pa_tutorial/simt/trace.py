"""The trace: every access, shuffle and barrier of chosen thread blocks, lane by lane.

A warp instruction is one expression, executed once by the lanes of one warp that are at work.
The machine executes it in one piece, so lanes that go through nested loops of different lengths
are grouped as they were: no counting of "the n-th time at this line" is needed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from pa_tutorial.simt.lanes import Frame, Lanes
from pa_tutorial.simt.memory import Array, index_of
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.simt.snapshots import Index
from pa_tutorial.simt.source import Site

KINDS = ("read", "write", "atomic", "shuffle", "vote", "syncwarp", "barrier")
SPACES = ("none", "global", "shared", "local")
NO_ARRAY = NO_LANE = -1

RECORD = np.dtype(
    [
        ("block", np.int32),
        ("warp", np.int16),
        ("lane", np.int8),
        ("place", np.int16),
        ("instruction", np.int32),
        ("kind", np.uint8),
        ("space", np.uint8),
        ("array", np.int16),
        ("address", np.int64),
        ("num_bytes", np.int16),
        ("source", np.int8),
    ]
)


@dataclass(frozen=True)
class TracedArray:
    """An array as the kernel knows it.

    address  of the element [0, 0, ...]: invented, but aligned as cudaMalloc does; in shared
             memory, from the start of the block's; in local memory, from the start of the
             lane's array
    strides  in items
    """

    name: str
    space: str
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int

    def indices(self, addresses: np.ndarray) -> tuple[np.ndarray, ...]:
        """The index along each axis of the elements at these byte addresses."""
        items = (np.asarray(addresses) - self.address) // self.dtype.itemsize
        return index_of(items, self.shape, self.strides)


@dataclass(frozen=True)
class Trace:
    """What the traced thread blocks did.

    records  one for each lane of each warp instruction, in the order of execution; fields:
             block        number of the thread block in the grid, x fastest
             warp, lane   thread = 32 * warp + lane
             place        index in `sites`: which expression of the kernel
             instruction  number of the warp instruction in this trace
             kind         index in KINDS
             space        index in SPACES ("none": not an access)
             array        index in `arrays`, or NO_ARRAY
             address      of the first byte; num_bytes: a vector is one access
             source       of a shuffle: the lane that is read from; else NO_LANE
    """

    kernel: str
    grid: Index
    block: Index
    records: np.recarray
    sites: tuple[Site, ...]
    arrays: tuple[TracedArray, ...]

    def __len__(self) -> int:
        return len(self.records)

    @property
    def threads(self) -> np.ndarray:
        """[num_records] number of the thread in its thread block."""
        return self.records.warp.astype(int) * WARP_SIZE + self.records.lane

    @property
    def num_warps(self) -> int:
        """Of a thread block."""
        return -(-math.prod(self.block) // WARP_SIZE)

    @property
    def num_instructions(self) -> int:
        return len(np.unique(self.records.instruction))

    def only(
        self,
        where: int | str | None = None,
        *,
        kind: str | None = None,
        space: str | None = None,
        array: str | None = None,
        block: int | None = None,
        warp: int | None = None,
        instruction: int | None = None,
    ) -> "Trace":
        """The records that match all that is given.

        where  number of a line, or a piece of the text of its expression
        array  its name

        Raises ValueError for a kind, a space, an array or a place that the trace does not have.
        """
        records = self.records
        keep = np.ones(len(records), bool)
        if where is not None:
            keep &= np.isin(records.place, self._places(where))
        if kind is not None:
            keep &= records.kind == _number("kind", kind, KINDS)
        if space is not None:
            keep &= records.space == _number("space", space, SPACES)
        if array is not None:
            _number("array", array, [a.name for a in self.arrays])
            numbers = [i for i, a in enumerate(self.arrays) if a.name == array]
            keep &= np.isin(records.array, numbers)
        for name, wanted in (("block", block), ("warp", warp), ("instruction", instruction)):
            if wanted is not None:
                keep &= records[name] == wanted
        return replace(self, records=records[keep])

    def _places(self, where: int | str) -> list[int]:
        """The places of a line, or of expressions with this text in them."""
        places = [
            i
            for i, site in enumerate(self.sites)
            if (site.line == where if isinstance(where, int) else where in site.text)
        ]
        if not places:
            raise ValueError(f"where: {self.kernel} has no place at {where!r}")
        return places

    def the_array(self) -> TracedArray:
        """The one array that is accessed here. Raises ValueError if there are more, or none."""
        numbers = np.unique(self.records.array[self.records.array != NO_ARRAY])
        if len(numbers) != 1:
            names = ", ".join(self.arrays[n].name for n in numbers) or "none"
            raise ValueError(f"the trace must be of one array, it is of: {names}; use only(array=)")
        return self.arrays[numbers[0]]

    def __str__(self) -> str:
        blocks = np.unique(self.records.block)
        what = f"thread block {blocks[0]}" if len(blocks) == 1 else f"{len(blocks)} thread blocks"
        counts = [(kind, np.count_nonzero(self.records.kind == i)) for i, kind in enumerate(KINDS)]
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in counts if count)
        return (
            f"trace of {self.kernel}: {what}, {self.num_instructions:,} warp instructions, "
            f"{len(self):,} records ({kinds})"
        )

    __repr__ = __str__


def _number(what: str, wanted: str, allowed: Sequence[str]) -> int:
    if wanted not in allowed:
        raise ValueError(f"{what} is {wanted!r}; it must be one of {', '.join(allowed)}")
    return list(allowed).index(wanted)


# Recording -----------------------------------------------------------------------------------


class Entry(NamedTuple):
    """One expression, executed once by the lanes of a gang.

    items    item of array.flat: one for all lanes, or [width]
    sources  [width] the lane that each lane reads by a shuffle
    """

    block: Index
    place: int
    kind: str
    lanes: Lanes
    first: int
    array: Array | None = None
    items: int | np.ndarray = 0
    num_bytes: int = 0
    sources: np.ndarray | None = None


@dataclass
class Recorder:
    """Notes what the traced thread blocks do; the trace is made of it in the end."""

    blocks: frozenset[Index]
    entries: list[Entry] = field(default_factory=list)

    def access(
        self,
        frame: Frame,
        place: int,
        kind: str,
        lanes: Lanes,
        array: Array,
        items: int | np.ndarray,
        count: int,
    ) -> None:
        gang, num_bytes = frame.gang, count * array.dtype.itemsize
        who = gang.block.index, place, kind, lanes, gang.first
        self.entries.append(Entry(*who, array, items, num_bytes))

    def event(self, frame: Frame, place: int, kind: str, sources: np.ndarray | None = None) -> None:
        """A shuffle, a vote, a syncwarp, a barrier, by the lanes at work."""
        gang = frame.gang
        who = gang.block.index, place, kind, frame.lanes, gang.first
        self.entries.append(Entry(*who, sources=sources))

    def trace(self, kernel: str, grid: Index, block: Index, sites: Sequence[Site]) -> Trace:
        entries = [entry for entry in self.entries if entry.lanes.count]
        known: dict[TracedArray, int] = {}
        numbers = [_array_number(entry, known) for entry in entries]
        blocks = [int(np.ravel_multi_index(entry.block[::-1], grid[::-1])) for entry in entries]
        counts = [entry.lanes.count for entry in entries]
        threads = _joined([entry.lanes.numbers + entry.first for entry in entries])
        of_entry = np.repeat(np.arange(len(entries)), counts)

        records = np.recarray(len(threads), RECORD)
        records.block = np.array(blocks, np.int32)[of_entry]
        records.warp, records.lane = threads // WARP_SIZE, threads % WARP_SIZE
        records.place = np.array([entry.place for entry in entries], np.int16)[of_entry]
        records.kind = np.array([KINDS.index(e.kind) for e in entries], np.uint8)[of_entry]
        spaces = [SPACES.index(e.array.memory.space) if e.array else 0 for e in entries]
        records.space = np.array(spaces, np.uint8)[of_entry]
        records.array = np.array(numbers, np.int16)[of_entry]
        records.num_bytes = np.array([entry.num_bytes for entry in entries], np.int16)[of_entry]
        records.address = _joined([_addresses(entry) for entry in entries])
        records.source = _joined([_sources(entry) for entry in entries])
        new = (np.diff(of_entry, prepend=-1) != 0) | (np.diff(records.warp, prepend=-1) != 0)
        records.instruction = np.cumsum(new) - 1
        return Trace(kernel, grid, block, records, tuple(sites), tuple(known))


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _array_number(entry: Entry, known: dict[TracedArray, int]) -> int:
    if entry.array is None:
        return NO_ARRAY
    array = entry.array.whole
    local = array.memory.space == "local"
    first = 0 if local else int(array.addresses(array.start))
    of_array = array.name, array.memory.space, array.dtype
    traced = TracedArray(*of_array, array.shape, array.strides, first)
    return known.setdefault(traced, len(known))


def _addresses(entry: Entry) -> np.ndarray:
    """Byte address for each lane; in local memory, counted in the lane's own array."""
    array, items, numbers = entry.array, entry.items, entry.lanes.numbers
    if array is None:
        return np.zeros(len(numbers), np.int64)
    here = np.full(len(numbers), items) if type(items) is int else items[numbers]
    addresses = array.addresses(here)
    if array.memory.space == "local":
        addresses = addresses % (len(array.memory.data) // len(entry.lanes.flags))
    return addresses


def _sources(entry: Entry) -> np.ndarray:
    if entry.sources is None:
        return np.full(entry.lanes.count, NO_LANE)
    return entry.sources[entry.lanes.numbers]
