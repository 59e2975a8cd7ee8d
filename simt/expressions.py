"""Expressions of a kernel, translated once into Python functions of a frame.

`translate(node)` returns a function that computes the node's value for all active lanes. What is
known before the kernel runs (closure variables, globals, constants) is folded in.
"""

import ast
from collections.abc import Callable
from enum import IntEnum
from functools import reduce

import numpy as np

from simt import arithmetic, records
from simt.access import load
from simt.arithmetic import Misuse, Value, dtype_of, plain
from simt.compiled_in import is_on_device
from simt.device_array import numbers_of
from simt.float64 import noting
from simt.intrinsics import REGISTERS, SPECIAL, position
from simt.kernel_arguments import arrays_of, constant_array
from simt.known import UNKNOWN, Captured, Known
from simt.lanes import NUMBERS, Frame, merged, same_kind
from simt.memory import Array
from simt.names import CUDA_MODULES, cast_target, cuda_name, plain_function
from simt.source import Unsupported
from simt.tuples import is_tuple, like
from simt.views import partial_view

Run = Callable[[Frame], object]


class Expressions(Known):
    """Translates the expressions of one function."""

    def translate(self, node: ast.expr) -> Run:
        """The function that computes a node: _on_binop for an ast.BinOp, and so on."""
        method = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.source.unknown_kind(node, f"such as {ast.unparse(node)}")
        run = method(node)
        return run if self.types_given is None else noting(self, node, run)

    def noted(self, node: ast.AugAssign, run: Callable[..., object]) -> Callable[..., object]:
        """The same for the operation of a statement."""
        return run if self.types_given is None else noting(self, node, run)

    def _on_constant(self, node: ast.Constant) -> Run:
        return self._fixed(node, node.value)

    def _fixed(self, node: ast.AST, value: object, name: str = "") -> Run:
        """A value that never changes. Its name in messages is the node's text, unless given."""
        if isinstance(value, IntEnum):
            value = int(value)
        if isinstance(value, bool | int | float | complex | np.number | np.bool_):
            try:
                number = plain(value)
            except OverflowError as error:
                raise self.source.unsupported(node, str(error)) from None
            return lambda frame: number
        if value is None:
            return lambda frame: None
        text = name or ast.unparse(node)
        if isinstance(value, tuple):
            parts = [self._fixed(node, part, f"{text}[{i}]") for i, part in enumerate(value)]
            return lambda frame: like(value, [part(frame) for part in parts])
        if cuda_name(value) in SPECIAL:
            why = f"Numba knows {text} only by its whole name, cuda.{cuda_name(value)}"
            raise self.source.unsupported(node, why)
        if cuda_name(value) in REGISTERS:
            raise self.source.unsupported(node, f"{text} has parts: {text}.x, {text}.y, {text}.z")
        if isinstance(numbers_of(value), np.ndarray):
            return self._global_array(node, text, value)
        is_type = not isinstance(value, str) and cast_target(value) is not None
        if plain_function(value) or isinstance(value, np.dtype) or is_type:
            return lambda frame: value  # only calls and arrays can use it
        if callable(value):
            raise self.source.unsupported(node, f"{text} isn't called: write {text}(...)")
        raise self.source.unknown(node, f"{text}, a {type(value).__name__}, as a value")

    def _global_array(self, node: ast.AST, name: str, value: object) -> Run:
        """A device array is compiled in as an address; of a host array, a copy of what it held."""
        try:
            arrays_of({name: value})
        except TypeError as error:
            raise self.source.unsupported(node, str(error)) from None
        program, key = self.program, (self.callee, name)
        if is_on_device(value):
            program.device_arrays[key] = name, numbers_of(value)
            return lambda frame: program.on_device[key]
        copy = self.arrays[name] = self.kept[name] if name in self.kept else value.copy()
        array = constant_array(program.machine, name, copy)
        return lambda frame: array

    def _on_name(self, node: ast.Name) -> Run:
        name = node.id
        if name not in self.variables and not isinstance(self.enclosed.get(name), Captured):
            return self._fixed(node, self.known(node))
        if name in self.inner:
            raise self.source.unsupported(node, f"{name}, a function inside, can only be called")
        place = self.program.machine.add_place(self.source.site(node))

        def read(frame: Frame) -> object:
            variable = frame.variables.get(name)
            if variable is None:
                return _unassigned(frame, name, place)
            if variable.lanes is frame.lanes or variable.lanes.covers(frame.lanes):
                return variable.value
            if not variable.holders.covers(frame.lanes):
                return _unassigned(frame, name, place)
            return variable.read(frame.lanes)

        return _from_caller(read) if name not in self.variables else read

    def _register(self, node: ast.Attribute, register: str) -> Run:
        axis = node.attr
        if axis not in ("x", "y", "z"):
            raise self.source.unsupported(node, f"cuda.{register} has x, y and z, not {axis}")
        return lambda frame: position(frame, register, axis)

    def _on_attribute(self, node: ast.Attribute) -> Run:
        owner = self.meant(node.value)
        if cuda_name(owner) in REGISTERS:
            return self._register(node, cuda_name(owner))
        if owner is not UNKNOWN:
            # numba_cuda_mlir has None for cuda.laneid, so the name counts, too.
            if node.attr in SPECIAL and getattr(owner, "__name__", None) in CUDA_MODULES:
                return SPECIAL[node.attr]
            found = self.known(node)
            if cuda_name(found) in SPECIAL:
                return SPECIAL[cuda_name(found)]
            return self._fixed(node, found)
        base, attr = self.translate(node.value), node.attr
        place = self.program.machine.add_place(self.source.site(node))

        def read(frame: Frame) -> object:
            thing = base(frame)
            if attr in getattr(thing, "_fields", ()):  # of a named tuple
                return getattr(thing, attr)
            if records.is_field(thing, attr):
                return records.read(frame, thing, (attr,), place)
            if attr in ("real", "imag") and isinstance(thing, NUMBERS):
                return arithmetic.part_of(thing, attr)
            if attr not in ("shape", "size", "ndim", "dtype"):
                raise self.source.unknown(node, f"the attribute .{attr}")
            if not isinstance(thing, Array):
                raise self.source.unsupported(node, f"only an array has .{attr}")
            return getattr(thing, attr)

        return read

    def _on_tuple(self, node: ast.Tuple) -> Run:
        parts = [self.translate(part) for part in node.elts]
        return lambda frame: tuple([part(frame) for part in parts])

    def _on_binop(self, node: ast.BinOp) -> Run:
        if self.known(node) is not UNKNOWN:
            return self._fixed(node, self.known(node))
        left, right = self.translate(node.left), self.translate(node.right)
        return self.operation(node, type(node.op), left, right)

    def operation(self, node: ast.AST, kind: type, left: Run, right: Run) -> Run:
        """left <kind> right, where kind is an operator of the syntax tree."""
        if kind not in arithmetic.OPERATORS:
            raise self.source.unknown(node, f"the operator {kind.__name__}")
        if kind not in arithmetic.DIVISIONS and kind is not ast.Div:
            apply = arithmetic.binary(kind)
            return lambda frame: apply(left(frame), right(frame))
        divide = self.applied(node, kind)
        return lambda frame: divide(frame, left(frame), right(frame))

    def applied(self, node: ast.AST, kind: type) -> Callable[[Frame, Value, Value], Value]:
        """An operator on two values; only floats may be divided by zero."""
        apply = arithmetic.binary(kind)
        if kind not in arithmetic.DIVISIONS and kind is not ast.Div:
            return lambda frame, a, b: apply(a, b)
        what_fails = "a complex number" if kind is ast.Div else "an integer"

        def divide(frame: Frame, a: Value, b: Value) -> Value:
            if type(b) is int and b:
                return apply(a, b)
            kinds = dtype_of(a).kind, dtype_of(b).kind
            if "c" in kinds if kind is ast.Div else "f" not in kinds:
                zero = frame.lanes.where(arithmetic.logical_not(b))
                if zero.count:
                    who = frame.gang.name_of(zero.numbers[0])
                    where = f"line {node.lineno} of {self.source.name}"
                    what = f"{who} divides {what_fails} by zero in {where}"
                    code = self.source.line(node.lineno)
                    raise frame.gang.error(ZeroDivisionError(f"{what}: {code}"))
            return apply(a, b)

        return divide

    def _on_unaryop(self, node: ast.UnaryOp) -> Run:
        if self.known(node) is not UNKNOWN:
            return self._fixed(node, self.known(node))
        operand = self.translate(node.operand)
        apply = {
            ast.USub: arithmetic.negative,
            ast.UAdd: arithmetic.widened,
            ast.Invert: arithmetic.invert,
            ast.Not: arithmetic.logical_not,
        }[type(node.op)]
        return lambda frame: apply(operand(frame))

    def _on_compare(self, node: ast.Compare) -> Run:
        """a < b, or a < b < c, where only the lanes with a < b compute c."""
        others = [
            listed(other) if isinstance(op, ast.In | ast.NotIn) else other
            for op, other in zip(node.ops, node.comparators, strict=True)
        ]
        first, *rest = (self.translate(n) for n in (node.left, *others))
        for op in node.ops:
            if type(op) not in arithmetic.OPERATORS and type(op) not in IDENTITY:
                raise self.source.unknown(node)
        compare = [IDENTITY.get(type(op)) or arithmetic.binary(type(op)) for op in node.ops]
        if len(compare) == 1:
            (apply,), (other,) = compare, rest
            return lambda frame: apply(first(frame), other(frame))

        def chain(frame: Frame) -> object:
            outer, left, result = frame.lanes, first(frame), True
            try:
                for apply, other in zip(compare, rest, strict=True):
                    right = other(frame)
                    result = chosen(frame, outer, apply(left, right), result)
                    frame.lanes = frame.lanes.where(result)
                    if not frame.lanes.count:
                        break
                    left = right
                return result
            finally:
                frame.lanes = outer

        return chain

    def _on_boolop(self, node: ast.BoolOp) -> Run:
        """`and` and `or`: only the lanes that need the right side compute it."""
        parts = [self.translate(part) for part in node.values]
        go_on_if = isinstance(node.op, ast.And)

        def run(frame: Frame) -> object:
            outer = frame.lanes
            result = parts[0](frame)
            try:
                for part in parts[1:]:
                    more = arithmetic.truth(result)
                    more = more if go_on_if else arithmetic.logical_not(more)
                    frame.lanes = frame.lanes.where(more)
                    if not frame.lanes.count:
                        break
                    result = chosen(frame, outer, part(frame), result)
                return result
            finally:
                frame.lanes = outer

        return run

    def _on_ifexp(self, node: ast.IfExp) -> Run:
        test, body, other = (self.translate(n) for n in (node.test, node.body, node.orelse))

        def run(frame: Frame) -> object:
            outer = frame.lanes
            yes = outer.where(arithmetic.truth(test(frame)))
            if yes is outer:
                return body(frame)
            try:
                frame.lanes = outer.minus(yes)
                otherwise = other(frame)
                frame.lanes = yes
                return chosen(frame, outer, body(frame), otherwise) if yes.count else otherwise
            finally:
                frame.lanes = outer

        return run

    def _on_subscript(self, node: ast.Subscript) -> Run:
        base, index = self.translate(node.value), self.index(node.slice)
        place = self.program.machine.add_place(self.source.site(node))
        slices, constant_slice = has_slices(node.slice), self._constant_slice(node.slice)

        def read(frame: Frame) -> object:
            thing = base(frame)
            indices = index(frame, thing)
            if is_tuple(thing):
                if constant_slice:
                    return thing[constant_slice]
                if slices:
                    what = "of a tuple, only a slice between constants can be taken"
                    raise self.source.unsupported(node, what)
                try:
                    return _item_of_tuple(frame, thing, *indices)
                except IndexError as error:
                    what = f"{error}{self.source.where(node)}"
                    raise frame.gang.error(IndexError(what)) from None
            if not isinstance(thing, Array):
                raise self.source.unsupported(node, f"{ast.unparse(node.value)} is not an array")
            if thing.dtype.names:
                return records.read(frame, thing, indices, place)
            if len(indices) > thing.ndim:
                raise self.too_many(node, thing, indices)
            if len(indices) == thing.ndim and not slices:
                return load(frame, thing, indices, place)
            return partial_view(frame, thing, indices, place)

        return read

    def _constant_slice(self, node: ast.expr) -> slice | None:
        """A slice between constants, the only kind that a tuple has."""
        if not isinstance(node, ast.Slice):
            return None
        ends = [n and self.constant(n) for n in (node.lower, node.upper, node.step)]
        return slice(*ends) if all(end is None or type(end) is int for end in ends) else None

    def too_many(self, node: ast.AST, array: Array, indices: tuple) -> Unsupported:
        return self.source.unsupported(
            node, f"{array.name} has {array.ndim} dimensions, the index has {len(indices)}"
        )

    def index(self, node: ast.expr) -> Callable[[Frame, object], tuple]:
        """What is in the brackets after an array, as a tuple of numbers and slices.

        A negative constant counts from the end of its axis. A text is the name of a field.
        """
        if isinstance(name := self.constant(node), str):
            return lambda frame, array: records.by_name(array, name)
        nodes = in_brackets(node)
        parts = [self._slice(n) if isinstance(n, ast.Slice) else self.translate(n) for n in nodes]
        constants = [self.constant(n) for n in nodes]
        ends = [i for i, n in enumerate(constants) if type(n) is int and n < 0]
        if ends:
            return lambda frame, array: _from_the_ends([part(frame) for part in parts], ends, array)
        if len(parts) == 1 and not isinstance(nodes[0], ast.Slice):
            (part,) = parts

            def one(frame: Frame, array: object) -> tuple:
                value = part(frame)
                return value if is_tuple(value) else (value,)

            return one
        return lambda frame, array: tuple([part(frame) for part in parts])

    def _slice(self, node: ast.Slice) -> Run:
        step = self.constant(node.step) if node.step else None
        if step is UNKNOWN or step == 0:
            raise self.source.unknown(node, "a slice whose step isn't a constant")
        none: Run = lambda frame: None  # noqa: E731
        lower, upper = (self.translate(n) if n else none for n in (node.lower, node.upper))
        return lambda frame: slice(lower(frame), upper(frame), step)


