"""The machine: thread blocks, gangs of lanes, and the barriers where they meet.

A gang is a set of threads that execute one statement together. By default the whole thread
block is one gang. To see other orders, each warp is a gang of its own: then the warps run one
after another, each from one barrier to the next.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from pa_tutorial.simt.lanes import Frame, Lanes
from pa_tutorial.simt.memory import ALIGNMENT, Array, Memory
from pa_tutorial.simt.races import PLACES, WARP_SIZE, Order
from pa_tutorial.simt.report import Finding, SimtError
from pa_tutorial.simt.source import Site

CHECKS = ("memory", "init", "race", "sync")
ORDERS = ("together", "forward", "reverse")


@dataclass
class Machine:
    """What all thread blocks of a launch share.

    places     every place of the kernel that touches memory or waits, by number
    max_turns  turns of loops that the whole launch may take: a kernel that hangs is an error
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    checks: tuple[str, ...]
    order: str | int
    collect: bool
    shared_bytes: int
    exited_may_skip: bool
    shuffles_order_memory: bool
    max_turns: int
    places: list[Site] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    seen: set[tuple] = field(default_factory=set)
    turns: int = 0
    next_address: int = ALIGNMENT
    intervals: int = 1
    births: list[tuple[int, tuple[int, int, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory, self.init, self.race, self.sync = (c in self.checks for c in CHECKS)

    @property
    def num_threads(self) -> int:
        return int(np.prod(self.block))

    def add_place(self, site: Site) -> int:
        self.places.append(site)
        if len(self.places) > PLACES:
            raise OverflowError(f"a kernel may touch memory in at most {PLACES} places")
        return len(self.places) - 1

    def find(self, finding: Finding) -> None:
        """Raises the finding, or keeps it; each pair of places is kept once."""
        if not self.collect:
            raise SimtError(finding)
        key = (finding.check, finding.site, finding.other_site)
        if key not in self.seen:
            self.seen.add(key)
            self.findings.append(finding)

    def block_of(self, stamp: int) -> tuple[int, int, int]:
        """The thread block that left a stamp (see races.py)."""
        after = bisect_right(self.births, stamp, key=lambda entry: entry[0])
        return self.births[after - 1][1]

    def thread_name(self, thread: int) -> str:
        """ "thread 37"; in a block of several dimensions "thread 37 = (5, 1, 0)"."""
        bx, by, bz = self.block
        index = thread % bx, thread // bx % by, thread // (bx * by)
        return f"thread {thread}" if by == bz == 1 else f"thread {thread} = {index}"

    def block_name(self, index: tuple[int, int, int]) -> str:
        return f"thread block {index[0] if self.grid[1:] == (1, 1) else index}"

    def turn(self, place: int) -> None:
        """Counts a turn of a loop."""
        self.turns += 1
        if self.turns > self.max_turns:
            site = self.places[place]
            raise RuntimeError(
                f"{self.max_turns} turns of loops and no end: line {site.line} of "
                f"{site.function}: {site.code}\nA larger max_turns lets it go on."
            )

    def allocate(self, num_bytes: int) -> int:
        """A new invented address."""
        address = self.next_address
        self.next_address += -(-max(num_bytes, 1) // ALIGNMENT) * ALIGNMENT
        return address

    def block_order(self) -> Iterator[tuple[int, int, int]]:
        gx, gy, gz = self.grid
        indices = [(x, y, z) for z, y, x in product(range(gz), range(gy), range(gx))]
        return iter(self.arrange(indices))

    def arrange(self, items: list) -> list:
        """In the order that was asked for."""
        if self.order == "reverse":
            return items[::-1]
        if isinstance(self.order, int):
            return random.Random(self.order).sample(items, len(items))
        return items

    def run(
        self,
        body: Callable[[Frame], None],
        arguments: dict[str, object],
        at_end: Callable[[Frame], None],
    ) -> None:
        """Runs the kernel's body for all thread blocks; at_end sees the frame of each gang."""
        with np.errstate(all="ignore"):  # as on a GPU: infinity and NaN raise nothing
            for index in self.block_order():
                block = Block(self, index)
                self.births.append((block.order.birth, index))
                block.run(body, arguments)
                for gang in block.gangs:
                    at_end(gang.frame)
                self.intervals = block.order.interval + 1


class Block:
    """One thread block: its threads, its shared memory, its barriers."""

    def __init__(self, machine: Machine, index: tuple[int, int, int]) -> None:
        self.machine, self.index = machine, index
        self.order = Order(machine.num_threads, machine.intervals)
        self.shared: dict[int, Array] = {}
        self.shared_address = 0
        dynamic = np.zeros(machine.shared_bytes, np.uint8)
        self.dynamic = Memory(dynamic, "shared", 0, 16, written=not machine.init)
        self.votes: tuple[int, int] = (0, 0)
        self.gangs: list[Gang] = []

    def run(self, body: Callable[[Frame], None], arguments: dict[str, object]) -> None:
        total = self.machine.num_threads
        width = total if self.machine.order == "together" else WARP_SIZE
        self.gangs = [Gang(self, i, min(width, total - i)) for i in range(0, total, width)]
        if len(self.gangs) == 1:
            self.gangs[0].run(body, arguments)
        else:
            self._run_in_turns(body, arguments)

    def _run_in_turns(self, body: Callable[[Frame], None], arguments: dict[str, object]) -> None:
        """Each gang from one barrier to the next, in the order that was asked for."""
        from greenlet import greenlet

        for gang in self.gangs:
            gang.greenlet = greenlet(gang.run)
            gang.greenlet.gr_context = copy_context()  # NumPy's error state lives there
        waiting = self.machine.arrange(self.gangs)
        while waiting:
            for gang in waiting:
                gang.greenlet.switch(body, arguments)
            here = [gang for gang in waiting if not gang.done]
            if here:
                self.meet(here, [gang for gang in self.gangs if gang.done])
            waiting = here

    def meet(self, here: list["Gang"], gone: list["Gang"]) -> None:
        """All gangs have come to a barrier or to their end."""
        first = here[0]
        for other in here[1:]:
            if other.waits_at != first.waits_at and self.machine.sync:
                self._different_barriers(first, other)
        if gone and self.machine.sync and not self.machine.exited_may_skip:
            first.misses(first.waits_at, 0, gone[0].first, "has returned")
        counts = [gang.vote for gang in here]
        self.votes = sum(c[0] for c in counts), sum(c[1] for c in counts)
        self.order.barrier()

    def _different_barriers(self, a: "Gang", b: "Gang") -> None:
        places = self.machine.places
        a, b = sorted((a, b), key=lambda gang: places[gang.waits_at].line)
        other = self.machine.thread_name(b.first)
        a.find(
            "sync",
            a.waits_at,
            0,
            f"waits at one barrier and {other} at another",
            other_site=places[b.waits_at],
            other_block=self.index,
            other_thread=b.first,
        )

    def shared_array(
        self, place: int, shape: tuple[int, ...], dtype: np.dtype, alignment: int, name: str
    ) -> Array:
        """The shared array of one place in the kernel: the same for all threads."""
        if place not in self.shared:
            memory, sizes = self.dynamic, shape
            if shape == (0,):
                sizes = (len(self.dynamic.data) // dtype.itemsize,)
            else:
                memory = self._static(int(np.prod(shape)) * dtype.itemsize, dtype, alignment)
            self.shared[place] = Array(memory, dtype, sizes, contiguous(sizes), 0, name)
        return self.shared[place]

    def _static(self, num_bytes: int, dtype: np.dtype, alignment: int) -> Memory:
        align = max(alignment, dtype.itemsize)
        address = -(-self.shared_address // align) * align
        self.shared_address = address + num_bytes
        self.dynamic.address = -(-self.shared_address // 16) * 16  # it follows the static ones
        data = np.zeros(num_bytes, np.uint8)
        return Memory(data, "shared", address, dtype.itemsize, not self.machine.init)


class Gang:
    """Threads first, first + 1, ... of a block, which execute statements together."""

    def __init__(self, block: Block, first: int, width: int) -> None:
        self.block, self.machine = block, block.machine
        self.first, self.width = first, width
        self.everybody = Lanes(np.ones(width, bool), width)
        self.alive = self.everybody  # has not returned from the kernel
        self.threads = np.arange(first, first + width)
        bx, by, _ = self.machine.block
        self.thread_idx = {
            "x": (self.threads % bx).astype(np.int32),
            "y": (self.threads // bx % by).astype(np.int32),
            "z": (self.threads // (bx * by)).astype(np.int32),
        }
        self.locals: dict[int, Array] = {}
        self.waits_at, self.vote, self.done = 0, (0, 0), False
        self.greenlet = None
        self.frame = Frame(self, self.everybody, is_kernel=True)

    def run(self, body: Callable[[Frame], None], arguments: dict[str, object]) -> None:
        for name, value in arguments.items():
            self.frame.assign(name, value)
        body(self.frame)
        self.done = True

    def barrier(self, frame: Frame, place: int, predicate: np.ndarray | None = None) -> None:
        """Waits for the other threads of the block; `block.votes` then says how many there
        were and for how many the predicate was true."""
        lanes, block = frame.lanes, self.block
        if self.machine.sync:
            self._check_all_are_here(lanes, place)
        true = 0 if predicate is None else int(np.count_nonzero(predicate & lanes.flags))
        self.waits_at, self.vote = place, (lanes.count, true)
        if self.greenlet is None:
            block.meet([self], [])
        else:
            self.greenlet.parent.switch()

    def _check_all_are_here(self, lanes: Lanes, place: int) -> None:
        waiting = lanes.numbers[0]
        if lanes.count < self.alive.count:
            missing = self.alive.minus(lanes).numbers[0]
            why = "took another way at a branch or loop"
            self.misses(place, waiting, self.first + missing, why)
        elif lanes.count < self.width and not self.machine.exited_may_skip:
            missing = self.everybody.minus(lanes).numbers[0]
            self.misses(place, waiting, self.first + missing, "has returned")

    def misses(self, place: int, waiting: int, missing: int, why: str) -> None:
        """A lane waits at a barrier for a thread that does not come."""
        name = self.machine.thread_name(missing)
        self.find(
            "sync",
            place,
            waiting,
            f"waits at a barrier to which {name} does not come: it {why}",
            other_block=self.block.index,
            other_thread=int(missing),
        )

    def find(self, check: str, place: int, lane: int, what: str, **more: object) -> None:
        """A finding about one lane of this gang. `more` are further fields of Finding."""
        machine, thread = self.machine, self.first + int(lane)
        block = machine.block_name(self.block.index)
        words = f"{machine.thread_name(thread)} of {block} {what}"
        site = machine.places[place]
        machine.find(Finding(check, words, site, self.block.index, thread, **more))

    def local_array(
        self, place: int, lanes: Lanes, shape: tuple[int, ...], dtype: np.dtype, name: str
    ) -> Array:
        """An array of its own for each lane. Executed again, it is unwritten again."""
        array = self.locals.get(place)
        size = int(np.prod(shape))
        if array is None:
            data = np.zeros(self.width * size * dtype.itemsize, np.uint8)
            written = not self.machine.init
            memory = Memory(data, "local", 0, dtype.itemsize, written)
            start = np.arange(self.width) * size
            array = Array(memory, dtype, shape, contiguous(shape), start, name)
            self.locals[place] = array
        elif array.memory.written is not None:
            array.memory.written.reshape(self.width, -1)[lanes.numbers] = False
        return array


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in items of an array without gaps, last index fastest."""
    strides = [1]
    for size in shape[:0:-1]:
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))
