"""Where the registers of all threads are, and which of them an instruction reads and writes.

Most registers of a compiled kernel hold a number only for some instructions of one basic block. No
thread ever comes back for the number in such a scratch register, so an instruction may write it for
all threads, active or not, which is faster.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simt.ptx.numbers import size_of
from simt.ptx.parsing import Instruction, Kernel

WORD = re.compile(r"[\w$%.]+")
CARRY = "%carry"  # a predicate that has no name in the text: what .cc leaves for addc, subc, madc
WITHOUT_RESULT = ("st", "red", "bra", "bar", "barrier", "cp", "stmatrix")


class Uses(NamedTuple):
    """The registers that an instruction reads, those of its guard and of its address among them,
    and those that it writes."""

    guard: tuple[str, ...]
    address: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def uses_of(one: Instruction, types: Mapping[str, str]) -> Uses:
    first, *rest = one.operands or ("",)
    has_none = one.opcode in WITHOUT_RESULT and "red" not in one.words[1:]  # bar.red has one
    if has_none or first.startswith("["):
        first, rest = "", one.operands
    places = [operand for operand in one.operands if operand.startswith("[")]
    guard, address, reads, writes = (
        tuple([word for word in WORD.findall(text) if word in types]) if text else ()
        for text in (one.guard, " ".join(places), " ".join(rest), first)
    )
    reads += (CARRY,) if one.opcode in ("addc", "subc", "madc") else ()
    writes += (CARRY,) if "cc" in one.words else ()
    return Uses(guard, address, guard + reads, writes)


Block = Sequence[Uses]  # of the instructions of a basic block


class Registers(dict[str, np.ndarray]):
    """Name -> [num_threads].

    uses     of each instruction
    scratch  names of the registers that every basic block writes before it reads them, for all
             threads that execute it
    kept     names of all others
    """

    def __init__(self, kernel: Kernel, ends: Mapping[int, int], num_threads: int) -> None:
        """ends  first instruction of each basic block -> the first one behind it"""
        super().__init__()
        self.uses = [uses_of(one, kernel.registers) for one in kernel.instructions]
        blocks = [self.uses[start:end] for start, end in ends.items()]
        self.kept = _kept(blocks)
        written = {name for one in self.uses for name in one.writes}
        self.scratch = written - self.kept
        for name in self.kept | self.scratch:
            type_ = kernel.registers.get(name, "pred")
            self[name] = np.zeros(num_threads, bool if type_ == "pred" else f"u{size_of(type_)}")

    def clear(self) -> None:
        for name in self.kept:
            self[name].fill(0)


def _kept(blocks: Iterable[Block]) -> frozenset[str]:
    """The registers that some basic block reads before it writes them, or writes under a guard."""
    found: set[str] = set()
    for block in blocks:
        written: set[str] = set()
        for one in block:
            found.update(name for name in one.reads if name not in written)
            found.update(one.writes if one.guard else ())
            written.update(one.writes)
    return frozenset(found)
