"""Races: two threads, one address, at least one write, and nothing that orders the two.

Every access leaves a stamp in the cells that it touches: which thread, from which place of the
kernel, in which interval between two barriers. Two accesses of one thread block are ordered if
there is a barrier between them, that is, if their intervals differ. Within an interval only
syncwarp orders accesses, and only for the lanes that it names: each lane counts its syncwarps (its
clock) and knows up to which clock it has waited for each other lane of its warp (a vector clock).
Accesses of different thread blocks are ordered only by fences and atomic operations, see fences.py;
a fence counts for the clock, too.

A read or an atomic operation is entered only when an access comes that could race with it, because
in shared memory there is most often a barrier in between, and then it needn't be.

A cell keeps its last write, up to four reads and up to four atomic operations, enough for the next
access to race with at least one of them. (Where masked syncwarps or fences order some threads, the
kept ones may all be ordered. So a race can be missed there, rarely; none is ever made up.)
Source: the happens-before of FastTrack (Flanagan and Freund, 2009), for barriers.
"""

from functools import partial

import numpy as np

from simt.fences import EVERYONE, Fences, Known
from simt.gpus import WARP_SIZE
from simt.memory import Memory

# A stamp, from the low bits: 10 for the thread, 16 clock, 13 place, the rest interval.
THREAD_BITS, CLOCK_BITS, PLACE_BITS = 10, 16, 13
CLOCK, PLACE = THREAD_BITS, THREAD_BITS + CLOCK_BITS
INTERVAL = PLACE + PLACE_BITS
THREADS, CLOCKS, PLACES = (1 << THREAD_BITS) - 1, (1 << CLOCK_BITS) - 1, (1 << PLACE_BITS) - 1
MAX_INTERVALS = 1 << (63 - INTERVAL)

RACES_WITH = {
    "read": ("write", "atomic"),
    "atomic": ("write", "read"),
    "write": ("write", "atomic", "read"),
}
# (cells, stamps of the accesses now, stamps of the accesses before, kind of those)
Conflict = tuple[np.ndarray, np.ndarray, np.ndarray, str]


