"""Batched thread blocks: many of them run as one wide gang, because that is faster.

No thread block waits for another. So a correct kernel computes the same whether its thread blocks
run one after another or side by side; side by side, one NumPy call serves them all.

Which launches can't run this way is known before they start: see `may_run_batched`. Atomic
operations can if nothing shows in which order they came: in shared memory, and in global memory if
the kernel doesn't use what they return (see WideGang.note_atomic).

Nothing is reported from here. At the first doubt about the kernel this run stops and restores the
memory. Then the thread blocks run one after another, which finds the mistake and names it. That is
why a batched run always has all four checks on, whichever were asked for. Two exceptions stop it:

    Fallback     a check would find something, or an access merely looks like a race; or a lane
                 divides an integer by zero, fails an assertion, takes an item that a tuple doesn't
                 have, or takes too many loop turns (Gang.error)
    Unsupported  a statement can't use a value (Misuse), perhaps only because a variable holds
                 None, or another array, in another thread block

Any other error is a mistake in the simulator, or in a twin, and is raised: it must not hide behind
a slower run.

Nothing is traced here either: if there was no fallback, the traced thread blocks run once more,
alone.
"""

import math
from collections.abc import Callable, Iterable, Sequence, Set
from copy import copy
from functools import partial

import numpy as np

from simt.access import Items, touched
from simt.arithmetic import Misuse
from simt.blocks import Body, Gang, SharedMemory
from simt.gpus import WARP_SIZE
from simt.intrinsics import FENCES, UFUNCS
from simt.lanes import Frame, Lanes
from simt.machine import CHECKS, Machine, SharedSpec
from simt.memory import LARGEST_ITEM, Array, Memory
from simt.races import RACES_WITH
from simt.snapshots import Index
from simt.source import Unsupported
from simt.tuples import flattened

# Of a wide gang, at most, so that its values stay in the processor's cache
LANES = 16384
SHARED_BYTES = 1 << 24
# What an atomic operation returns, fences and grid.sync() can let thread blocks interact; a line
# must be printed only once, and the rest are rare.
ALONE = ("used atomic.", "cg.", "syncwarp", "syncthreads_", "print")
EVER = 1 << 62  # the stamp of a global address that several threads read


class Fallback(Exception):
    """The thread blocks must run one after another to settle something."""


class BatchedBlocks(SharedMemory):
    """Takes the place of a Block for the threads of a wide gang.

    index  x, y, z of each lane's thread block, [width] each
    """

    recorder = None

    def __init__(self, machine: Machine, indices: Sequence[Index]) -> None:
        super().__init__(machine, len(indices))
        self.indices = indices
        self.index = tuple(np.repeat(np.array(indices, np.int32).T, machine.num_threads, axis=1))

    def shared_array(self, place: int, spec: SharedSpec) -> Array:
        if spec.is_dynamic and LARGEST_ITEM % spec.dtype.itemsize:
            raise Fallback  # a thread block's part needn't begin at a multiple of such records
        return super().shared_array(place, spec)


