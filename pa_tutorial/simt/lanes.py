"""Sets of lanes: who executes the next statement.

A warp executes one statement at a time for all its lanes. At a branch, some lanes go one way
and wait while the others go the other way: divergence. So every statement is executed by a set
of lanes, and every variable remembers which lanes have given it a value.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pa_tutorial.simt.arithmetic import Value, merge

RESULT = "return"  # the name under which a frame keeps what its lanes returned


class Lanes:
    """An unchanging set of lanes. `flags [width] bool`."""

    def __init__(self, flags: np.ndarray, count: int | None = None) -> None:
        self.flags = flags
        self.count = int(np.count_nonzero(flags)) if count is None else count
        self.everyone = self.count == len(flags)

    @cached_property
    def numbers(self) -> np.ndarray:
        """The lanes of the set, rising."""
        return np.flatnonzero(self.flags)

    @cached_property
    def ends(self) -> np.ndarray:
        """The first and the last lane: enough to say that several read one address."""
        return self.numbers[[0, -1]] if self.count > 1 else self.numbers

    def where(self, condition: Value) -> "Lanes":
        """The lanes of this set for which the condition holds; this very set if all do."""
        if not isinstance(condition, np.ndarray):
            return self if condition else self.nobody
        flags = condition if self.everyone else condition & self.flags
        count = int(np.count_nonzero(flags))
        return self if count == self.count else Lanes(flags, count)

    def minus(self, others: "Lanes") -> "Lanes":
        if not others.count:
            return self
        return Lanes(self.flags & ~others.flags)

    def join(self, a: "Lanes", b: "Lanes") -> "Lanes":
        """a and b, two parts of this set, together; this very set if that is everybody."""
        if not b.count:
            return self if a.count == self.count else a
        if not a.count:
            return self if b.count == self.count else b
        flags = a.flags | b.flags
        count = int(np.count_nonzero(flags))
        return self if count == self.count else Lanes(flags, count)

    def covers(self, others: "Lanes") -> bool:
        if self is others or self.everyone:
            return True
        return not np.count_nonzero(others.flags & ~self.flags)

    @cached_property
    def nobody(self) -> "Lanes":
        return Lanes(np.zeros_like(self.flags), 0)


@dataclass
class Frame:
    """One call of a function by the lanes of a gang: its variables, and who is at work.

    lanes      who executes the next statement
    values     variable -> its value
    holders    variable -> the lanes that have given it a value
    broken, continued   lanes that have left the innermost loop, or this turn of it
    """

    gang: object
    lanes: Lanes
    is_kernel: bool = False
    values: dict[str, object] = field(default_factory=dict)
    holders: dict[str, Lanes] = field(default_factory=dict)
    broken: Lanes | None = None
    continued: Lanes | None = None

    def assign(self, name: str, value: object) -> None:
        """name = value, in the lanes at work; the others keep what they have."""
        lanes, holders = self.lanes, self.holders.get(name)
        if holders is None or holders is lanes or lanes.everyone or lanes.covers(holders):
            self.values[name], self.holders[name] = value, lanes
            return
        old = self.values[name]
        if value is not old:
            self.values[name] = merged(old, value, lanes)
        if not holders.covers(lanes):
            self.holders[name] = Lanes(holders.flags | lanes.flags)


def merged(old: object, new: object, lanes: Lanes) -> object:
    """`new` in these lanes, `old` in the others; tuples and array views as well as numbers."""
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        return tuple(merged(a, b, lanes) for a, b in zip(old, new, strict=True))
    if hasattr(new, "merged_with"):
        return new.merged_with(old, lanes)
    if old is None or new is None:
        raise TypeError("some lanes have None here and others a number")
    return merge(old, new, lanes.flags)
