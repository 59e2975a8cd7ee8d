"""Thread blocks, and the gangs of threads in them that meet at barriers.

A gang is a set of threads that execute one statement together. By default the whole thread
block is one gang. To try other orders, each warp becomes a separate gang: then the warps run one
after another, each from one barrier to the next. (Where no closer look is needed, the threads of
several thread blocks form one gang; see batched_blocks.py.)
"""

import math
from collections.abc import Callable, Collection, Iterator
from contextvars import copy_context

import numpy as np

from simt.gpus import WARP_SIZE
from simt.lanes import Frame, Lanes
from simt.machine import Machine, SharedSpec
from simt.memory import LARGEST_ITEM, Array, Memory, aligned, contiguous
from simt.races import Conflict, record
from simt.report import Finding
from simt.snapshots import Index
from simt.source import Site
from simt.trace import Way

Body = Callable[[Frame], None]


class SharedMemory:
    """The shared memory of one thread block, or of several.

    shared  place in the kernel -> the arrays of all thread blocks, one after another in one Memory
    """

    def __init__(self, machine: Machine, num_blocks: int = 1) -> None:
        self.machine, self.num_blocks = machine, num_blocks
        self.shared: dict[int, Array] = {}
        address = aligned(machine.static_bytes, LARGEST_ITEM)  # it follows the static arrays
        self.dynamic = self._memory(machine.shared_bytes, address)

    def _memory(self, num_bytes: int, address: int) -> Memory:
        each = num_bytes if self.num_blocks == 1 else aligned(num_bytes, LARGEST_ITEM)
        data = np.zeros(self.num_blocks * each, np.uint8)
        return Memory(data, "shared", address, written=not self.machine.init)

    def shared_array(self, place: int, spec: SharedSpec) -> Array:
        """The shared array of one place in the kernel, the same for all threads of a block."""
        if place not in self.shared:
            dtype, shape, memory = spec.dtype, spec.shape, self.dynamic
            if spec.is_dynamic:
                shape = (self.machine.shared_bytes // dtype.itemsize,)
            else:
                memory = self._memory(spec.num_bytes, spec.address)
            each = len(memory.data) // self.num_blocks // dtype.itemsize
            starts = np.arange(self.num_blocks) * each
            start = 0 if self.num_blocks == 1 else np.repeat(starts, self.machine.num_threads)
            self.shared[place] = Array(memory, dtype, shape, contiguous(shape), start, spec.name)
        return self.shared[place]


class Block(SharedMemory):
    """One thread block: its threads, its shared memory, its barriers."""

    def __init__(self, machine: Machine, index: tuple[int, int, int]) -> None:
        super().__init__(machine)
        self.index = index
        self.votes: tuple[int, int] = (0, 0)
        self.gangs: list[Gang] = []
        traced = machine.recorder is not None and index in machine.recorder.blocks
        self.recorder = machine.recorder if traced else None
        self.steps: Iterator[bool] | None = None  # None: it hasn't begun
        self.turns = 0

    def run(self, body: Body, arguments: dict[str, object]) -> bool:
        """Runs all threads to their end, or until all wait for the grid; then it returns True.

        After the grid has met, that counts as a new thread block, and another grid.
        """
        machine = self.machine
        machine.turns = self.turns
        self.ordering = machine.new_ordering(self.index)
        if self.steps is None:
            self.steps = self._steps(body, arguments)
        waits = next(self.steps, False)
        self.turns = machine.turns
        machine.block_has_ended(self.ordering)
        return waits

    def _steps(self, body: Body, arguments: dict[str, object]) -> Iterator[bool]:
        total = self.machine.num_threads
        width = total if self.machine.order == "together" else WARP_SIZE
        self.gangs = [Gang(self, i, min(width, total - i)) for i in range(0, total, width)]
        if len(self.gangs) == 1 and not self.machine.is_cooperative:
            self.gangs[0].run(body, arguments)
        else:
            yield from self.in_turns(body, arguments)

    def in_turns(self, body: Body, arguments: dict[str, object]) -> Iterator[bool]:
        """Runs each gang from one barrier to the next, in the chosen order; stops at those of the
        grid."""
        from greenlet import greenlet  # only here, because everything else works without it

        for gang in self.gangs:
            gang.greenlet = greenlet(gang.run)
            gang.greenlet.gr_context = copy_context()  # it holds NumPy's error state
        waiting = self.machine.in_turn(self.gangs)
        while waiting:
            for gang in waiting:
                gang.greenlet.switch(body, arguments)
            here = [gang for gang in waiting if not gang.done]
            if here:
                self.meet(here, [gang for gang in self.gangs if gang.done])
                if here[0].at_grid:
                    yield True
            waiting = here

    def meet(self, here: list["Gang"], gone: list["Gang"]) -> None:
        """All gangs have reached a barrier or have ended."""
        first = here[0]
        for other in here[1:]:
            if other.waits_at != first.waits_at and self.machine.sync:
                self._different_barriers(first, other)
        if gone and self.machine.sync and not self.machine.exited_may_skip:
            first.misses(first.waits_at, first.waiting, gone[0].first, "has returned")
        counts = [gang.vote for gang in here]
        self.votes = sum(c[0] for c in counts), sum(c[1] for c in counts)
        self.ordering.barrier()

    def _different_barriers(self, a: "Gang", b: "Gang") -> None:
        places = self.machine.places
        a, b = sorted((a, b), key=lambda gang: places[gang.waits_at].line)
        other = b.first + int(b.waiting)
        what = f"waits at one barrier and {self.machine.thread_name(other)} at another"
        more = {"other_site": places[b.waits_at], "other_block": self.index, "other_thread": other}
        a.find("sync", a.waits_at, a.waiting, what, **more)


class Gang:
    """Threads first, first + 1, ... of a block, which execute statements together.

    way  the calls and loop turns that they are in now
    """

    def __init__(self, block: Block, first: int, width: int) -> None:
        self.block, self.machine, self.recorder = block, block.machine, block.recorder
        self.first, self.width = first, width
        self.everybody = Lanes(np.ones(width, bool), width)
        self.alive = self.everybody  # has not returned from the kernel
        bx, by, _ = self.machine.block
        of_block = np.arange(first, min(first + width, self.machine.num_threads))
        num_blocks = width // len(of_block)  # several in a wide gang
        self.threads = np.tile(of_block, num_blocks)
        index = of_block % bx, of_block // bx % by, of_block // (bx * by)
        each = (np.tile(i.astype(np.int32), num_blocks) for i in index)
        self.thread_idx = dict(zip("xyz", each, strict=True))
        self.block_idx = dict(zip("xyz", map(np.int32, block.index), strict=True))
        self.locals: dict[int, Array] = {}
        self.way: Way = ()
        self.waits_at, self.vote, self.waiting, self.done = 0, (0, 0), 0, False
        self.at_grid = False  # rather than at a barrier of its thread block
        self.greenlet = None
        self.frame = Frame(self, self.everybody, is_kernel=True)

    def run(self, body: Body, arguments: dict[str, object]) -> None:
        for name, value in arguments.items():
            self.frame.assign(name, value)
        body(self.frame)
        self.done = True

    def barrier(self, frame: Frame, place: int, predicate: np.ndarray | None = None) -> None:
        """Waits for the other threads of the block; `block.votes` then says how many arrived
        and for how many of them the predicate was true."""
        lanes, block = frame.lanes, self.block
        if self.machine.sync:
            self._check_all_are_here(lanes, place)
        if self.recorder is not None:
            self.recorder.event(frame, place, "barrier")
        true = 0 if predicate is None else int(np.count_nonzero(predicate & lanes.flags))
        self.waits_at, self.vote, self.waiting = place, (lanes.count, true), lanes.numbers[0]
        if self.greenlet is None:
            block.meet([self], [])
        else:
            self.greenlet.parent.switch()

    def sync_grid(self, frame: Frame, place: int) -> None:
        """Waits for all threads of the grid."""
        self.at_grid = True
        self.barrier(frame, place)
        self.at_grid = False

    def _check_all_are_here(self, lanes: Lanes, place: int) -> None:
        waiting = lanes.numbers[0]
        if lanes.count < self.alive.count:
            missing = self.alive.minus(lanes).numbers[0]
            why = "took a different path at a branch or loop"
            self.misses(place, waiting, self.first + missing, why)
        elif lanes.count < self.width and not self.machine.exited_may_skip:
            missing = self.everybody.minus(lanes).numbers[0]
            self.misses(place, waiting, self.first + missing, "has returned")

    def misses(self, place: int, waiting: int, missing: int, why: str) -> None:
        """A lane waits at a barrier for a thread that never reaches it."""
        name = self.machine.thread_name(missing)
        what = f"waits at a barrier that {name} never reaches: it {why}"
        more = {"other_block": self.block.index, "other_thread": int(missing)}
        self.find("sync", place, waiting, what, **more)

    def thread_blocks(self) -> list[tuple[Index, np.ndarray]]:
        """Index and lanes [width] bool of each thread block that has lanes here."""
        return [(self.block.index, self.everybody.flags)]

    def note_access(
        self, memory: Memory, kind: str, cells: np.ndarray, threads: np.ndarray, place: int
    ) -> Conflict | None:
        """What an access races with, or None; see races.py."""
        return record(memory, kind, cells, threads, place, self.block.ordering)

    def note_atomic(
        self, array: Array, items: np.ndarray, lanes: Lanes, name: str, is_used: bool
    ) -> None:
        """Notes an atomic operation; see batched_blocks.py, where it may be too early for it."""

    def fence(self, lanes: Lanes, scope: str) -> None:
        self.block.ordering.fence(self.first + lanes.numbers, scope)

    def find(self, check: str, place: int, lane: int, what: str, **more: object) -> None:
        """Reports a finding about one lane of this gang. `more` has further fields of Finding."""
        words = f"{self.name_of(lane)} {what}"
        site, thread = self.machine.places[place], self.first + int(lane)
        finding = Finding(check, words, site, self.block.index, thread, **more)
        self.machine.find(finding, self.recorder)

    def error(self, error: Exception) -> Exception:
        """What to raise when a lane does something wrong that isn't a finding."""
        return error

    def turn(self, place: int) -> None:
        """Counts a turn of a loop."""
        machine = self.machine
        machine.turns += 1
        if machine.turns > machine.most_turns:
            why = f"{machine.most_turns} loop turns (max_turns) in one thread block"
            self.hang(machine.places[place], why)

    def hang(self, site: Site, turns: str) -> None:
        """Raises the error for a loop that seems to have no end."""
        where = f"line {site.line} of {site.function}: {site.code}"
        raise self.error(RuntimeError(f"{turns} and no end: {where}"))

    def name_of(self, lane: int) -> str:
        """ "thread 37 of thread block 2" """
        machine = self.machine
        block = machine.block_name(self.block.index)
        return f"{machine.thread_name(self.first + int(lane))} of {block}"

    def local_array(
        self, place: int, lanes: Lanes, shape: tuple[int, ...], dtype: np.dtype, name: str
    ) -> Array:
        """A separate array for each lane. Each execution makes it anew, unwritten."""
        array = self.locals.get(place)
        if array is None:
            array = self.locals[place] = self._new_local_array(shape, dtype, name)
        elif array.memory.written is not None:
            if array.lane is None:
                array.memory.written.reshape(self.width, -1)[lanes.numbers] = False
            else:
                array.memory.written.reshape(-1, self.width)[:] &= ~lanes.flags
        return array

    def _new_local_array(self, shape: tuple[int, ...], dtype: np.dtype, name: str) -> Array:
        size = math.prod(shape)
        data = np.zeros(self.width * size * dtype.itemsize, np.uint8)
        memory = Memory(data, "local", 0, written=not self.machine.init)
        array = Array(memory, dtype, shape, contiguous(shape), 0, name)
        if self.machine.memory and not dtype.names:
            array.lane = np.arange(self.width)
        else:  # one lane's items follow the other's; an unchecked index may lead there
            array.start = np.arange(self.width) * size
        return array


def run_blocks(
    machine: Machine,
    body: Body,
    arguments: dict[str, object],
    at_end: Body,
    only: Collection[Index] | None = None,
) -> None:
    """Runs the kernel's body for all thread blocks, or only for these; at_end gets each gang's
    frame."""
    indices = [index for index in machine.indices if only is None or index in only]
    with np.errstate(all="ignore"):  # as on a GPU, infinity and NaN don't raise
        blocks, ended = (Block(machine, index) for index in machine.arrange(indices)), None
        while blocks:
            waiting = []
            for block in blocks:
                if block.run(body, arguments):
                    waiting.append(block)
                    continue
                ended = block.index
                for gang in block.gangs:
                    at_end(gang.frame)
            if waiting:
                _meet_as_grid(machine, waiting[0], ended)
            blocks = waiting


def _meet_as_grid(machine: Machine, waiting: Block, ended: Index | None) -> None:
    """Thread blocks wait for the grid; all others have ended. What came before is ordered before
    whatever follows, as if that were another launch.

    ended  one that has; None: none has
    """
    if ended is not None and machine.sync:
        gang = next(gang for gang in waiting.gangs if not gang.done)
        what = f"waits at a barrier that {machine.block_name(ended)} never reaches: it has ended"
        gang.find("sync", gang.waits_at, gang.waiting, what, other_block=ended, other_thread=0)
    for memory in machine.memories:
        memory.forget_accesses()
        memory.atomics.clear()
        memory.handed_over.clear()
