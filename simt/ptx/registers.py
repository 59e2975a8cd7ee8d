"""Where the registers of all threads are, and which of them an instruction reads and writes.

Most registers of a compiled kernel hold a number only for some instructions of one basic block. No
thread ever comes back for the number in such a scratch register. So an instruction may write it for
all threads, active or not, which is faster; and it takes the place of another that isn't needed any
more, so that the arrays in use fit into the processor's cache.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from simt.ptx.numbers import size_of
from simt.ptx.parsing import Instruction, Kernel

WORD = re.compile(r"[\w$%.]+")
WITHOUT_RESULT = ("st", "red", "bra", "bar", "barrier", "cp", "stmatrix")


class Uses:
    """The registers that an instruction reads, those of its guard and of its address among them,
    and those that it writes."""

    def __init__(self, one: Instruction, types: Mapping[str, str]) -> None:
        first, *rest = one.operands or ("",)
        if one.opcode in WITHOUT_RESULT or first.startswith("["):
            first, rest = "", one.operands
        places = " ".join(operand for operand in one.operands if operand.startswith("["))
        texts = one.guard, first, " ".join(rest), places
        self.guard, self.writes, self.reads, self.address = (
            [word for word in WORD.findall(text) if word in types] for text in texts
        )
        self.reads += self.guard


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
        self.uses = [Uses(one, kernel.registers) for one in kernel.instructions]
        blocks = [self.uses[start:end] for start, end in ends.items()]
        types = {
            name: "?" if type_ == "pred" else f"u{size_of(type_)}"
            for name, type_ in kernel.registers.items()
        }
        self.kept = _kept(blocks)
        rows = _rows_of_scratch(blocks, types, self.kept)
        self.scratch = frozenset(rows)
        sizes: Counter[str] = Counter()
        for name, row in rows.items():
            sizes[types[name]] = max(sizes[types[name]], row + 1)
        scratch = {type_: np.zeros((size, num_threads), type_) for type_, size in sizes.items()}
        self.update({name: np.zeros(num_threads, types[name]) for name in self.kept})
        self.update({name: scratch[types[name]][row] for name, row in rows.items()})

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


def _rows_of_scratch(
    blocks: Sequence[Block], types: Mapping[str, str], kept: Collection[str]
) -> dict[str, int]:
    """Register -> its row among those of its type. What several basic blocks use has its own."""
    rows: dict[str, int] = {}
    num_rows: Counter[str] = Counter()
    uses_of = Counter(name for block in blocks for name in {n for one in block for n in one.writes})
    shared: defaultdict[str, list[int]] = defaultdict(list)  # type -> rows that names take in turn
    for block in blocks:
        free = {type_: list(numbers) for type_, numbers in shared.items()}
        last = {name: n for n, one in enumerate(block) for name in (*one.writes, *one.reads)}
        for n, one in enumerate(block):
            for name in one.writes:
                if name in kept or name in rows:
                    continue
                type_, is_own = types[name], uses_of[name] > 1
                if is_own or not free.get(type_):
                    rows[name] = num_rows[type_]
                    num_rows[type_] += 1
                    if not is_own:
                        shared[type_].append(rows[name])
                else:
                    rows[name] = free[type_].pop()
            for name in {*one.reads, *one.writes}:
                if last[name] == n and name in rows and uses_of[name] == 1:
                    free.setdefault(types[name], []).append(rows[name])
    return rows