class Ordering:
    """What is ordered before what, in one thread block.

    birth     the smallest stamp of this thread block; no other block shares an interval number
    floor     the smallest stamp of the current interval
    low_bits  [num_threads] thread and clock of each thread, as stamps hold them
    clocks    [warps, 32, 32] the clock of lane b up to which lane a has waited in this interval;
              None before the first syncwarp
    fences    what fences order; None: the kernel has none
    """

    def __init__(
        self, num_threads: int, first_interval: int, births: list[int] | None = None
    ) -> None:
        """births  of the thread blocks that have run; None: the kernel has no fences"""
        self.num_threads = num_threads
        self.birth = self.floor = first_interval << INTERVAL
        self.low_bits = np.arange(num_threads, dtype=np.int64)
        self.clocks: np.ndarray | None = None
        self.fences = None if births is None else Fences(num_threads, self.birth, births)
        if first_interval >= MAX_INTERVALS:
            raise OverflowError("too many barriers in one launch")

    @property
    def interval(self) -> int:
        return self.floor >> INTERVAL

    @property
    def only_barriers(self) -> bool:
        """Has nothing else ordered anything in this interval?"""
        return self.clocks is None and self.fences is None

    def barrier(self) -> None:
        """All threads have met: whatever came before is ordered before whatever follows."""
        self.floor += 1 << INTERVAL
        if self.fences is not None:
            self.fences.meet(range(self.num_threads), is_barrier=True)
        if not self.only_barriers:
            self.low_bits, self.clocks = np.arange(self.num_threads, dtype=np.int64), None

    def syncwarp(self, warp: int, members: np.ndarray) -> None:
        """These lanes of a warp (numbered within the warp) have met."""
        if self.clocks is None:
            warps = -(-self.num_threads // WARP_SIZE)
            self.clocks = np.full((warps, WARP_SIZE, WARP_SIZE), -1, np.int64)
        if not len(members):
            return
        known = self.clocks[warp]
        threads = warp * WARP_SIZE + members
        now = self.low_bits[threads] >> CLOCK
        together = known[members].max(axis=0)
        together[members] = now
        known[members] = together
        if self.fences is not None:
            self.fences.meet(threads.tolist(), is_barrier=False)
        self._tick(threads)

    def fence(self, threads: np.ndarray, scope: str) -> None:
        """Each thread executes a fence for its thread "block" or the "grid"."""
        if self.fences is None:
            return
        for thread in threads.tolist():
            self.fences.fence(thread, scope, self._before(thread))
        self._tick(threads)

    def _tick(self, threads: np.ndarray) -> None:
        if (self.low_bits[threads] >> CLOCK).max() >= CLOCKS - 1:
            most = CLOCKS - 1
            raise OverflowError(f"more than {most} fences or syncwarps between two barriers")
        self.low_bits[threads] += 1 << CLOCK

    def _before(self, thread: int) -> Known:
        """What the thread did, and what barriers and syncwarps order before what it does next."""
        before = {(self.birth, EVERYONE): self.floor - 1}
        if self.clocks is not None:
            warp, lane = divmod(thread, WARP_SIZE)
            for other, clock in enumerate(self.clocks[warp, lane].tolist()):
                time = self.floor + (clock << CLOCK)
                before[self.birth, warp * WARP_SIZE + other] = time
        before[self.birth, thread] = self.floor + int(self.low_bits[thread] & ~THREADS)
        return before

    def stamps(self, threads: np.ndarray, place: int) -> np.ndarray:
        return self.low_bits[threads] + (self.floor + (place << PLACE))

    def unordered(
        self, stamps: np.ndarray, threads: np.ndarray, between_blocks: bool
    ) -> np.ndarray:
        """The accesses of other threads that nothing orders before this one."""
        open_ = (stamps >= self.floor) & ((stamps ^ threads) & THREADS != 0)
        if self.clocks is not None and open_.any():
            open_ &= ~self._warp_ordered(stamps, threads)
        if between_blocks:
            open_ |= (stamps > 0) & (stamps < self.birth)
        if self.fences is not None and open_.any():
            before, times = stamps[open_], stamps[open_] & ~(PLACES << PLACE | THREADS)
            open_[open_] = ~self.fences.ordered(threads[open_], before & THREADS, times)
        return open_

    def _warp_ordered(self, stamps: np.ndarray, threads: np.ndarray) -> np.ndarray:
        other_threads, clocks = stamps & THREADS, (stamps >> CLOCK) & CLOCKS
        warps = threads // WARP_SIZE
        same_warp = warps == other_threads // WARP_SIZE
        known = self.clocks[warps, threads % WARP_SIZE, other_threads % WARP_SIZE]
        return same_warp & (clocks <= known)


def record(
    memory: Memory, kind: str, cells: np.ndarray, threads: np.ndarray, place: int, order: Ordering
) -> Conflict | None:
    """Notes an access to these cells, each by its thread; returns what it races with, or None.

    kind     "read", "write" or "atomic"
    threads  one per cell, in ascending order
    """
    between = memory.space == "global"
    floor, stamps = order.floor, order.stamps(threads, place)
    conflict = None
    for other_kind in RACES_WITH[kind]:
        if not between and memory.latest.get(other_kind, 0) < floor:
            continue  # a barrier has ordered all of them
        memory.settle(other_kind)
        for earlier in memory.accesses.get(other_kind, ()):
            before = earlier[cells]
            race = order.unordered(before, threads, between)
            if order.fences is not None and other_kind == "atomic":
                race[race] = ~order.fences.after_atomics(memory, cells[race], threads[race])
            if conflict is None and np.count_nonzero(race):
                conflict = cells[race], stamps[race], before[race], other_kind
    if kind == "write":
        within = _note_write(memory, cells, stamps)
        conflict = conflict or within
    else:
        note = partial(_note, memory, kind, cells, stamps, floor, order.birth, order.only_barriers)
        memory.note_later(kind, note, floor)
    memory.latest[kind] = max(floor, memory.latest.get(kind, 0))
    if order.fences is not None and kind == "atomic":
        order.fences.atomic(memory, cells, threads)
    return conflict


def _note_write(memory: Memory, cells: np.ndarray, stamps: np.ndarray) -> Conflict | None:
    """Keeps the last write. Returns the race of lanes that write one cell in one instruction."""
    (last,) = memory.noted("write", 1)
    last[cells] = stamps
    kept = last[cells]
    lost = kept != stamps
    return (cells[lost], kept[lost], stamps[lost], "write") if np.count_nonzero(lost) else None


def _note(
    memory: Memory,
    kind: str,
    cells: np.ndarray,
    stamps: np.ndarray,
    floor: int,
    birth: int,
    only_barriers: bool,
) -> None:
    """Notes one of possibly many accesses. Enough are kept for the next access to race with one.

    floor, birth   those of the access
    only_barriers  nothing else has ordered accesses in its interval
    last  the latest · near  by another thread of the same warp · far  by another warp ·
    foreign  by another thread block
    """
    last, near, far, foreign = memory.noted(kind, 4)
    before = last[cells]
    live = before >= floor
    own = live & ((before ^ stamps) & THREADS == 0)
    enough = live & (far[cells] >= floor)  # two warps: no thread is ordered after both
    if only_barriers:
        same_warp = (before ^ stamps) & (THREADS & -WARP_SIZE) == 0
        enough |= own | (live & same_warp & (near[cells] >= floor))
    if np.count_nonzero(enough) == len(cells):
        return
    old = (before > 0) & (before < birth)
    if np.count_nonzero(old):
        foreign[cells[old]] = before[old]
    last[cells] = stamps
    if np.count_nonzero(last[cells] != stamps):  # several lanes at one cell: keep first and last
        numbers = np.arange(len(cells))
        position = memory.room()
        position[cells[::-1]] = numbers[::-1]
        first = position[cells] == numbers
        position[cells] = numbers
        also = (position[cells] == numbers) & ~first
        last[cells] = before  # repeat it, one after the other
        _shift(last, near, far, cells[first], stamps[first], floor)
        _shift(last, near, far, cells[also], stamps[also], floor)
    else:
        last[cells] = before
        _shift(last, near, far, cells, stamps, floor)


def _shift(
    last: np.ndarray,
    near: np.ndarray,
    far: np.ndarray,
    cells: np.ndarray,
    stamps: np.ndarray,
    floor: int,
) -> None:
    """One new access per cell, all cells different; the previous last moves to near or far."""
    before, aside = last[cells], far[cells]
    live = before >= floor
    differs = (before ^ stamps) & THREADS
    same_thread, same_warp = differs == 0, differs < WARP_SIZE
    near[cells] = np.where(live & same_thread, near[cells], np.where(live & same_warp, before, 0))
    far[cells] = np.where(live & ~same_warp, before, np.where(live, aside, 0))
    last[cells] = stamps
