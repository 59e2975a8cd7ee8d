"""Statements of a kernel, translated once into Python functions of a frame.

A statement is executed by the lanes in `frame.lanes`, and leaves there the lanes that continue
with the next statement. A branch splits them and joins them again; `break`, `continue` and `return`
remove lanes until the loop or the function ends and returns them.
"""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import NamedTuple

import numpy as np

from simt import arithmetic, records
from simt.access import load, store
from simt.arithmetic import Value
from simt.closures import Closures
from simt.device_array import DeviceArray
from simt.expressions import has_slices, listed
from simt.intrinsics import ARRAYS
from simt.iterables import item_at
from simt.known import UNKNOWN, Captured
from simt.lanes import NUMBERS, RESULT, Frame
from simt.memory import Array
from simt.names import cuda_name, plain_function
from simt.tuples import flattened, is_tuple
from simt.views import fill, partial_view

Step = Callable[[Frame], None]
LOOK_EVERY = 4_999  # turns of a while loop; a prime, so that what comes round again has changed


class Decides(NamedTuple):
    """What decides whether a loop ends: the names of variables, and of arrays."""

    variables: set[str]
    arrays: set[str]


@dataclass(slots=True)
class Waiting:
    """A while loop while it runs: what decides whether it ends, when last looked at."""

    turns: int = 0
    seen: list[object] | None = None

    def is_as_before(self, frame: Frame, decides: Decides) -> bool:
        """Is all of it what it was at the last look, for the same lanes?"""
        values = {name: one.value for name, one in frame.variables.items()}
        parts = flattened({name: values.get(name) for name in decides.arrays}).values()
        arrays = [part for part in parts if isinstance(part, Array)]
        memory = [array.memory.data.copy() for array in arrays]
        now = [frame.lanes.count, *map(values.get, decides.variables), *memory]
        before, self.seen = self.seen, now
        return before is not None and len(before) == len(now) and all(map(same, before, now))


def read_by_conditions(nodes: Sequence[ast.AST]) -> list[ast.AST]:
    """The parts of the expressions on which conditions depend, also through assignments."""
    tests = [one.test for one in nodes if isinstance(one, ast.While | ast.If | ast.IfExp)]
    read = [part for test in tests for part in ast.walk(test)]
    names: set[str] = set()
    while new := {part.id for part in read if isinstance(part, ast.Name)} - names:
        names |= new
        for one in nodes:
            if isinstance(one, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For):
                targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                value = one.iter if isinstance(one, ast.For) else one.value
                if value and new & {n.id for t in targets for n in ast.walk(t) if is_stored(n)}:
                    read += ast.walk(value)
    return read


class Raised(Exception):
    """What a `raise` in a kernel raises: the error of the kernel's own, on its way to the caller of
    `launch`, past those who take a ValueError for a mistake in using a value."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _is_of_program(thing: object) -> bool:
    """Is it a function of the program's own?"""
    return plain_function(thing) is not None or isinstance(thing, FunctionType)


def _has_items(frame: Frame, array: Array, count: int) -> bool:
    """Has it so many items, or rows, in all active lanes?"""
    return array.ndim > 0 and not frame.lanes.where(np.not_equal(array.shape[0], count)).count


def is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def same(a: object, b: object) -> bool:
    return a is b or (isinstance(a, NUMBERS) and isinstance(b, NUMBERS) and np.array_equal(a, b))