def _is(a: object, b: object) -> Value:
    """a is b, for None, for truth values and for arrays."""
    if a is None or b is None:
        return a is b
    if isinstance(a, Array) and isinstance(b, Array):
        if a.memory is not b.memory or a.strides != b.strides:
            return False
        same = map(np.equal, (a.start, *a.shape), (b.start, *b.shape))
        return plain(reduce(np.logical_and, same))
    if dtype_of(a) != arithmetic.BOOL or dtype_of(b) != arithmetic.BOOL:
        raise Misuse("the simulator knows `is` for None, truth values and arrays")
    return _equal(a, b)


def _in(value: Value, values: object) -> Value:
    """value in values, a tuple"""
    if not is_tuple(values):
        raise Misuse("the simulator knows `in` for tuples")
    found: Value = False
    for other in values:
        found = np.logical_or(found, _equal(value, other))
    return plain(found)


def _not(test: Callable) -> Callable:
    return lambda a, b: arithmetic.logical_not(test(a, b))


_equal = arithmetic.binary(ast.Eq)
IDENTITY: dict[type, Callable] = {
    ast.Is: _is,
    ast.IsNot: _not(_is),
    ast.In: _in,
    ast.NotIn: _not(_in),
}


def listed(node: ast.expr) -> ast.expr:
    """A list after `in`: Python compiles a tuple there, so a kernel may have it."""
    as_tuple = ast.Tuple(node.elts, ast.Load()) if isinstance(node, ast.List) else node
    return ast.copy_location(as_tuple, node)


