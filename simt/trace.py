"""The trace: every access, shuffle and barrier of chosen thread blocks, lane by lane; and, if
launch is asked for them, the operations in float64 (float64.py).

A warp instruction is one expression, executed once by the active lanes of one warp. The machine
executes it in one piece, so lanes in nested loops of different lengths are grouped by the turns of
these loops; there is no need to count how often a line was executed.

Lanes wait for each other at the end of each branch and of each loop, and in a loop at the end of
each turn. The statements before a `break` are executed by the lanes that break in this turn; a
compiler may move them after the loop, where all lanes are together again. Since Volta, a GPU
doesn't promise that lanes reconverge, though compilers try to make them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simt.gpus import WARP_SIZE
from simt.memory import index_of
from simt.snapshots import Index
from simt.source import Site, Source

KINDS = ("read", "write", "atomic", "shuffle", "vote", "syncwarp", "barrier", "float64")
SPACES = ("none", "global", "shared", "local")
NO_ARRAY = NO_LANE = NO_TURN = -1

# How the kernel reached an expression: (place, turn) for each loop around it, turns counted from
# 0, and (place, NO_TURN) for each call; the outermost first.
Way = tuple[tuple[int, int], ...]

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
        ("source_lane", np.int8),
        ("way", np.int32),
    ]
)


@dataclass(frozen=True)
class TracedArray:
    """An array as the kernel knows it.

    address  of the element [0, 0, ...]: made up, but aligned as by cudaMalloc; in shared memory,
             counted from the start of the block's shared memory; in local memory, from the start
             of the lane's array
    strides  in items

    Local arrays of the same name, type and shape in two functions count as one here.
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


