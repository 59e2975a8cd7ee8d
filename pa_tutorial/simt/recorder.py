"""The recorder: notes what the traced thread blocks do, and makes the trace of it.

While the kernel runs, an entry only keeps what the machine has at hand anyway. The records, one
for each lane, are made in the end: an entry is a warp instruction of each warp in it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np

from pa_tutorial.simt.lanes import Frame, Lanes
from pa_tutorial.simt.memory import Array
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.simt.snapshots import Index
from pa_tutorial.simt.source import Site, Source
from pa_tutorial.simt.trace import (
    KINDS,
    NO_ARRAY,
    NO_LANE,
    RECORD,
    SPACES,
    Trace,
    TracedArray,
    Way,
)

# As many as leave what is computed on the way in the processor's cache: so a trace takes as much
# time for each record, however many there are.
ENTRIES_AT_ONCE = 256


class Entry(NamedTuple):
    """One expression, executed once by the lanes of a gang.

    first         thread of the gang that is its lane 0
    way           the calls and the turns of loops that led here
    items         item of array.flat: one for all lanes, or [width]
    source_lanes  [width] the lane that each lane reads by a shuffle
    """

    block: Index
    place: int
    kind: str
    lanes: Lanes
    first: int
    way: Way
    array: Array | None = None
    items: int | np.ndarray = 0
    num_bytes: int = 0
    source_lanes: np.ndarray | None = None


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
        where = gang.block.index, place, kind, lanes, gang.first, gang.way
        self.entries.append(Entry(*where, array, items, num_bytes))

    def event(
        self, frame: Frame, place: int, kind: str, source_lanes: np.ndarray | None = None
    ) -> None:
        """A shuffle, a vote, a syncwarp, a barrier, by the lanes at work."""
        gang = frame.gang
        where = gang.block.index, place, kind, frame.lanes, gang.first, gang.way
        self.entries.append(Entry(*where, source_lanes=source_lanes))

    def trace(
        self,
        kernel: str,
        file: str,
        grid: Index,
        block: Index,
        sites: Sequence[Site],
        sources: Sequence[Source],
    ) -> Trace:
        entries, numbers = self.entries, _Numbers(self.blocks, grid)
        records = np.recarray(sum(entry.lanes.count for entry in entries), RECORD)
        rest, instruction = records, 0
        for first in range(0, len(entries), ENTRIES_AT_ONCE):
            some = entries[first : first + ENTRIES_AT_ONCE]
            here, rest = np.split(rest, [sum(entry.lanes.count for entry in some)])
            _fill(here, some, numbers)
            here["instruction"] += instruction
            instruction = here["instruction"][-1] + 1
        found = tuple(sites), tuple(numbers.arrays), tuple(numbers.ways), tuple(sources)
        return Trace(kernel, file, grid, block, records, *found)


class _Numbers:
    """By which numbers the records of one trace name thread blocks, arrays and ways."""

    def __init__(self, blocks: Iterable[Index], grid: Index) -> None:
        self.blocks = {b: int(np.ravel_multi_index(b[::-1], grid[::-1])) for b in blocks}
        self.arrays: dict[TracedArray, int] = {}
        self.ways: dict[Way, int] = {}
        self.of_array = cache(self._of_array)

    def _of_array(self, array: Array) -> int:
        local = array.memory.space == "local"
        first = 0 if local else int(array.addresses(array.start))
        of_array = array.name, array.memory.space, array.dtype
        traced = TracedArray(*of_array, array.shape, array.strides, first)
        return self.arrays.setdefault(traced, len(self.arrays))

    def of_way(self, way: Way) -> int:
        return self.ways.setdefault(way, len(self.ways))


def _fill(records: np.recarray, entries: list[Entry], numbers: _Numbers) -> None:
    """Writes the records of some entries; their instructions are counted from 0."""
    counts = [entry.lanes.count for entry in entries]
    of_entry = np.repeat(np.arange(len(entries)), counts)
    threads = np.concatenate([entry.lanes.numbers for entry in entries])
    threads += np.array([entry.first for entry in entries])[of_entry]
    sizes = [0 if entry.array is None else entry.array.dtype.itemsize for entry in entries]
    items = np.concatenate([_items(entry) for entry in entries])

    of_entries = np.array([_of_all_lanes(entry, numbers) for entry in entries], records.dtype)
    np.take(of_entries, of_entry, out=records, mode="clip")  # all are inside: clip only saves time
    records["warp"], records["lane"] = threads // WARP_SIZE, threads % WARP_SIZE
    records["address"] += items * np.array(sizes)[of_entry]
    records["source_lane"] = np.concatenate([_source_lanes(entry) for entry in entries])
    new = (np.diff(of_entry, prepend=-1) != 0) | (np.diff(records["warp"], prepend=-1) != 0)
    records["instruction"] = np.cumsum(new) - 1


def _of_all_lanes(entry: Entry, numbers: _Numbers) -> tuple[int, ...]:
    """A record of what all lanes have in common; the address is that of item 0."""
    array, number, space, address = entry.array, NO_ARRAY, "none", 0
    if array is not None:
        number, space = numbers.of_array(array.whole), array.memory.space
        address = array.memory.address + array.phase
    return (
        *(numbers.blocks[entry.block], 0, 0, entry.place, 0, KINDS.index(entry.kind)),
        *(SPACES.index(space), number, address, entry.num_bytes, 0, numbers.of_way(entry.way)),
    )


def _items(entry: Entry) -> np.ndarray:
    """The item for each lane; in local memory, counted in the lane's own array."""
    array, items, lanes = entry.array, entry.items, entry.lanes
    if type(items) is int:
        return np.full(lanes.count, items)
    here = items if lanes.everyone else items[lanes.numbers]
    if array.memory.space == "local":
        return here % (len(array.flat) // len(lanes.flags))
    return here


def _source_lanes(entry: Entry) -> np.ndarray:
    if entry.source_lanes is None:
        return np.full(entry.lanes.count, NO_LANE)
    return entry.source_lanes[entry.lanes.numbers]
