"""Sets of lanes: who executes the next statement.

A warp executes one statement at a time for all its lanes. At a branch, some lanes take one path
and wait while the others take the other; this is divergence. So every statement is executed by a
set of lanes, and every variable remembers which lanes have assigned to it.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from simt.arithmetic import Misuse, Value, dtype_of, merge
from simt.tuples import like

NUMBERS = (bool, int, float, complex, np.generic, np.ndarray)
RESULT = "return"  # the name under which a frame keeps what its lanes returned


class Lanes:
    """An unchanging set of lanes. `flags [width] bool`."""

    def __init__(self, flags: np.ndarray, count: int | None = None) -> None:
        self.flags = flags
        self.count = int(np.count_nonzero(flags)) if count is None else count
        self.everyone = self.count == len(flags)

    @cached_property
    def numbers(self) -> np.ndarray:
        """The lanes of the set, in ascending order."""
        return np.flatnonzero(self.flags)

    @cached_property
    def ends(self) -> np.ndarray:
        """The first and the last lane, enough to tell that several lanes read one address."""
        return self.numbers[[0, -1]] if self.count > 1 else self.numbers

    def where(self, condition: Value) -> "Lanes":
        """The lanes of this set for which the condition holds; this set itself if all do."""
        if not isinstance(condition, np.ndarray):
            return self if condition else self.nobody
        flags = condition if self.everyone else condition & self.flags
        count = int(np.count_nonzero(flags))
        return self if count == self.count else Lanes(flags, count)

    def minus(self, other: "Lanes") -> "Lanes":
        if not other.count:
            return self
        return Lanes(self.flags & ~other.flags)

    def join(self, a: "Lanes", b: "Lanes") -> "Lanes":
        """The union of a and b, two parts of this set; this set itself if that is all of it."""
        if not b.count:
            return self if a.count == self.count else a
        if not a.count:
            return self if b.count == self.count else b
        flags = a.flags | b.flags
        count = int(np.count_nonzero(flags))
        return self if count == self.count else Lanes(flags, count)

    def covers(self, other: "Lanes") -> bool:
        if self is other or self.everyone:
            return True
        return not np.count_nonzero(other.flags & ~self.flags)

    @cached_property
    def nobody(self) -> "Lanes":
        return Lanes(np.zeros_like(self.flags), 0)


@dataclass(slots=True)  # faster, and a new one is made at every assignment
class Variable:
    """A name in a frame: its latest value, the lanes that have it, and what other lanes still hold.

    older  values of lanes without the latest one, where their kind differs from it: numbers of
           another type, other arrays. They are merged only if a read needs both.
    """

    value: object
    lanes: Lanes
    older: tuple["Variable", ...] = ()

    def read(self, lanes: Lanes) -> object:
        """The value in these lanes, all of which must have one."""
        if not self.older:
            return self.value
        first, *rest = (
            one for one in (self, *self.older) if np.count_nonzero(one.lanes.flags & lanes.flags)
        )
        result = first.value
        for one in rest:
            result = merged(result, one.value, one.lanes)
        return result

    @property
    def holders(self) -> Lanes:
        """All lanes that have a value."""
        if not self.older:
            return self.lanes
        return Lanes(np.logical_or.reduce([v.lanes.flags for v in (self, *self.older)]))

    def assigned(self, value: object, lanes: Lanes) -> "Variable":
        """The variable after an assignment in these lanes."""
        if not self.older and (value is self.value or same_kind(value, self.value)):
            covered = self.lanes.covers(lanes)
            both = self.lanes if covered else Lanes(self.lanes.flags | lanes.flags)
            same = value is self.value
            return Variable(value if same else merged(self.value, value, lanes), both)
        older = tuple(v for one in (self, *self.older) if (v := one.without(lanes)))
        return Variable(value, lanes, older)

    def without(self, lanes: Lanes) -> "Variable | None":
        """What the other lanes still hold; None if nothing."""
        remaining = self.lanes.minus(lanes)
        return Variable(self.value, remaining) if remaining.count else None


@dataclass
class Frame:
    """One call of a function by the lanes of a gang: its variables, and which lanes are active.

    lanes      who executes the next statement
    broken, continued   lanes that have left the innermost loop, or its current turn
    caller     of a function that the kernel defines inside, the frame that has its variables
    """

    gang: object
    lanes: Lanes
    is_kernel: bool = False
    variables: dict[str, Variable] = field(default_factory=dict)
    broken: Lanes | None = None
    continued: Lanes | None = None
    caller: "Frame | None" = None

    def assign(self, name: str, value: object) -> None:
        """name = value, in the active lanes; the others keep what they have."""
        lanes, old = self.lanes, self.variables.get(name)
        if old is None or (not old.older and (old.lanes is lanes or lanes.covers(old.lanes))):
            self.variables[name] = Variable(value, lanes)
        else:
            self.variables[name] = old.assigned(value, lanes)


def same_kind(a: object, b: object) -> bool:
    """Are these numbers of one type, so that one array can hold them?"""
    return isinstance(a, NUMBERS) and isinstance(b, NUMBERS) and dtype_of(a) == dtype_of(b)


def merged(old: object, new: object, lanes: Lanes) -> object:
    """`new` in these lanes, `old` in the others: numbers, tuples or array views."""
    if isinstance(old, tuple) and type(old) is type(new) and len(old) == len(new):
        return like(old, [merged(a, b, lanes) for a, b in zip(old, new, strict=True)])
    if hasattr(new, "merged_with"):
        return new.merged_with(old, lanes)
    if old is None or new is None:
        raise Misuse("some lanes have None here and others a value")
    return merge(old, new, lanes.flags)
