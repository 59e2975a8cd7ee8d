"""The memory of a launch: bytes, and for each byte whether it may be accessed and was written.

An address is a number, as on a GPU: global memory, the shared memory of a thread block and a
thread's local memory each have a window of the generic addresses.
"""

import ctypes
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

from simt.lanes import Lanes
from simt.memory import ALIGNMENT, Memory
from simt.ptx.parsing import Instruction, round_up

WINDOWS = {"global": 0x7F0000000000, "local": 0x20000000000, "shared": 0x10000000000}
NEAR_NULL = 1 << 32  # a null pointer and an index that isn't far from it
NOT_WRITTEN = 0xFF  # every byte that nobody has written: NaN as a float, -1 as an integer


class Space:
    """Global memory, or the shared or local memory of all threads, one behind the other.

    size     bytes that a thread may use
    data     [num_bytes] uint8
    written  [num_bytes] bool
    owner    [num_bytes] number of the array, counted from 1; 0: none. Global memory only
    arrays   (name, start, end) of each array in global memory
    complete the numbers of the arrays, as `holding` gives them, that were written from the start
    base     [num_threads] where the memory of a thread, or of its thread block, begins in data
    shadow   the same bytes, as the check for races sees them
    """

    def __init__(
        self, name: str, size: int, num_copies: int = 1, copy: np.ndarray | None = None
    ) -> None:
        """copy  [num_threads] number of each thread's copy; None: all share the only one"""
        self.name, self.size = name, size
        pitch = round_up(size, ALIGNMENT) + ALIGNMENT if size and copy is not None else size
        self.base = None if copy is None else copy * pitch
        self.data = np.empty(pitch * num_copies, np.uint8)
        self.written = np.empty(pitch * num_copies, bool)
        self.owner: np.ndarray | None = None
        self.arrays: list[tuple[str, int, int]] = []
        self.complete: set[int] = set()
        self.views: dict[np.dtype, np.ndarray] = {}
        self.clear()

    def clear(self) -> None:
        """Nothing has been written."""
        self.data.fill(NOT_WRITTEN)
        self.written.fill(False)
        self.shadow = Memory(self.data, self.name, 0, written=True)

    def holding(self, low: int, high: int) -> int | None:
        """Number of the array that has all bytes from address `low` up to `high`, counted from 0;
        0 if the space has no arrays. None: they aren't all here, or in several arrays."""
        if self.owner is None:
            return 0 if low >= 0 and high <= self.size else None
        number = bisect_right(self.arrays, low, key=lambda array: array[1]) - 1
        return number if number >= 0 and high <= self.arrays[number][2] else None

    def outside(self, addresses: np.ndarray, num_bytes: int) -> np.ndarray:
        """Which accesses, by their addresses within this space, leave it or their buffer."""
        beyond = (addresses < 0) | (addresses > self.size - num_bytes)
        if self.owner is None:
            return beyond
        inside = np.where(beyond, 0, addresses)
        first, last = self.owner[inside], self.owner[inside + num_bytes - 1]
        return beyond | (first == 0) | (first != last)

    def shown(self, address: int) -> int:
        """An address within the space as kernels know it: in global memory it is generic."""
        window = 0 if self.owner is None else WINDOWS["global"]
        return int(address) + window & (1 << 64) - 1

    def where(self, address: int) -> str:
        """Of an access outside: where it is."""
        if self.owner is None:
            return f"outside the {self.size} bytes of {self.name} memory"
        null = address + WINDOWS["global"]
        if abs(null) < NEAR_NULL:
            side = "past" if null > 0 else "before"
            return f"{abs(null)} bytes {side} a null pointer" if null else "a null pointer"
        if not self.arrays:
            return "in no array: the kernel has none"
        distances = {
            name: max(start - address, address - end, 0) for name, start, end in self.arrays
        }
        name, start, end = min(self.arrays, key=lambda array: distances[array[0]])
        if start <= address < end:
            return f"in {name}, and goes past its end"
        side = "before the start" if address < start else "past the end"
        distance = f"{distances[name]} bytes" if distances[name] else "just"
        return f"in no array, {distance} {side} of {name}, the nearest"

    def all_written(self, places: np.ndarray, num_bytes: int) -> np.ndarray:
        """Of each access, aligned to its bytes: whether all of them were written."""
        words, every_byte = self._flags(num_bytes)
        found = words.take(places // num_bytes, axis=0) == every_byte
        return found if found.ndim == 1 else found.all(axis=1)

    def write(self, places: np.ndarray, num_bytes: int) -> None:
        """Note that all bytes of accesses, aligned to their bytes, are written."""
        words, every_byte = self._flags(num_bytes)
        words[places // num_bytes] = every_byte

    def _flags(self, num_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """`written` by accesses, up to 8 bytes in one number; and that number if they are."""
        size = min(num_bytes, 8)
        usable = len(self.written) // num_bytes * num_bytes
        words = self.written[:usable].view(f"u{size}")
        every_byte = np.ones(size, bool).view(words.dtype)
        return words if size == num_bytes else words.reshape(-1, num_bytes // size), every_byte

    def items(self, dtype: np.dtype) -> np.ndarray:
        if dtype not in self.views:
            usable = len(self.data) // dtype.itemsize * dtype.itemsize
            self.views[dtype] = self.data[:usable].view(dtype)
        return self.views[dtype]


class Access(NamedTuple):
    """One execution of a load, store or atomic: who, and which bytes.

    first      number of the thread block that is the first one side by side
    per_block  threads of a block, with the idle lanes
    addresses  [active] within the space; the lowest, and one past the highest byte
    """

    instruction: Instruction
    kind: str
    space: str
    lanes: Lanes
    first: int
    per_block: int
    addresses: np.ndarray
    low: int
    high: int
    num_bytes: int

    @property
    def blocks(self) -> np.ndarray:
        return self.first + self.lanes.numbers // self.per_block

    @property
    def threads(self) -> np.ndarray:
        return self.lanes.numbers % self.per_block


class Copy(NamedTuple):
    """An instruction that copies in the background.

    groups  [copies] number of the group of each, counted by its thread
    places  [copies, num_bytes] in the data of shared memory
    """

    instruction: Instruction
    threads: np.ndarray
    groups: np.ndarray
    places: np.ndarray


class Copies:
    """What cp.async copies to shared memory while the threads go on.

    committed  [num_threads] number of groups that a thread has committed
    in_flight  the copies that their threads haven't waited for, oldest first
    """

    def __init__(self, num_threads: int) -> None:
        self.committed = np.zeros(num_threads, np.int64)
        self.in_flight: list[Copy] = []

    def add(self, instruction: Instruction, threads: np.ndarray, places: np.ndarray) -> None:
        self.in_flight.append(Copy(instruction, threads, self.committed[threads], places))

    def commit(self, mask: np.ndarray) -> None:
        self.committed[mask] += 1

    def arrived(self, mask: np.ndarray, most: int | None) -> list[Copy]:
        """Take out the copies of all but the last `most` groups; None: all copies."""
        found, rest = [], []
        for copy in self.in_flight:
            done = mask[copy.threads]
            if most is not None:
                done = done & (copy.groups < self.committed[copy.threads] - most)
            for chosen, copies in ((done, found), (~done, rest)):
                if chosen.any():
                    copies.append(Copy(copy.instruction, *(each[chosen] for each in copy[1:])))
        self.in_flight = rest
        return found

    def include(self, places: np.ndarray) -> bool:
        """Whether any of these bytes is in flight."""
        return places.size > 0 and any(np.isin(places, one.places).any() for one in self.in_flight)


@dataclass
class Region:
    """The bytes of an array, or of several that overlap, and where the kernel finds them.

    names     of the arrays
    low       the address of the first byte in this process; high: one past the last
    address   of the first byte in global memory
    """

    names: list[str]
    low: int
    high: int
    address: int = 0

    @property
    def bytes(self) -> np.ndarray:
        size = self.high - self.low
        return np.frombuffer((ctypes.c_uint8 * size).from_address(self.low), np.uint8)

    @property
    def slice(self) -> slice:
        """Its place in the data of global memory."""
        start = self.address - WINDOWS["global"]
        return slice(start, start + self.high - self.low)


class GlobalMemory:
    """The arrays of a launch, copied into one space, with bytes between them that no array has.

    pointers  name -> the address of the array's first element
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], unwritten: Sequence[str] = ()) -> None:
        """unwritten  names of the arrays that hold nothing yet

        Raises ValueError for one that there isn't."""
        for name in unwritten:
            if name not in arrays:
                raise ValueError(f"unwritten: {name!r} isn't an array argument of the kernel")
        self.arrays, self.regions, used = arrays, _regions(arrays), ALIGNMENT
        for region in self.regions:
            region.address = WINDOWS["global"] + used
            used = round_up(used + region.high - region.low + 1, ALIGNMENT) + ALIGNMENT
        self.pointers = {
            name: region.address + _pointer(arrays[name]) - region.low
            for region in self.regions
            for name in region.names
        }
        self.space = Space("global", used)
        self.space.owner = np.zeros(used, np.int16)
        for number, region in enumerate(self.regions, 1):
            here = region.slice
            self.space.owner[here] = number
            self.space.arrays.append((" and ".join(region.names), here.start, here.stop))
            if not set(region.names) <= set(unwritten):
                self.space.data[here], self.space.written[here] = region.bytes, True
                self.space.complete.add(number - 1)

    def copy_back(self) -> None:
        """What the kernel wrote goes into the arrays."""
        for region in self.regions:
            if all(self.arrays[name].flags.writeable for name in region.names):
                here = region.slice
                np.copyto(region.bytes, self.space.data[here], where=self.space.written[here])


def _pointer(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _regions(arrays: Mapping[str, np.ndarray]) -> list[Region]:
    """One for each array, in their order; arrays that overlap share one."""
    regions: list[Region] = []
    for name, array in arrays.items():
        low, high = byte_bounds(array) if array.size else (_pointer(array),) * 2
        new = Region([name], low, high)
        for other in [one for one in regions if one.low < high and low < one.high]:
            regions.remove(other)
            ends = min(new.low, other.low), max(new.high, other.high)
            new = Region([*other.names, *new.names], *ends)
        regions.append(new)
    return regions
