"""The recorder: notes what the traced thread blocks do, and makes the trace from that.

An entry only keeps what the machine has at hand anyway; it is one warp instruction of each warp
that takes part. The records, one per lane, are made from many entries at once.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from simt.gpus import WARP_SIZE
from simt.lanes import Frame, Lanes
from simt.memory import Array
from simt.snapshots import Index
from simt.source import Site, Source
from simt.trace import KINDS, NO_ARRAY, NO_LANE, RECORD, SPACES, Trace, TracedArray, Way

# Records are made from this many entries: intermediate results stay in the processor's cache, and
# Python's garbage collector never has many entries to look through.
ENTRIES_AT_ONCE = 256
PerLane = int | np.ndarray


class Entry(NamedTuple):
    """One expression, executed once by the lanes of a gang.

    first        the thread that is lane 0 of the gang
    way          the calls and loop turns that led here
    address      of the first byte: one for all lanes, or [width]
    source_lane  [width] the lane that each lane reads from in a shuffle
    """

    block: Index
    place: int
    kind: str
    lanes: Lanes
    first: int
    way: Way
    array: Array | None = None
    address: PerLane = 0
    num_bytes: int = 0
    source_lane: PerLane = NO_LANE


class Recorder:
    """Notes what the traced thread blocks do, and makes the trace from that at the end.

    blocks   traced thread block -> its number in the grid
    entries  those without records so far
    records  of the earlier entries, as bytes, which can grow without being copied
    arrays, ways   what the records refer to by number -> the number
    numbers  array -> the number of its traced array
    """

    def __init__(self, blocks: Iterable[Index], grid: Index) -> None:
        self.blocks = {b: int(np.ravel_multi_index(b[::-1], grid[::-1])) for b in blocks}
        self.entries: list[Entry] = []
        self.records = bytearray()
        self.arrays: dict[TracedArray, int] = {}
        self.ways: dict[Way, int] = {}
        self.numbers: dict[Array, int] = {}
        self.num_records = self.num_instructions = 0

    def access(
        self,
        frame: Frame,
        place: int,
        kind: str,
        lanes: Lanes,
        array: Array,
        items: PerLane,
        count: int,
    ) -> None:
        gang, num_bytes = frame.gang, count * array.dtype.itemsize
        where = gang.block.index, place, kind, lanes, gang.first, gang.way
        addresses = array.addresses(items)
        if array.memory.space == "local":  # they count from the start of the lane's array
            addresses = addresses % (len(array.memory.data) // gang.width)
        self._note(Entry(*where, array, addresses, num_bytes))

    def event(self, frame: Frame, place: int, kind: str, source_lane: PerLane = NO_LANE) -> None:
        """A shuffle, a vote, a syncwarp or a barrier of the active lanes."""
        gang = frame.gang
        where = gang.block.index, place, kind, frame.lanes, gang.first, gang.way
        self._note(Entry(*where, source_lane=source_lane))

    def _note(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.num_records += entry.lanes.count
        if len(self.entries) == ENTRIES_AT_ONCE:
            self._make_records()

    def _make_records(self) -> None:
        entries, counts = self.entries, [entry.lanes.count for entry in self.entries]
        of_entry = np.repeat(np.arange(len(entries)), counts)
        threads = np.concatenate([entry.lanes.numbers for entry in entries])
        threads += np.array([entry.first for entry in entries])[of_entry]
        records = np.array([self._of_all_lanes(entry) for entry in entries], RECORD).repeat(counts)
        records["warp"], records["lane"] = threads // WARP_SIZE, threads % WARP_SIZE
        for field in ("address", "source_lane"):
            each = [_of_each(getattr(entry, field), entry.lanes) for entry in entries]
            records[field] = np.concatenate(each)
        new = (np.diff(of_entry, prepend=-1) != 0) | (np.diff(records["warp"], prepend=-1) != 0)
        records["instruction"] = np.cumsum(new) - 1 + self.num_instructions
        self.num_instructions += np.count_nonzero(new)
        self.records += records.tobytes()
        entries.clear()

    def _of_all_lanes(self, entry: Entry) -> tuple[int, ...]:
        """A record with what all lanes have in common; 0 where they differ."""
        array, number, space = entry.array, NO_ARRAY, "none"
        if array is not None:
            number, space = self._number(array.whole), array.memory.space
        way = self.ways.setdefault(entry.way, len(self.ways))
        of_access = KINDS.index(entry.kind), SPACES.index(space), number, 0, entry.num_bytes
        return self.blocks[entry.block], 0, 0, entry.place, 0, *of_access, 0, way

    def _number(self, array: Array) -> int:
        if array not in self.numbers:
            space = array.memory.space
            first = 0 if space == "local" else int(array.addresses(array.start))
            traced = TracedArray(array.name, space, array.dtype, array.shape, array.strides, first)
            self.numbers[array] = self.arrays.setdefault(traced, len(self.arrays))
        return self.numbers[array]

    def trace(
        self,
        kernel: str,
        file: str,
        grid: Index,
        block: Index,
        sites: Sequence[Site],
        sources: Sequence[Source],
    ) -> Trace:
        if self.entries:
            self._make_records()
        records = np.frombuffer(self.records, RECORD).view(np.recarray)
        found = tuple(sites), tuple(self.arrays), tuple(self.ways), tuple(sources)
        return Trace(kernel, file, grid, block, records, *found)


def _of_each(values: PerLane, lanes: Lanes) -> np.ndarray:
    """[count] the value of each lane in the set."""
    if type(values) is int:
        return np.full(lanes.count, values)
    return values if lanes.everyone else values[lanes.numbers]
