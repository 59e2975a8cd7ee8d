"""The machine: options, places and findings, which all thread blocks of one launch share."""

import math
import random
from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from simt.memory import ALIGNMENT, Memory, aligned
from simt.races import PLACES, Ordering
from simt.recorder import Recorder
from simt.report import Finding, SimtError
from simt.source import Site

CHECKS = ("memory", "init", "race", "sync")
ORDERS = ("together", "forward", "reverse")
MOST_TURNS = 1_000_000  # of loops in a thread block, where nobody says
MAX_STATIC_SHARED = 48 * 1024  # bytes of a thread block, without asking for more


@dataclass(frozen=True)
class SharedSpec:
    """A shared array as the kernel declares it, and its address in the block's shared memory."""

    shape: tuple[int, ...]
    dtype: np.dtype
    name: str
    address: int

    @property
    def is_dynamic(self) -> bool:
        return self.shape == (0,)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass
class Machine:
    """What all thread blocks of a launch share.

    recorder   notes what the traced thread blocks do; None: none is traced
    float64    whether the recorder notes operations in float64, too
    places     every place of the kernel that accesses memory, waits, calls or loops, by number
    moments    per finding, the number of records at that time; None: its block isn't traced
    fenced     the births of the thread blocks, if the kernel has fences
    max_turns  see launch
    memories   all of global memory that the kernel may write to
    is_cooperative  the thread blocks wait for one another: cuda.cg.this_grid().sync()
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    checks: tuple[str, ...]
    order: str | int | tuple[int, ...]
    collect: bool
    shared_bytes: int
    exited_may_skip: bool
    shuffles_order_memory: bool
    max_turns: int | None
    recorder: Recorder | None
    float64: bool = False
    places: list[Site] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    moments: list[int | None] = field(default_factory=list)
    seen: set[tuple] = field(default_factory=set)
    turns: int = 0
    next_address: int = ALIGNMENT
    static_bytes: int = 0
    intervals: int = 1
    births: list[tuple[int, tuple[int, int, int]]] = field(default_factory=list)
    fenced: list[int] | None = None
    memories: list[Memory] = field(default_factory=list)
    is_cooperative: bool = False

    def __post_init__(self) -> None:
        self.memory, self.init, self.race, self.sync = (c in self.checks for c in CHECKS)

    @property
    def most_turns(self) -> int:
        return MOST_TURNS if self.max_turns is None else self.max_turns

    @property
    def num_threads(self) -> int:
        return math.prod(self.block)

    @property
    def indices(self) -> list[tuple[int, int, int]]:
        """The indices of all thread blocks, x fastest."""
        gx, gy, gz = self.grid
        return [(x, y, z) for z in range(gz) for y in range(gy) for x in range(gx)]

    def add_place(self, site: Site) -> int:
        self.places.append(site)
        if len(self.places) > PLACES:
            raise OverflowError(f"a kernel may access memory in at most {PLACES} places")
        return len(self.places) - 1

    def find(self, finding: Finding, recorder: Recorder | None = None) -> None:
        """Raises the finding, or collects it, once per pair of places.

        recorder  the thread block's, if it is traced
        """
        if not self.collect:
            raise SimtError(finding)
        key = (finding.check, finding.site, finding.other_site)
        if key not in self.seen:
            self.seen.add(key)
            self.findings.append(finding)
            self.moments.append(recorder and recorder.num_records)

    def block_of(self, stamp: int) -> tuple[int, int, int]:
        """The thread block that left a stamp (see races.py)."""
        after = bisect_right(self.births, stamp, key=lambda entry: entry[0])
        return self.births[after - 1][1]

    def thread_name(self, thread: int) -> str:
        """ "thread 37"; in a block of several dimensions "thread 37 = (5, 1, 0)"."""
        bx, by, bz = self.block
        thread = int(thread)  # a NumPy integer would print as np.int64(…)
        index = thread % bx, thread // bx % by, thread // (bx * by)
        return f"thread {thread}" if by == bz == 1 else f"thread {thread} = {index}"

    def block_name(self, index: tuple[int, int, int]) -> str:
        return f"thread block {index[0] if self.grid[1:] == (1, 1) else index}"

    def allocate(self, num_bytes: int) -> int:
        """A new, made-up address."""
        address = self.next_address
        self.next_address += aligned(max(num_bytes, 1), ALIGNMENT)
        return address

    def arrange(self, items: list) -> list:
        """The items in the chosen order; a list of warps says nothing of other items."""
        if self.order == "reverse":
            return items[::-1]
        if isinstance(self.order, int):
            return random.Random(self.order).sample(items, len(items))
        return items

    def in_turn(self, warps: list) -> list:
        """The warps of a thread block in the chosen order."""
        if isinstance(self.order, tuple):
            return [warps[number] for number in self.order]
        return self.arrange(warps)

    def new_ordering(self, index: tuple[int, int, int]) -> Ordering:
        """For a thread block that starts; no other block shares the numbers of its intervals."""
        order = Ordering(self.num_threads, self.intervals, self.fenced)
        self.births.append((order.birth, index))
        return order

    def block_has_ended(self, order: Ordering) -> None:
        self.intervals = order.interval + 1

    def reserve_shared(
        self, shape: tuple[int, ...], dtype: np.dtype, alignment: int, name: str
    ) -> SharedSpec:
        """Gives a static shared array its address; shape (0,) is the dynamic shared memory."""
        spec = SharedSpec(shape, dtype, name, aligned(self.static_bytes, alignment))
        if not spec.is_dynamic:
            self.static_bytes = spec.address + spec.num_bytes
        if self.static_bytes > MAX_STATIC_SHARED:
            raise ValueError(
                f"static shared arrays of {self.static_bytes} bytes; CUDA allows "
                f"{MAX_STATIC_SHARED}: use dynamic shared memory"
            )
        return spec