def in_brackets(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def has_slices(node: ast.expr) -> bool:
    """Are there slices in the brackets? The text shows it, because no variable holds a slice."""
    return any(isinstance(part, ast.Slice) for part in in_brackets(node))


def chosen(frame: Frame, outer: object, new: object, old: object) -> object:
    """`new` in the active lanes, `old` in the other lanes of `outer`."""
    return new if frame.lanes is outer else merged(old, new, frame.lanes)


def _from_the_ends(indices: list, ends: list[int], array: object) -> tuple:
    """-1 becomes the last item of its axis. An index that is out of bounds is left as it is."""
    if isinstance(array, Array):
        for axis in (axis for axis in ends if axis < array.ndim):
            from_start = indices[axis] + array.shape[axis]
            if np.all(np.greater_equal(from_start, 0)):
                indices[axis] = from_start
    return tuple(indices)


def _item_of_tuple(frame: Frame, values: tuple, index: Value) -> object:
    """values[index], where the index may differ from lane to lane."""
    if dtype_of(index).kind not in "iu":
        raise Misuse(f"an index of a tuple must be an integer, not {dtype_of(index)}")
    if not isinstance(index, np.ndarray):
        return values[int(index)]
    if not all(same_kind(value, values[0]) for value in values):
        raise Misuse("an index that differs from lane to lane needs a tuple of one type of numbers")
    wrong = frame.lanes.where((index < -len(values)) | (index >= len(values)))
    if wrong.count:
        raise IndexError(f"index {index[wrong.numbers[0]]} of a tuple of {len(values)}")
    columns = np.stack([np.broadcast_to(value, index.shape) for value in values])
    return columns[np.where(frame.lanes.flags, index, 0), np.arange(len(index))]


def _from_caller(read: Run) -> Run:
    """Reads a variable that a function defined inside has from around it."""

    def run(frame: Frame) -> object:
        outer, lanes = frame.caller, frame.caller.lanes
        outer.lanes = frame.lanes
        try:
            return read(outer)
        finally:
            outer.lanes = lanes

    return run


def _unassigned(frame: Frame, name: str, place: int) -> object:
    """A variable that some lanes read before assigning to it."""
    gang, variable = frame.gang, frame.variables.get(name)
    without = frame.lanes.minus(variable.holders) if variable else frame.lanes
    if gang.machine.init:
        what = f"reads the variable {name} before assigning to it"
        gang.find("init", place, without.numbers[0], what)
    return variable.value if variable else 0