@dataclass(frozen=True, eq=False)
class Trace:
    """What the traced thread blocks did.

    kernel   its name; file: where it is defined
    grid, block  their sizes; in `records` and in `only`, block is the number of a thread block
    records  one per lane and warp instruction, in the order of execution; fields:
             block        number of the thread block in the grid, x fastest
             warp, lane   thread = 32 * warp + lane
             place        index in `sites`: which expression of the kernel
             instruction  number of the warp instruction in this trace
             kind         index in KINDS
             space        index in SPACES ("none": not an access)
             array        index in `arrays`, or NO_ARRAY
             address      of the first byte; num_bytes: a vector is one access
             source_lane  of a shuffle: the lane that is read from; else NO_LANE
             way          index in `ways`: the calls and loop turns that led here
    sources  of the kernel and of the device functions that it calls
    """

    kernel: str
    file: str
    grid: Index
    block: Index
    records: np.recarray
    sites: tuple[Site, ...]
    arrays: tuple[TracedArray, ...]
    ways: tuple[Way, ...]
    sources: tuple[Source, ...]

    def __len__(self) -> int:
        return len(self.records)

    @property
    def threads(self) -> np.ndarray:
        """[num_records] number of the thread in its thread block."""
        return self.records.warp.astype(int) * WARP_SIZE + self.records.lane

    @property
    def num_warps(self) -> int:
        """Warps per thread block."""
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
        block: int | Index | None = None,
        warp: int | None = None,
        instruction: int | None = None,
        turns: Mapping[str, int] | None = None,
    ) -> "Trace":
        """The records that match all the given arguments; there may be none.

        where  number of a line in the kernel's file, or a piece of the text of an expression
        array  its name
        block  number of a thread block, or its index
        turns  loop -> turn, from 0: {"j": 3} is the fourth turn of `for j in ...`. A `while` is
               named by its first line. If nested loops have the same name, any of them may be in
               that turn

        Raises ValueError for what can't exist: an unknown kind or space, an array that no traced
        thread accessed, a line or text that isn't in the kernel, a loop that no traced thread
        entered, a thread block or warp that the launch didn't have. Raises TypeError for a block
        that is neither a number nor an index.
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
        if block is not None:
            keep &= records.block == block_number("block", block, self.grid)
        if warp is not None:
            if warp not in range(self.num_warps):
                raise ValueError(f"warp is {warp}; a thread block has {self.num_warps}")
            keep &= records.warp == warp
        if instruction is not None:
            keep &= records.instruction == instruction
        for loop, turn in (turns or {}).items():
            keep &= np.isin(records.way, self._ways(loop, turn))
        return replace(self, records=records[keep])

    def _places(self, where: int | str) -> list[int]:
        """The places of a line, or of the expressions that contain this text."""
        places = [
            i
            for i, site in enumerate(self.sites)
            if (
                where in site.text
                if isinstance(where, str)
                else (site.file, site.line) == (self.file, where)
            )
        ]
        if not places:
            raise ValueError(f"where: {self.kernel} has no place at {where!r}")
        return places

    def loops(self, way: int) -> list[tuple[str, int]]:
        """The loops of a way, by name, each with its turn, outermost first."""
        return [(loop_name(self.sites[p]), turn) for p, turn in self.ways[way] if turn != NO_TURN]

    def _ways(self, loop: str, turn: int) -> list[int]:
        """The ways that go through a turn of a loop."""
        loops = [self.loops(way) for way in range(len(self.ways))]
        names = {name for one in loops for name, _ in one}
        if loop not in names:
            known = ", ".join(sorted(names)) or "none"
            raise ValueError(f"turns: {self.kernel} has no loop {loop!r}; its loops: {known}")
        return [way for way, one in enumerate(loops) if (loop, turn) in one]

    def the_array(self) -> TracedArray:
        """The only array that is accessed here. Raises ValueError if there are more, or none."""
        numbers = np.unique(self.records.array[self.records.array != NO_ARRAY])
        if len(numbers) != 1:
            names = ", ".join(self.arrays[n].name for n in numbers) or "none"
            raise ValueError(f"the trace must be of one array, it is of: {names}; use only(array=)")
        return self.arrays[numbers[0]]

    def __str__(self) -> str:
        if not len(self):
            return f"trace of {self.kernel}: nothing"
        blocks = np.unique(self.records.block)
        what = f"thread block {blocks[0]}" if len(blocks) == 1 else f"{len(blocks)} thread blocks"
        counts = [(kind, np.count_nonzero(self.records.kind == i)) for i, kind in enumerate(KINDS)]
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in counts if count)
        return (
            f"trace of {self.kernel}: {what}, {self.num_instructions:,} warp instructions, "
            f"{len(self):,} records ({kinds})"
        )

    __repr__ = __str__


def loop_name(site: Site) -> str:
    """The variable of a `for` loop, or the first line of a `while`."""
    words = site.text.removesuffix(":").split(" in ")[0]
    return words.removeprefix("for ")


def block_number(name: str, block: int | Index, grid: Index) -> int:
    """The number of a thread block, x fastest, from its number or its index (x, y, z).

    name  of the argument, for the message

    Raises TypeError for anything else, ValueError for a thread block that isn't in the grid.
    """
    index = block if isinstance(block, tuple) else (block,)
    numbers = [i for i in index if isinstance(i, int | np.integer) and not isinstance(i, bool)]
    if len(numbers) != len(index) or not 1 <= len(index) <= len(grid):
        raise TypeError(f"{name}: {block!r} is neither the number nor the index of a thread block")
    sizes = grid if isinstance(block, tuple) else (math.prod(grid),)
    if not all(0 <= i < n for i, n in zip(index, sizes, strict=False)):
        raise ValueError(f"{name}: there is no thread block {block} in the grid {grid}")
    whole = (*index, 0, 0)[: len(sizes)]
    return int(np.ravel_multi_index(whole[::-1], sizes[::-1]))


def _number(what: str, wanted: str, allowed: Sequence[str]) -> int:
    if wanted not in allowed:
        raise ValueError(f"{what} is {wanted!r}; it must be one of {', '.join(allowed)}")
    return list(allowed).index(wanted)
