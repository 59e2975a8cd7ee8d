"""Loops that never end, noticed by proof and not by the clock.

A machine that comes back to a state in which it has been does the same again, for ever. Of a state
counts only where the threads are, what memory holds, and the registers on which the loop's
instructions depend: their guards and addresses, what they store or show to other lanes, and all
that these are computed from. So a loop may even count its turns: `while flag[0] == 0: turns += 1`
never ends, whereas `while turns < limit: turns += 1` may, and goes on.

A state is noted after 2,048 basic blocks, and again whenever their number has doubled. That finds a
loop of any length soon after it has begun, and costs next to nothing.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from simt.ptx.parsing import Kernel
from simt.ptx.registers import Registers

FIRST = 2048  # basic blocks before the first state is noted
TURNS = 3  # that must be alike: a race with the turn before has then been found
# What is more than arithmetic of one lane: whatever these read counts.
VISIBLE = {
    *("ld", "ldu", "st", "atom", "red", "ldmatrix", "stmatrix", "cp"),
    *("shfl", "vote", "mma", "bar", "barrier"),
}


class Watch:
    """Compares the states of one machine with an earlier one.

    at       the instruction at which that one was noted; -1: there is none
    turns    how often it has come back
    visited  the basic blocks executed since, by their first instruction
    """

    def __init__(self, kernel: Kernel, ends: Mapping[int, int], registers: Registers) -> None:
        self.kernel, self.ends, self.registers = kernel, ends, registers
        self.due, self.at = FIRST, -1

    def is_endless(
        self, step: int, at: int, threads: Sequence[np.ndarray], memory: Sequence[np.ndarray]
    ) -> bool:
        """Before a basic block is executed: whether the machine has come back for good.

        step     number of basic blocks before this one
        at       its first instruction
        threads  where all threads are
        """
        if step >= self.due:
            self._note(at, threads)
        elif at == self.at and self._is_back(threads):
            self.turns += 1
            if self.turns == 1:
                self.memory = [array.copy() for array in memory]
            elif not all(map(np.array_equal, memory, self.memory)):
                self.at = -1  # until the next state is noted
            elif self.turns == TURNS:
                return True
        self.visited.add(at)
        return False

    def _note(self, at: int, threads: Sequence[np.ndarray]) -> None:
        self.due, self.at, self.turns = 2 * self.due, at, 0
        self.threads = [array.copy() for array in threads]
        self.noted = {name: self.registers[name].copy() for name in self.registers.kept}
        self.visited, self.num_visited, self.depends = set[int](), 0, list[str]()

    def _is_back(self, threads: Sequence[np.ndarray]) -> bool:
        if not all(map(np.array_equal, threads, self.threads)):
            return False
        if len(self.visited) > self.num_visited:
            self.num_visited, self.depends = len(self.visited), self._registers_that_count()
        for n, name in enumerate(self.depends):
            if not np.array_equal(self.registers[name], self.noted[name]):
                self.depends.insert(0, self.depends.pop(n))  # it may well differ the next time, too
                return False
        return True

    def _registers_that_count(self) -> list[str]:
        """Those on which what the visited blocks do depends."""
        visited = [n for start in self.visited for n in range(start, self.ends[start])]
        uses = [self.registers.uses[n] for n in visited]
        found = {name for one in uses for name in one.guard}
        for n, one in zip(visited, uses, strict=True):
            if self.kernel.instructions[n].opcode in VISIBLE:
                found.update(one.reads)
        size = -1
        while size < len(found):
            size = len(found)
            for one in uses:
                if not found.isdisjoint(one.writes):
                    found.update(one.reads)
        return [name for name in found if name in self.noted]
