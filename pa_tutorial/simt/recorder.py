"""The recorder: notes what the traced thread blocks do, and makes the trace of it.

While the kernel runs, an entry only keeps what the machine has at hand anyway. The records, one
for each lane, are made in the end: an entry is a warp instruction of each warp in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
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
        entries = self.entries
        known: dict[TracedArray, int] = {}
        ways: dict[Way, int] = {}
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
        spaces = [SPACES.index(e.array.memory.space) if e.array is not None else 0 for e in entries]
        records.space = np.array(spaces, np.uint8)[of_entry]
        records.array = np.array(numbers, np.int16)[of_entry]
        records.num_bytes = np.array([entry.num_bytes for entry in entries], np.int16)[of_entry]
        numbers = [ways.setdefault(entry.way, len(ways)) for entry in entries]
        records.way = np.array(numbers, np.int32)[of_entry]
        records.address = _joined([_addresses(entry) for entry in entries])
        records.source_lane = _joined([_source_lanes(entry) for entry in entries])
        new = (np.diff(of_entry, prepend=-1) != 0) | (np.diff(records.warp, prepend=-1) != 0)
        records.instruction = np.cumsum(new) - 1
        found = tuple(sites), tuple(known), tuple(ways), tuple(sources)
        return Trace(kernel, file, grid, block, records, *found)


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
    addresses = array.addresses(here % len(array.flat))  # unchecked, -1 is the last item
    if array.memory.space == "local":
        addresses = addresses % (len(array.memory.data) // len(entry.lanes.flags))
    return addresses


def _source_lanes(entry: Entry) -> np.ndarray:
    if entry.source_lanes is None:
        return np.full(entry.lanes.count, NO_LANE)
    return entry.source_lanes[entry.lanes.numbers]