class Statements(Closures):
    """Translates the statements of one function."""

    def body(self, nodes: list[ast.stmt]) -> Step:
        steps = [self.statement(node) for node in nodes]
        if len(steps) == 1:
            return steps[0]

        def run(frame: Frame) -> None:
            for step in steps:
                step(frame)
                if not frame.lanes.count:
                    return

        return run

    def statement(self, node: ast.stmt) -> Step:
        method = getattr(self, f"_do_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.source.unknown_kind(node)
        step = self.program.watched(self.source, node, method(node))

        def run(frame: Frame) -> None:
            try:
                step(frame)
            except KeyboardInterrupt as error:  # the innermost statement says where
                error.args = error.args or (self.source.where(node),)
                raise
            except (AttributeError, OverflowError, TypeError, ValueError) as error:
                raise self.source.unsupported(node, str(error)) from error

        return run

    def _do_assert(self, node: ast.Assert) -> Step:
        test = self.translate(node.test)

        def run(frame: Frame) -> None:
            wrong = frame.lanes.where(arithmetic.logical_not(arithmetic.truth(test(frame))))
            if wrong.count:
                who = frame.gang.name_of(wrong.numbers[0])
                what = f"{who} fails an assertion{self.source.where(node)}"
                raise frame.gang.error(AssertionError(what))

        return run

    def _do_raise(self, node: ast.Raise) -> Step:
        """raise ValueError, raise ValueError("why"): an error here; a note says who raised it. On
        a GPU, the thread ends, and only a kernel with debug=True reports it."""
        is_call = isinstance(node.exc, ast.Call)
        named, given = (node.exc.func, node.exc.args) if is_call else (node.exc, [])
        kind = UNKNOWN if named is None or node.cause else self.known(named)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise self.source.unknown(node)
        arguments = [self.constant(one) for one in given]
        if any(one is UNKNOWN for one in arguments) or (is_call and node.exc.keywords):
            raise self.source.unsupported(node, "an error takes constants alone, and none by name")

        def run(frame: Frame) -> None:
            error = kind(*arguments)
            who = frame.gang.name_of(frame.lanes.numbers[0])
            error.add_note(f"{who} raises this{self.source.where(node)}")
            raise frame.gang.error(Raised(error))

        return run

    def _do_pass(self, node: ast.Pass) -> Step:
        return lambda frame: None

    def _do_expr(self, node: ast.Expr) -> Step:
        if isinstance(node.value, ast.Constant):  # a docstring
            return lambda frame: None
        self.unused = node.value
        value = self.translate(node.value)

        def run(frame: Frame) -> None:
            value(frame)

        return run

    # Assignments ------------------------------------------------------------------------------

    def _do_functiondef(self, node: ast.FunctionDef) -> Step:
        self.define(node.name, node)
        return lambda frame: None

    def _do_assign(self, node: ast.Assign) -> Step:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda() as function):
                self.define(name, function)
                return lambda frame: None
        value = self._named_array(node) or self.translate(node.value)
        targets = [self._target(target) for target in node.targets]
        if len(targets) == 1:
            (target,) = targets
            return lambda frame: target(frame, value(frame))

        def run(frame: Frame) -> None:
            result = value(frame)
            for target in targets:
                target(frame, result)

        return run

    def _named_array(self, node: ast.Assign) -> Step | None:
        """`s = cuda.shared.array(...)`: the array gets the name of its variable."""
        call, target = node.value, node.targets[0]
        if not (isinstance(call, ast.Call) and isinstance(target, ast.Name)):
            return None
        callee = self.known(call.func)
        kind = None if callee is UNKNOWN else cuda_name(callee)
        return self.array(call, kind, target.id) if kind in ARRAYS else None

    def _target(self, node: ast.expr) -> Callable[[Frame, object], None]:
        match node:
            case ast.Name(id=name):
                return lambda frame, value: frame.assign(name, value)
            case ast.Tuple(elts=parts):
                return self._unpack(node, [self._target(part) for part in parts])
            case ast.Subscript() | ast.Attribute():
                base, index, write = self._item(node)

                def store_there(frame: Frame, value: object) -> None:
                    array = base(frame)
                    write(frame, array, index(frame, array), value)

                return store_there
        raise self.source.unknown(node, f"{ast.unparse(node)} as a place to store into")

    def _unpack(self, node: ast.Tuple, targets: list) -> Callable[[Frame, object], None]:
        count, place = len(targets), self.program.machine.add_place(self.source.site(node))

        def run(frame: Frame, value: object) -> None:
            if isinstance(value, Array) and _has_items(frame, value, count):
                value = tuple([item_at(frame, value, at, place) for at in range(count)])
            if not is_tuple(value) or len(value) != count:
                raise self.source.unsupported(node, f"needs {count} values")
            for target, part in zip(targets, value, strict=True):
                target(frame, part)

        return run

    def _item(self, node: ast.Subscript | ast.Attribute) -> tuple[Step, Callable, Callable]:
        """base[index] as a place to write to: base, index, and the function that writes. A field,
        base.x, is written as base["x"]."""
        inside = ast.Constant(node.attr) if isinstance(node, ast.Attribute) else node.slice
        base, index = self.translate(node.value), self.index(inside)
        place = self.program.machine.add_place(self.source.site(node))
        slices = has_slices(inside)

        def write(frame: Frame, array: object, indices: tuple, value: Value) -> None:
            if not isinstance(array, Array):
                raise self.source.unsupported(node, f"{ast.unparse(node.value)} is not an array")
            if array.dtype.names:
                records.write(frame, array, indices, value, place)
                return
            if len(indices) > array.ndim:
                raise self.too_many(node, array, indices)
            is_part = slices or len(indices) < array.ndim
            if value is None or isinstance(value, Array if is_part else (tuple, Array)):
                what = "numbers can be stored, one or a tuple: to copy an array takes a loop"
                what = what if is_part else "a number can be stored"
                raise self.source.unsupported(node, f"only {what}")
            if is_part:
                fill(frame, partial_view(frame, array, indices, place), value, place)
            else:
                store(frame, array, indices, value, place)

        return base, index, write

    def _do_annassign(self, node: ast.AnnAssign) -> Step:
        """A type beside a variable has no effect."""
        if node.value is None:
            return lambda frame: None
        assignment = ast.Assign([node.target], node.value)
        return self._do_assign(ast.copy_location(assignment, node))

    def _do_augassign(self, node: ast.AugAssign) -> Step:
        """target += value: an item's index is computed once."""
        value = self.translate(node.value)
        kind = type(node.op)
        if isinstance(node.target, ast.Name):
            old = self.translate(ast.copy_location(ast.Name(node.target.id), node.target))
            result, name = self.noted(node, self.operation(node, kind, old, value)), node.target.id
            return lambda frame: frame.assign(name, result(frame))
        base, index, write = self._item(node.target)
        slices = has_slices(getattr(node.target, "slice", node.target))
        place = self.program.machine.add_place(self.source.site(node.target))
        apply = self.noted(node, self.applied(node, kind))

        def run(frame: Frame) -> None:
            array = base(frame)
            indices = index(frame, array)
            if records.has_fields(array):
                old = records.read(frame, array, indices, place)
            elif not isinstance(array, Array) or len(indices) != array.ndim or slices:
                raise self.source.unsupported(node, f"{ast.unparse(node.target)} is not one item")
            else:
                old = load(frame, array, indices, place)
            write(frame, array, indices, apply(frame, old, value(frame)))

        return run

    # Branches and loops -----------------------------------------------------------------------

    def _do_if(self, node: ast.If) -> Step:
        test, then = self.translate(node.test), self.body(node.body)
        otherwise = self.body(node.orelse) if node.orelse else None

        def run(frame: Frame) -> None:
            outer = frame.lanes
            yes = outer.where(arithmetic.truth(test(frame)))
            if yes is outer:
                then(frame)
                return
            no = after_no = outer.minus(yes)
            after_yes = yes
            if yes.count:
                frame.lanes = yes
                then(frame)
                after_yes = frame.lanes
            if otherwise and no.count:
                frame.lanes = no
                otherwise(frame)
                after_no = frame.lanes
            frame.lanes = outer.join(after_yes, after_no)

        return run

    def _do_while(self, node: ast.While) -> Step:
        test, body = self.translate(node.test), self.body(node.body)
        decides = self._what_decides(node)
        site = self.source.site(node)

        def turn(frame: Frame, waiting: Waiting) -> None:
            waiting.turns += 1
            if waiting.turns % LOOK_EVERY == 0 and waiting.is_as_before(frame, decides):
                turns = f"{waiting.turns} turns of one loop with the same condition (max_turns)"
                frame.gang.hang(site, turns)

        is_watched = decides is not None and self.program.machine.max_turns is None
        start, more = (lambda frame: Waiting()), (lambda frame, _: test(frame))
        return self._loop(node, start, more, body, turn if is_watched else None)

    def _what_decides(self, node: ast.While) -> Decides | None:
        """What its condition depends on, and those inside it, which may guard a `break`. None if a
        function of the program's own, a variable around this function, or a device array that is
        compiled in, may decide."""
        inside = [*ast.walk(node)]
        read = read_by_conditions(inside)
        names, variables = (
            {n.id for n in nodes if isinstance(n, ast.Name)} for nodes in (inside, read)
        )
        if not any(self._is_in_memory(n) or self._calls_gpu_code(n) for n in read):
            return Decides(variables, set())
        known = [self.known(n) for n in inside if isinstance(n, ast.Name | ast.Attribute)]
        is_elsewhere = any(
            n in self.inner or isinstance(self.enclosed.get(n), Captured) for n in names
        )
        if is_elsewhere or any(
            _is_of_program(one) or isinstance(one, DeviceArray) for one in known
        ):
            return None
        return Decides(variables, names)

    def _is_in_memory(self, node: ast.AST) -> bool:
        """Is it an item of an array, or a field of a record?"""
        of_value = isinstance(node, ast.Attribute) and self.meant(node.value) is UNKNOWN
        return of_value or isinstance(node, ast.Subscript)

    def _calls_gpu_code(self, node: ast.AST) -> bool:
        """Is it a call of a function of cuda, or of one of the program's own?"""
        if not isinstance(node, ast.Call):
            return False
        callee = self.known(node.func)
        return callee is UNKNOWN or bool(cuda_name(callee)) or _is_of_program(callee)

    def _do_for(self, node: ast.For) -> Step:
        """for name in range(...), a tuple, an array, or enumerate or zip of these"""
        start, more, item = self.iterable(listed(node.iter))
        target, body = self._target(node.target), self.body(node.body)

        def turn(frame: Frame, state: object) -> None:
            target(frame, item(frame, state))

        return self._loop(node, start, more, body, turn)

    def _loop(
        self, node: ast.stmt, start: Callable, more: Callable, body: Step, turn: Callable | None
    ) -> Step:
        """Loops until no lane needs another turn; lanes that are done wait for the others."""
        place = self.program.machine.add_place(self.source.site(node))
        otherwise = self.body(node.orelse) if node.orelse else None

        def run(frame: Frame) -> None:
            outer, gang = frame.lanes, frame.gang
            way, number = gang.way, 0
            saved = frame.broken, frame.continued
            frame.broken = done = outer.nobody
            state = start(frame)
            while frame.lanes.count:
                gang.way = (*way, (place, number))
                number += 1
                going = frame.lanes.where(arithmetic.truth(more(frame, state)))
                if going is not frame.lanes:
                    done = outer.join(done, frame.lanes.minus(going))
                    frame.lanes = going
                    if not going.count:
                        break
                gang.turn(place)
                if turn:
                    turn(frame, state)
                frame.continued = outer.nobody
                body(frame)
                if frame.continued.count:
                    frame.lanes = outer.join(frame.lanes, frame.continued)
            frame.lanes, broken = done, frame.broken  # all others have returned
            frame.broken, frame.continued = saved
            gang.way = way
            if otherwise and done.count:
                otherwise(frame)
            frame.lanes = outer.join(frame.lanes, broken)

        return run

    def _do_break(self, node: ast.Break) -> Step:
        def run(frame: Frame) -> None:
            frame.broken = frame.lanes.join(frame.lanes, frame.broken)
            frame.lanes = frame.lanes.nobody

        return run

    def _do_continue(self, node: ast.Continue) -> Step:
        def run(frame: Frame) -> None:
            frame.continued = frame.lanes.join(frame.lanes, frame.continued)
            frame.lanes = frame.lanes.nobody

        return run

    def _do_return(self, node: ast.Return) -> Step:
        value = self.translate(node.value) if node.value else None

        def run(frame: Frame) -> None:
            if frame.is_kernel:
                if value is not None and value(frame) is not None:
                    raise self.source.unsupported(node, "a kernel cannot return a value")
                frame.gang.alive = frame.gang.alive.minus(frame.lanes)
            else:
                frame.assign(RESULT, value(frame) if value else None)
            frame.lanes = frame.lanes.nobody

        return run
