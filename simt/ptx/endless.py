"""Loops that never end, noticed by proof and not by the clock.

A machine that comes back to a state in which it has been does the same again, for ever. Of a state
counts where the threads are, and what decides where they go and which bytes they access: the
registers in guards and addresses, the bytes that are loaded for them, and whatever these are
computed from or stored from. So a loop may go on counting and storing: `while flag[0] == 0: i += 1`
never ends, whereas `while i < n: i += 1` may, and is let run.

Threads may wait so for others that come later in the text, which haven't run yet: these run first
then, and the loop is endless if nobody can, or what it reads is as before once they can't go on.

Where the threads are is noted after 64 basic blocks, and again whenever their number has doubled.
When they are there again, the blocks executed since are taken for a loop, and what it depends on is
noted. That finds a loop of any length soon after it has begun, and costs next to nothing.
"""

from collections.abc import Iterable

import numpy as np

from simt.ptx.machine import ASIDE, MEETING, Machine, PtxFault
from simt.ptx.memory import Access

FIRST = 64  # basic blocks before it is first noted where the threads are
SOON = 8  # the same after threads were set aside, because others may wait so, too
TURNS = 3  # that must be alike: a race with the turn before has then been found
# What these read, other lanes see.
TOGETHER = ("shfl", "vote", "match", "redux", "mma", "bar", "barrier")
Bytes = tuple[str, int, int]  # of a space, from one address up to another


