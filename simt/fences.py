"""Fences: how a thread hands its writes over to threads that no barrier makes it wait for.

    data[0] = 5                           while cuda.atomic.add(flag, 0, 0) == 0:
    cuda.threadfence()                        pass
    cuda.atomic.exch(flag, 0, 1)          cuda.threadfence()
                                          out[0] = data[0]

An atomic operation hands over what its thread knew at its last fence: its own accesses up to there,
and all that was ordered before them. A thread whose atomic operation on the same item comes later
knows them from its next fence on, or from the next barrier of its thread block, as in the sum of
the last thread block in the guide. A fence orders nothing without an atomic operation, and
threadfence_block only orders threads of one thread block. What comes later is what came later in
this run: a kernel that reads the data without waiting for the flag may pass in one order of the
thread blocks, and is found in another.
Source: CUDA C++ Programming Guide, "Memory Fence Functions"; PTX ISA, "Memory Consistency Model".
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from simt.memory import Memory

SCOPES = ("block", "grid")  # of a fence
EVERYONE = -1  # in place of a thread
# What is ordered before something. (birth, thread) -> up to which time what this thread of a thread
# block did, and (birth, EVERYONE) -> what all threads of the block did; (memory, byte) -> how many
# of the atomic operations on this byte. A birth is the first time of a thread block.
Known = dict[tuple[object, int], int]
NOTHING: dict[str, Known] = {scope: {} for scope in SCOPES}


@dataclass(frozen=True)
class View:
    """What a thread knows, apart from barriers and syncwarps. Its dictionaries never change.

    known     is ordered before whatever it does next
    released  by scope, what it knew at its last fence
    observed  by scope, what atomic operations have handed over since
    """

    known: Known
    released: dict[str, Known]
    observed: dict[str, Known]


class Fences:
    """The views of the threads of one thread block.

    births  of the thread blocks of the launch that have started, in ascending order
    """

    def __init__(self, num_threads: int, birth: int, births: list[int]) -> None:
        self.birth, self.births = birth, births
        births.append(birth)
        self.views = [View({}, NOTHING, NOTHING)] * num_threads

    def fence(self, thread: int, scope: str, own: Known) -> None:
        """own  what is ordered before the fence by barriers and syncwarps, and the thread's own"""
        view = self.views[thread]
        reached = SCOPES[: SCOPES.index(scope) + 1]
        known = joined(view.known, *(view.observed[one] for one in reached))
        at_fence = joined(known, own)
        self.views[thread] = View(
            known,
            view.released | dict.fromkeys(reached, at_fence),
            view.observed | {one: {} for one in reached},
        )

    def meet(self, threads: Iterable[int], is_barrier: bool) -> None:
        """These threads wait for one another: each knows what all of them know."""
        threads = list(threads)
        views = {id(view): view for view in (self.views[thread] for thread in threads)}.values()
        together = View(
            joined(*(view.known for view in views)),
            {one: joined(*(view.released[one] for view in views)) for one in SCOPES},
            {one: joined(*(view.observed[one] for view in views)) for one in SCOPES},
        )
        if is_barrier:
            known = joined(together.known, *together.observed.values())
            together = replace(together, known=known, observed=NOTHING)
        for thread in threads:
            self.views[thread] = together

    def atomic(self, memory: Memory, cells: np.ndarray, threads: np.ndarray) -> None:
        """Atomic operations, one after another: each takes over, then hands over."""
        for cell, thread in zip(cells.tolist(), threads.tolist(), strict=True):
            view, byte = self.views[thread], cell * memory.cell
            count = memory.atomics[byte] = memory.atomics.get(byte, 0) + 1
            observed = {}
            for scope, place in zip(SCOPES, ((byte, self.birth), (byte, None)), strict=True):
                before = memory.handed_over.get(place, {})
                observed[scope] = joined(view.observed[scope], before, {(memory, byte): count})
                memory.handed_over[place] = joined(
                    before, view.released[scope], {(memory, byte): count}
                )
            known = view.known
            if known.get((memory, byte)) == count - 1:  # it knows all but its own
                known = joined(known, {(memory, byte): count})
            self.views[thread] = replace(view, known=known, observed=observed)

    def ordered(self, threads: np.ndarray, others: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Which accesses, by other threads at these times, are ordered before what threads do."""
        each = zip(threads.tolist(), others.tolist(), times.tolist(), strict=True)
        return np.array([self._knows(*access) for access in each], bool)

    def _knows(self, thread: int, other: int, time: int) -> bool:
        known = self.views[thread].known
        birth = self.births[bisect_right(self.births, time) - 1]
        return any(time <= known.get((birth, one), -1) for one in (other, EVERYONE))

    def after_atomics(self, memory: Memory, cells: np.ndarray, threads: np.ndarray) -> np.ndarray:
        """Which threads know all atomic operations on their cells."""
        each = zip(threads.tolist(), (cells * memory.cell).tolist(), strict=True)
        return np.array(
            [self.views[one].known.get((memory, b)) == memory.atomics.get(b, 0) for one, b in each],
            bool,
        )


def joined(*parts: Known) -> Known:
    """All that is known together; a part itself if the others are empty."""
    largest = max(parts, key=len)
    rest = {id(part): part for part in parts if part and part is not largest}
    if not rest:
        return largest
    result = dict(largest)
    for key, time in (item for part in rest.values() for item in part.items()):
        if result.get(key, -1) < time:
            result[key] = time
    return result
