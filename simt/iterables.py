"""What a loop goes over: range(...), a tuple, an array, and enumerate and zip of these.

An iterable is three functions: `start(frame)` returns its state, `more(frame, state)` says which
lanes have another item, and `item(frame, state)` returns it and moves on.
"""

import ast
from collections.abc import Callable
from functools import reduce

import numpy as np

from simt import arithmetic
from simt.access import load
from simt.arithmetic import INT64, Misuse, Value, cast, dtype_of, range_type
from simt.calls import Calls
from simt.known import UNKNOWN
from simt.lanes import Frame
from simt.memory import Array
from simt.tuples import is_tuple
from simt.views import partial_view

Iterable = tuple[Callable, Callable, Callable]
_less, _add, _subtract, _multiply, _floor_divide = map(
    arithmetic.binary, (ast.Lt, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv)
)


class Iterables(Calls):
    """Translates the iterables of one function."""

    def iterable(self, node: ast.expr) -> Iterable:
        function = self.known(node.func) if isinstance(node, ast.Call) else UNKNOWN
        if function is range:
            return self._range(node)
        if function is enumerate and 1 <= len(node.args) <= 2 and not node.keywords:
            first = self.translate(node.args[1]) if len(node.args) == 2 else lambda frame: 0
            return _enumerated(self.iterable(node.args[0]), first)
        if function is zip and node.args and not node.keywords:
            return _zipped([self.iterable(argument) for argument in node.args])
        return self._items(node)

    def _range(self, node: ast.Call) -> Iterable:
        if not 1 <= len(node.args) <= 3 or node.keywords:
            raise self.source.unsupported(node, "range takes one to three numbers")
        bounds = [self.translate(a) for a in node.args]

        def start(frame: Frame) -> list:
            numbers = [bound(frame) for bound in bounds]
            dtype = range_type(*map(dtype_of, numbers))
            numbers = [cast(cast(number, dtype), INT64) for number in numbers]
            first = 0 if len(numbers) == 1 else numbers[0]
            stop = numbers[0] if len(numbers) == 1 else numbers[1]
            step = numbers[2] if len(numbers) == 3 else 1
            if (zero := frame.lanes.where(np.equal(step, 0))).count:
                who = frame.gang.name_of(zero.numbers[0])
                raise Misuse(f"{who} gives range a step of 0")
            turns = arithmetic.negative(_floor_divide(_subtract(first, stop), step))  # rounded up
            return [first, step, turns, 0, dtype]

        def more(frame: Frame, state: list) -> Value:
            _, _, turns, turn, _ = state
            return turns > turn

        def item(frame: Frame, state: list) -> Value:
            first, step, _, turn, dtype = state
            state[3] += 1
            return cast(_add(first, _multiply(step, turn)), dtype)

        return start, more, item

    def _items(self, node: ast.expr) -> Iterable:
        """The parts of a tuple, or the items or rows of an array."""
        things = self.translate(node)
        place = self.program.machine.add_place(self.source.site(node))

        def start(frame: Frame) -> list:
            found = things(frame)
            if not (is_tuple(found) or isinstance(found, Array)) or getattr(found, "ndim", 1) == 0:
                what = "a loop over anything but range(...), a tuple, an array, enumerate or zip"
                raise self.source.unknown(node, what)
            return [found, 0]

        def more(frame: Frame, state: list) -> Value:
            found, at = state
            return _less(at, len(found) if isinstance(found, tuple) else found.shape[0])

        def item(frame: Frame, state: list) -> object:
            found, at = state
            state[1] += 1
            if isinstance(found, tuple):
                return found[at]
            return item_at(frame, found, at, place)

        return start, more, item


def item_at(frame: Frame, array: Array, at: int, place: int) -> object:
    """An item of an array with one axis, or a part of one with more."""
    read = load if array.ndim == 1 and not array.dtype.names else partial_view
    return read(frame, array, (at,), place)


def _enumerated(parts: Iterable, first: Callable) -> Iterable:
    start, more, item = parts

    def next_pair(frame: Frame, state: list) -> tuple:
        state[0] = _add(number := state[0], 1)
        return number, item(frame, state[1])

    return (
        lambda frame: [cast(first(frame), INT64), start(frame)],
        lambda frame, state: more(frame, state[1]),
        next_pair,
    )


def _zipped(several: list[Iterable]) -> Iterable:
    def more(frame: Frame, states: list) -> Value:
        answers = [
            has_more(frame, state) for (_, has_more, _), state in zip(several, states, strict=True)
        ]
        return reduce(np.logical_and, answers)

    return (
        lambda frame: [start(frame) for start, _, _ in several],
        more,
        lambda frame, states: tuple(
            item(frame, state) for (_, _, item), state in zip(several, states, strict=True)
        ),
    )