class Watch:
    """Compares the states of a machine with earlier ones.

    step     number of basic blocks before this one, since the thread blocks began
    due      that before which the next state is noted; `wait` after the last
    at       the instruction at which the last one was; -1: there is none
    visited  the basic blocks executed since, by their first instruction
    loop     those up to the return at which registers were noted, with the bytes that count
    turns    how often the machine has come back since
    tried    of each loop whose threads were set aside: the bytes that count, and what was in memory
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._begin(0, FIRST)

    def _begin(self, step: int, wait: int) -> None:
        self.due, self.wait, self.at = step + wait, wait, -1

    def look(self, step: int, at: int) -> None:
        """Before a basic block is executed. Raises PtxFault if the machine has come back for good.

        step  number of basic blocks before this one, since the thread blocks began
        at    its first instruction
        """
        machine, self.step = self.machine, step
        if step == 0:
            self._begin(0, FIRST)
        if step < FIRST:
            return
        threads = machine.next, machine.resume, machine.meeting, machine.goes_on, machine.aside
        if step >= self.due:
            self.due, self.wait = self.due + self.wait, 2 * self.wait
            self.at, self.visited, self.loop = at, set(), set()
            self.threads, self.start = [np.copy(each) for each in threads], len(machine.log)
        elif at == self.at and all(map(np.array_equal, threads, self.threads)):
            if len(self.visited) > len(self.loop):
                self._note()
            elif self._registers_are_back():
                self._count_turn()
        self.visited.add(at)

    def _note(self) -> None:
        self.loop, self.turns = set(self.visited), 0
        names, _ = self._that_count()
        self.noted = {name: self.machine.registers[name].copy() for name in names}
        if any(self.machine.kernel.instructions[n].opcode == "cp" for n in self._numbers()):
            self.at = -1  # what copies in flight do isn't compared

    def _numbers(self) -> list[int]:
        """The instructions of the loop."""
        return [n for start in self.loop for n in range(start, self.machine.ends[start])]

    def _registers_are_back(self) -> bool:
        for name, noted in self.noted.items():
            if not np.array_equal(self.machine.registers[name], noted):
                self.noted = {name: noted} | self.noted  # it may well differ next time, too
                return False
        return True

    def _count_turn(self) -> None:
        machine = self.machine
        self.turns += 1
        if self.turns == 1:
            self.memory = {name: space.data.copy() for name, space in machine.memory.items()}
            self.start = len(machine.log)
            return
        names, loaded = self._that_count()
        if not names <= self.noted.keys():
            self._note()
        elif not self._hold_the_same(loaded, self.memory):
            self.at = -1  # until the next state is noted
        elif self.turns > TURNS:
            self._set_aside(loaded)

    def _set_aside(self, loaded: list[Bytes]) -> None:
        """The threads in the loop, so that others go on. Raises PtxFault if that doesn't help."""
        machine = self.machine
        inside, aside = np.isin(machine.next, list(self.loop)), machine.aside
        others = (machine.next < ASIDE) & ~machine.meeting & ~inside & ~aside
        if not others.any() and not machine.open_barriers():
            if not aside.any() or all(self._hold_the_same(*each) for each in self.tried):
                raise self._fault()
            aside = np.zeros_like(aside)  # what they read has changed
        if not aside.any():
            self.tried = []
        self.tried.append((loaded, self.memory))
        machine.set_aside(inside | aside)
        self._begin(self.step, SOON)

    def _hold_the_same(self, those: Iterable[Bytes], before: dict[str, np.ndarray]) -> bool:
        """Whether these bytes are as they were."""
        for name, low, high in those:
            here = slice(low, high) if name == "global" else slice(None)  # of all threads
            if not np.array_equal(self.machine.memory[name].data[here], before[name][here]):
                return False
        return True

    def _that_count(self) -> tuple[frozenset[str], list[Bytes]]:
        """The registers, and the bytes loaded, on which it depends what the loop does."""
        machine, numbers = self.machine, self._numbers()
        uses, accesses = machine.registers.uses, _hulls(machine.log[self.start :])
        found: set[str] = set()
        for n in numbers:
            one = machine.kernel.instructions[n]
            is_seen = one.opcode in TOGETHER or "param" in one.words
            found.update(uses[n].guard, uses[n].address, uses[n].reads if is_seen else ())
        size, loaded = -1, list[Bytes]()
        while size < len(found):
            size = len(found)
            for n in numbers:
                if not found.isdisjoint(uses[n].writes):
                    found.update(uses[n].reads)
            loaded = [
                where
                for n, kind, where in accesses
                if kind == "atomic"
                or (kind == "read" and not found.isdisjoint(uses[n].writes))
                or machine.kernel.instructions[n].opcode == "call"  # its result is in memory
            ]
            for n, kind, where in accesses:
                if kind != "read" and any(_overlap(where, other) for other in loaded):
                    found.update(uses[n].reads)
        return found & machine.registers.kept, [*loaded, ("param", 0, 0)]

    def _fault(self) -> PtxFault:
        machine, first = self.machine, min(self.loop)
        labels = machine.kernel.labels.items()
        label = "".join(f" at {name}" for name, number in labels if number == first)
        inside = np.isin(machine.next, list(self.loop))
        what = (
            f"{machine.name(int(np.argmax(inside)))} goes round the loop{label} for ever: "
            "no turn changes what could end it"
        )
        if machine.ordering is not None and machine.block_of.max() + 1 < np.prod(machine.grid):
            what += "; with the race check, a thread block that could hasn't begun"
        waits = (machine.next < MEETING) & ~inside
        if waits.any():
            what += f" (and {machine.name(int(np.argmax(waits)))} waits until it has left)"
        block = machine.kernel.instructions[first : machine.ends[first]]
        return PtxFault("sync", what, next((one for one in block if one.source), block[0]))


def _hulls(accesses: Iterable[Access]) -> list[tuple[int, str, Bytes]]:
    """(instruction, kind of access, from the first of its bytes in a space to the last)."""
    found: dict[tuple[int, str, str], tuple[int, int]] = {}
    for one in accesses:
        key = one.instruction.number, one.kind, one.space
        low, high = found.get(key, (one.low, one.high))
        found[key] = min(low, one.low), max(high, one.high)
    return [(n, kind, (space, *ends)) for (n, kind, space), ends in found.items()]


def _overlap(those: Bytes, others: Bytes) -> bool:
    return those[0] == others[0] and those[1] < others[2] and others[1] < those[2]