class WideGang(Gang):
    """All threads of several thread blocks.

    now    [width] the stamp of each lane: interval between two barriers, and number in the grid
    floor  [width] the smallest stamp of this interval
    low, high  the smallest and the largest of floor
    of_block   [width] the number of each lane's thread block
    atomics    memory -> which atomic operations it has had: name, type, and where in an item of the
               memory theirs begin; or None if their order matters
    step   from one interval to the next, larger than the number of threads in the grid
    """

    def __init__(self, blocks: BatchedBlocks, first_block: int) -> None:
        machine = blocks.machine
        super().__init__(blocks, 0, blocks.num_blocks * machine.num_threads)
        self.step = 1 << (math.prod(machine.grid) * machine.num_threads + 1).bit_length()
        self.floor = np.full(self.width, self.step)
        self.now = self.floor + first_block * machine.num_threads + np.arange(self.width)
        self.low = self.high = self.step
        self.of_block = first_block + np.arange(self.width) // machine.num_threads
        self.atomics: dict[Memory, object] = {}

    def thread_blocks(self) -> list[tuple[Index, np.ndarray]]:
        first = self.of_block[0]
        indices = enumerate(self.block.indices, first)
        return [(index, self.of_block == number) for number, index in indices]

    def fence(self, lanes: Lanes, scope: str) -> None:
        pass  # it orders nothing without atomic operations, which don't run batched with fences

    def note_atomic(
        self, array: Array, items: np.ndarray, lanes: Lanes, name: str, is_used: bool
    ) -> None:
        """In global memory, each item must become what it becomes if one thread block follows the
        other: by operations whose order doesn't matter, or by those in this order."""
        memory = array.memory
        if memory.space != "global":
            return
        any_order = name in UFUNCS and array.dtype.kind in "iu"
        # Of items that overlap by a part, the order of two sums shows.
        begins = array.phase % array.dtype.itemsize
        kind = (name, array.dtype, begins) if any_order else None
        if is_used or self.atomics.setdefault(memory, kind) != kind:
            raise Fallback
        if not any_order:
            (latest,) = memory.noted("block", 1)
            cells, numbers = touched(self.frame, array, items, lanes)
            blocks = self.of_block[numbers]
            if np.count_nonzero(latest[cells] > blocks):
                raise Fallback
            latest[cells] = blocks

    def find(self, *finding: object, **more: object) -> None:
        raise Fallback

    def error(self, error: Exception) -> Exception:
        return Fallback()

    def barrier(self, frame: Frame, place: int, predicate: np.ndarray | None = None) -> None:
        """Each thread block must be here with all its threads, or with none of them."""
        lanes = frame.lanes
        if not lanes.everyone:
            must = self.alive if self.machine.exited_may_skip else self.everybody
            here, all_ = (self._by_block(of.flags).sum(axis=1) for of in (lanes, must))
            if np.any((here > 0) & (here < all_)):
                raise Fallback
        further = self.step if lanes.everyone else lanes.flags * self.step
        self.floor, self.now = self.floor + further, self.now + further  # accesses keep the others
        self.low, self.high = int(self.floor.min()), int(self.floor.max())

    def _by_block(self, of_lanes: np.ndarray) -> np.ndarray:
        return of_lanes.reshape(-1, self.machine.num_threads)

    def note_access(
        self, memory: Memory, kind: str, cells: np.ndarray, lanes: np.ndarray, place: int
    ) -> None:
        """Whether this access may race with an earlier one.

        A cell keeps its last write and its last reader. Several readers get a stamp that belongs
        to no lane: their interval's in shared memory, EVER in global memory. The same is kept of
        atomic operations as of reads.
        """
        is_global = memory.space == "global"
        now = self.now if lanes is self.everybody.numbers else self.now[lanes]
        floor = self.low if self.low == self.high else self.floor[lanes]
        for other in RACES_WITH[kind]:
            if not is_global and memory.latest.get(other, 0) < self.low:
                continue  # barriers have ordered all of them
            memory.settle(other)
            for before in memory.accesses.get(other, ()):
                self._fall_back_on_races(before[cells], now, floor, is_global)
        if kind == "write":
            (last,) = memory.noted(kind, 1)
            last[cells] = now
            if np.count_nonzero(last[cells] != now):
                raise Fallback
        else:
            note = partial(_note, memory, kind, cells, now, floor, self.step)
            memory.note_later(kind, note, self.low)
        memory.latest[kind] = max(self.high, memory.latest.get(kind, 0))

    def _fall_back_on_races(
        self, before: np.ndarray, now: np.ndarray, floor: Items, is_global: bool
    ) -> None:
        """Was there another thread in this interval, or one of another thread block?"""
        race = (before != now) & (before >= floor)
        if is_global:
            threads = self.machine.num_threads
            blocks, own = ((stamps & (self.step - 1)) // threads for stamps in (before, now))
            race |= (before > 0) & (blocks != own)
        if np.count_nonzero(race):
            raise Fallback


def _note(
    memory: Memory, kind: str, cells: np.ndarray, now: np.ndarray, floor: Items, step: int
) -> None:
    """A read, or an atomic operation, with what WideGang had when it came."""
    (last,) = memory.noted(kind, 1)
    before = last[cells]
    if memory.space == "global":
        several, many = (before > 0) & ((before ^ now) & (step - 1) != 0), EVER
    else:
        several, many = (before != now) & (before >= floor), floor + step - 1
    last[cells] = now = np.where(several, many, now)
    lost = last[cells] != now  # lanes at the same cell in this instruction
    last[cells[lost]] = np.broadcast_to(many, lost.shape)[lost]


def may_run_batched(machine: Machine, called: Set[str]) -> bool:
    """Is there something to gain, and are the thread blocks independent?

    called  names of the functions of cuda that the kernel calls; "used atomic.add" if it uses what
            that returns, perhaps from global memory
    """
    if any("atomic." in name for name in called) and (FENCES & called or not machine.init):
        return False  # without that check, snapshots show as written what isn't
    num_blocks = math.prod(machine.grid)
    num_traced = len(machine.recorder.blocks) if machine.recorder else 0
    return (
        machine.order == "together"
        and not machine.shuffles_order_memory
        and num_blocks > max(1, 2 * num_traced)  # the traced ones run once more, alone
        and machine.num_threads % WARP_SIZE == 0
        and not any(name.startswith(ALONE) for name in called)
    )


def run_batched(machine: Machine, body: Body, arguments: dict[str, object], at_end: Body) -> bool:
    """Like run_blocks, without a trace. Returns False if it fell back before the end."""
    wide = copy(machine)
    wide.memory, wide.init, wide.race, wide.sync = (True for _ in CHECKS)
    indices = machine.indices
    shared_bytes = max(machine.static_bytes + machine.shared_bytes, 1)
    each = max(1, min(LANES // machine.num_threads, SHARED_BYTES // shared_bytes))
    try:
        with np.errstate(all="ignore"):  # as on a GPU, infinity and NaN don't raise
            for first in range(0, len(indices), each):
                wide.turns = 0
                gang = WideGang(BatchedBlocks(wide, indices[first : first + each]), first)
                gang.run(body, arguments)
                at_end(gang.frame)
    except Fallback:
        return False
    except Unsupported as error:
        if not isinstance(error.__cause__, Misuse | None):
            raise  # one of Python's or NumPy's errors, to which a statement has added its line
        return False
    return True


def saved(values: Iterable[object]) -> Callable[[], None]:
    """Copies the memory that the kernel may write to; calling the result restores it."""
    parts = flattened(dict(enumerate(values))).values()
    arrays = [value for value in parts if isinstance(value, Array)]
    memories = {id(a.memory): a.memory for a in arrays if not a.memory.only_read}.values()
    kept = [(m, m.data.copy(), None if m.written is None else m.written.copy()) for m in memories]

    def put_back() -> None:
        for memory, data, written in kept:
            memory.data[:], memory.written = data, written
            memory.forget_accesses()

    return put_back
