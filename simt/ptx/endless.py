"""Loops that never end, noticed by proof and not by the clock.

A machine that comes back to a state in which it has been does the same again, for ever. Of a state
counts only where the threads are, what memory holds, and the registers on which the loop's
instructions depend: their guards and addresses, what they store or show to other lanes, and all
that these are computed from. So a loop may even count its turns: `while flag[0] == 0: turns += 1`
never ends, whereas `while turns < limit: turns += 1` may, and goes on.

Where the threads are is noted after 64 basic blocks, and again whenever their number has doubled.
When they are there again, the blocks executed since are taken for a loop, and what it depends on is
noted. That finds a loop of any length soon after it has begun, and costs next to nothing.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from simt.ptx.parsing import Kernel
from simt.ptx.registers import Registers

FIRST = 64  # basic blocks before the first state is noted
TURNS = 3  # that must be alike: a race with the turn before has then been found
# What is more than arithmetic of one lane: whatever these read counts.
VISIBLE = {
    *("ld", "ldu", "st", "atom", "red", "ldmatrix", "stmatrix"),
    *("shfl", "vote", "mma", "bar", "barrier"),
}


class Watch:
    """Compares the states of one machine with an earlier one.

    at       the instruction at which that one was noted; -1: there is none
    visited  the basic blocks executed since, by their first instruction
    loop     those up to the return at which registers were noted: name -> numbers
    turns    how often the machine has come back since
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
            self.due, self.at, self.visited, self.loop = 2 * self.due, at, set[int](), set[int]()
            self.threads = [array.copy() for array in threads]
        elif at == self.at and all(map(np.array_equal, threads, self.threads)):
            if len(self.visited) > len(self.loop):
                self._note_registers()
            elif self._is_back():
                self.turns += 1
                if self.turns == 1:
                    self.memory = [array.copy() for array in memory]
                elif not all(map(np.array_equal, memory, self.memory)):
                    self.at = -1  # until the next state is noted
                elif self.turns > TURNS:
                    return True
        self.visited.add(at)
        return False

    def _note_registers(self) -> None:
        self.loop, self.turns = set(self.visited), 0
        if any(self.kernel.instructions[n].opcode == "cp" for n in self._numbers()):
            self.at = -1  # copies in flight are not compared
        self.noted = {name: self.registers[name].copy() for name in self._that_count()}

    def _is_back(self) -> bool:
        for name, noted in self.noted.items():
            if not np.array_equal(self.registers[name], noted):
                self.noted = {name: noted} | self.noted  # it may well differ next time, too
                return False
        return True

    def _numbers(self) -> list[int]:
        return [n for start in self.loop for n in range(start, self.ends[start])]

    def _that_count(self) -> set[str]:
        """The registers on which it depends what the loop does."""
        numbers = self._numbers()
        uses = [self.registers.uses[n] for n in numbers]
        found = {name for one in uses for name in one.guard}
        for n, one in zip(numbers, uses, strict=True):
            if self.kernel.instructions[n].opcode in VISIBLE:
                found.update(one.reads)
        size = -1
        while size < len(found):
            size = len(found)
            for one in uses:
                if not found.isdisjoint(one.writes):
                    found.update(one.reads)
        return found & self.registers.kept
