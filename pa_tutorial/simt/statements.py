"""Statements of a kernel, translated once into Python functions of a frame.

A statement is executed by the lanes in `frame.lanes`, and leaves there the lanes that continue
with the next statement. A branch splits them and joins them again; `break`, `continue` and `return`
remove lanes until the loop or the function ends and returns them.
"""

import ast
from collections.abc import Callable
from functools import reduce

import numpy as np

from pa_tutorial.simt import arithmetic
from pa_tutorial.simt.access import load, store
from pa_tutorial.simt.arithmetic import Value, cast, dtype_of
from pa_tutorial.simt.calls import Calls
from pa_tutorial.simt.expressions import has_slices
from pa_tutorial.simt.intrinsics import ARRAYS
from pa_tutorial.simt.known import UNKNOWN
from pa_tutorial.simt.lanes import RESULT, Frame
from pa_tutorial.simt.memory import Array
from pa_tutorial.simt.names import cuda_name
from pa_tutorial.simt.views import fill, partial_view

Step = Callable[[Frame], None]
_less, _greater = arithmetic.binary(ast.Lt), arithmetic.binary(ast.Gt)
_add = arithmetic.binary(ast.Add)


class Statements(Calls):
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
            raise self.source.unknown(node, f"{type(node).__name__} in a kernel")
        step = self.program.watched(self.source, node, method(node))

        def run(frame: Frame) -> None:
            try:
                step(frame)
            except (AttributeError, OverflowError, TypeError, ValueError) as error:
                raise self.source.unsupported(node, str(error)) from error

        return run

    def _do_pass(self, node: ast.Pass) -> Step:
        return lambda frame: None

    def _do_expr(self, node: ast.Expr) -> Step:
        if isinstance(node.value, ast.Constant):  # a docstring
            return lambda frame: None
        value = self.translate(node.value)

        def run(frame: Frame) -> None:
            value(frame)

        return run

    # Assignments ------------------------------------------------------------------------------

    def _do_assign(self, node: ast.Assign) -> Step:
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
            case ast.Subscript():
                base, index, write = self._item(node)

                def store_there(frame: Frame, value: object) -> None:
                    array = base(frame)
                    write(frame, array, index(frame, array), value)

                return store_there
        raise self.source.unknown(node, f"{ast.unparse(node)} as a place to store into")

    def _unpack(self, node: ast.Tuple, targets: list) -> Callable[[Frame, object], None]:
        def run(frame: Frame, value: object) -> None:
            if not isinstance(value, tuple) or len(value) != len(targets):
                raise self.source.unsupported(node, f"needs {len(targets)} values")
            for target, part in zip(targets, value, strict=True):
                target(frame, part)

        return run

    def _item(self, node: ast.Subscript) -> tuple[Step, Callable, Callable]:
        """base[index] as a place to write to: base, index, and the function that writes."""
        base, index = self.translate(node.value), self.index(node.slice)
        place = self.program.machine.add_place(self.source.site(node))
        slices = has_slices(node.slice)

        def write(frame: Frame, array: object, indices: tuple, value: Value) -> None:
            if not isinstance(array, Array):
                raise self.source.unsupported(node, f"{ast.unparse(node.value)} is not an array")
            if len(indices) > array.ndim:
                raise self.too_many(node, array, indices)
            if value is None or isinstance(value, (tuple, Array)):
                raise self.source.unsupported(node, "only a number can be stored")
            if slices or len(indices) < array.ndim:
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
            result, name = self.operation(node, kind, old, value), node.target.id
            return lambda frame: frame.assign(name, result(frame))
        base, index, write = self._item(node.target)
        slices = has_slices(node.target.slice)
        place = self.program.machine.add_place(self.source.site(node.target))
        apply = self.applied(node, kind)

        def run(frame: Frame) -> None:
            array = base(frame)
            indices = index(frame, array)
            if not isinstance(array, Array) or len(indices) != array.ndim or slices:
                raise self.source.unsupported(node, f"{ast.unparse(node.target)} is not one item")
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
        return self._loop(node, lambda frame: None, lambda frame, _: test(frame), body, None)

    def _do_for(self, node: ast.For) -> Step:
        """for name in range(...), or over the items of a tuple or an array"""
        call = node.iter
        if not isinstance(call, ast.Call) or self.known(call.func) is not range:
            return self._for_each(node)
        if not 1 <= len(call.args) <= 3 or call.keywords:
            raise self.source.unsupported(node, "range takes one to three numbers")
        bounds = [self.translate(a) for a in call.args]
        target, body = self._target(node.target), self.body(node.body)

        def start(frame: Frame) -> list:
            numbers = [bound(frame) for bound in bounds]
            dtype = np.result_type(*map(dtype_of, numbers))  # of the loop's variable
            if dtype.kind not in "iu":
                raise TypeError(f"range needs integers, not {dtype}")
            numbers = [_python_int(number) for number in numbers]
            first = 0 if len(numbers) == 1 else numbers[0]
            stop = numbers[0] if len(numbers) == 1 else numbers[1]
            step = numbers[2] if len(numbers) == 3 else 1
            return [first, stop, step, dtype]

        def more(frame: Frame, state: list) -> Value:
            at, stop, step, _ = state
            if type(step) is int:
                return _less(at, stop) if step > 0 else _greater(at, stop)
            return np.where(step > 0, _less(at, stop), _greater(at, stop))

        def turn(frame: Frame, state: list) -> None:
            at, _, step, dtype = state
            target(frame, cast(at, dtype))
            state[0] = _add(at, step)

        return self._loop(node, start, more, body, turn)

    def _for_each(self, node: ast.For) -> Step:
        items = self._items(node.iter)
        target, body = self._target(node.target), self.body(node.body)

        def start(frame: Frame) -> list:
            return [0, *items(frame)]

        def more(frame: Frame, state: list) -> Value:
            return _less(state[0], state[1])

        def turn(frame: Frame, state: list) -> None:
            target(frame, state[2](frame, state[0]))
            state[0] += 1

        return self._loop(node, start, more, body, turn)

    def _items(self, node: ast.expr) -> Callable[[Frame], tuple[Value, Callable]]:
        """How many items a loop takes from an expression, and a function that gets one."""
        callee = self.known(node.func) if isinstance(node, ast.Call) else None
        if callee in (enumerate, zip) and node.args and not node.keywords:
            several = [
                self._items(a) for a in (node.args[:1] if callee is enumerate else node.args)
            ]
            first = self.translate(node.args[1]) if callee is enumerate and node.args[1:] else None

            def together(frame: Frame) -> tuple[Value, Callable]:
                lengths, getters = zip(*(one(frame) for one in several), strict=True)
                number = first(frame) if first else 0

                def one(frame: Frame, i: int) -> object:
                    parts = tuple(get(frame, i) for get in getters)
                    return (_add(number, i), *parts) if callee is enumerate else parts

                return reduce(np.minimum, lengths), one

            return together
        things, place = self.translate(node), self.program.machine.add_place(self.source.site(node))

        def alone(frame: Frame) -> tuple[Value, Callable]:
            found = things(frame)
            if isinstance(found, tuple):
                return len(found), lambda frame, i: found[i]
            if not isinstance(found, Array):
                what = "a loop over anything but range(...), a tuple or an array"
                raise self.source.unknown(node, what)
            get = load if found.ndim == 1 else partial_view
            return found.shape[0], lambda frame, i: get(frame, found, (i,), place)

        return alone

    def _loop(
        self, node: ast.stmt, start: Callable, more: Callable, body: Step, turn: Callable | None
    ) -> Step:
        """Loops until no lane needs another turn; lanes that are done wait for the others."""
        place = self.program.machine.add_place(self.source.site(node))
        otherwise = self.body(node.orelse) if node.orelse else None

        def run(frame: Frame) -> None:
            outer, gang, machine = frame.lanes, frame.gang, frame.gang.machine
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
                machine.turn(place)
                if turn:
                    turn(frame, state)
                frame.continued = outer.nobody
                body(frame)
                if frame.continued.count:
                    frame.lanes = outer.join(frame.lanes, frame.continued)
            frame.lanes, broken = outer.join(frame.lanes, done), frame.broken
            frame.broken, frame.continued = saved
            gang.way = way
            if otherwise and frame.lanes.count:
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


def _python_int(value: Value) -> Value:
    return int(value) if isinstance(value, np.integer) else value
