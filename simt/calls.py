"""Calls in a kernel: cuda.…, math.…, casts, device functions, arrays, twins."""

import ast
import math
from collections.abc import Callable
from functools import cache, partial
from inspect import signature
from types import FunctionType

import numpy as np

from simt.arithmetic import MATH, OPERATORS, Misuse, Value, cast, divmod_type, dtype_of
from simt.expressions import Expressions, Run
from simt.intrinsics import ARRAYS, FUNCTIONS, INDEXED, SPECIAL
from simt.known import UNKNOWN
from simt.lanes import Frame
from simt.memory import Array
from simt.methods import METHODS
from simt.names import cast_target, cuda_name, function_behind, names_of, plain_function
from simt.records import item_type
from simt.signatures import Type, as_declared, declared
from simt.source import Unsupported, source_of
from simt.trace import NO_TURN
from simt.tuples import as_vector, is_tuple, vector_type
from simt.twins import TWINS, LaneAccess

OPERATOR_NODES = {functions[0]: kind for kind, functions in OPERATORS.items()} | {pow: ast.Pow}


class Calls(Expressions):
    """Translates the calls of one function.

    unused  the call that is a statement: nothing uses its result
    """

    unused: ast.expr | None = None

    def _on_call(self, node: ast.Call) -> Run:
        if isinstance(node.func, ast.Name) and node.func.id in self.inner:
            if node.keywords:
                raise self.source.unsupported(node, "Numba ignores names of arguments here")
            return self._call_device_function(node, self.inner[node.func.id])
        callee = self.constant(node.func)
        if callee is UNKNOWN:
            return self._call_method(node)
        name = cuda_name(callee)
        if name in ARRAYS:
            return self.array(node, name, "")
        if plain_function(callee) is not None:
            return self._call_device_function(node, callee)
        if node.keywords:
            raise self.source.unsupported(node, "only device functions take arguments by name")
        if callee is print:
            return self._print(node)
        if name in ("grid", "gridsize"):
            self._check_ndim(node)
        if name in FUNCTIONS:
            return self._call_cuda(node, name)
        return self._call_plain(node, callee)

    def _call_plain(self, node: ast.Call, callee: object) -> Run:
        """math.…, casts, Python's own functions, twins: of the values alone, or almost."""
        dtype = cast_target(callee) if callable(callee) else None
        vector = vector_type(callee)
        is_known = _hashable(callee) and (callee in PLAIN or callee in TWINS)
        if not is_known and dtype is None and not vector:
            raise self._unknown_call(node, callee)
        if callee is float and [str] == [type(text := self.constant(one)) for one in node.args]:
            return lambda frame: float(text)
        arguments = [self.translate(a) for a in node.args]
        if is_known:
            if callee in COMPUTED:
                function = COMPUTED[callee]
                self._must_match(node, function, 0)
                return lambda frame: function(*[a(frame) for a in arguments])
            if callee in OPERATOR_NODES and len(arguments) == 2:
                return self.operation(node, OPERATOR_NODES[callee], *arguments)
            if callee in TWINS:
                place = self.program.machine.add_place(self.source.site(node))
                twin = TWINS[callee]
                return lambda frame: twin(LaneAccess(frame, place), *[a(frame) for a in arguments])
            if callee is divmod and len(arguments) == 2:
                return self._divmod(node, *arguments)
        if dtype is not None and len(arguments) == 1:
            (value,) = arguments
            return lambda frame: cast(value(frame), dtype)
        if vector:
            return lambda frame: as_vector(vector, [a(frame) for a in arguments])
        raise self._unknown_call(node, callee)

    def _unknown_call(self, node: ast.Call, callee: object) -> Unsupported:
        text = ast.unparse(node.func)
        if isinstance(callee, np.ufunc) and getattr(math, callee.__name__, None) in MATH:
            why = f"Numba doesn't compile {text} for numbers: write math.{callee.__name__}"
            return self.source.unsupported(node, why)
        if isinstance(callee, FunctionType) and not callee.__module__.startswith("numba"):
            why = f"{text} is a plain Python function, which a kernel cannot call"
            hint = "if it is yours, put @cuda.jit(device=True) above it"
            return self.source.unsupported(node, f"{why}; {hint}")
        return self.source.unknown(node, text)

    def _call_method(self, node: ast.Call) -> Run:
        """array.view(dtype) and the like, of a value that the kernel computes."""
        is_known = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
        if not is_known or node.keywords:
            raise self.source.unknown(node)
        method = METHODS[node.func.attr]
        self._must_match(node, method, 3)
        owner = self.translate(node.func.value)
        place = self.program.machine.add_place(self.source.site(node))
        types = [cast_target(self.constant(a)) for a in node.args]
        arguments = [
            (lambda frame, dtype=dtype: dtype) if dtype is not None else self.translate(a)
            for a, dtype in zip(node.args, types, strict=True)
        ]
        return lambda frame: method(owner(frame), frame, place, *[a(frame) for a in arguments])

    def _call_cuda(self, node: ast.Call, name: str) -> Run:
        place = self.program.machine.add_place(self.source.site(node))
        function = FUNCTIONS[name]
        is_atomic, is_used = name.startswith("atomic."), node is not self.unused
        if is_atomic:
            function = _marked(function, is_used)
        self._must_match(node, function, 2)
        may_interact = is_atomic and is_used and not self._is_shared(node.args[0])
        self.program.called.add(f"used {name}" if may_interact else name)
        if name not in INDEXED:
            arguments = [self.translate(a) for a in node.args]
            return lambda frame: function(frame, place, *[a(frame) for a in arguments])
        base, index = self.translate(node.args[0]), self.index(node.args[1])
        values = [self.translate(a) for a in node.args[2:]]

        def atomic(frame: Frame) -> Value:
            array = base(frame)
            if not isinstance(array, Array):
                raise self.source.unsupported(node, f"{ast.unparse(node.args[0])} is not an array")
            return function(frame, place, array, index(frame, array), *[v(frame) for v in values])

        return atomic

    def _must_match(self, node: ast.Call, function: Callable, before: int) -> None:
        """before  how many arguments come before the kernel's own: the frame, the place"""
        if not _takes(function, before + len(node.args)):
            names = [n for n in signature(function).parameters if n != "is_used"][before:]
            why = f"{ast.unparse(node.func)} takes ({', '.join(names)})"
            raise self.source.unsupported(node, why)

    def _is_shared(self, node: ast.expr) -> bool:
        """Is it certainly a shared array of this function?"""
        made = self.constants.get(node.id) if isinstance(node, ast.Name) else None
        return isinstance(made, ast.Call) and cuda_name(self.constant(made.func)) == "shared.array"

    def _check_ndim(self, node: ast.Call) -> None:
        if any(type(n) is not int or n not in (1, 2, 3) for n in map(self.constant, node.args)):
            text = ast.unparse(node)
            why = f"{text}: a grid has 1, 2 or 3 dimensions; write the number as a constant"
            raise self.source.unsupported(node, why)

    def _print(self, node: ast.Call) -> Run:
        """One line per active lane, in the form that Numba passes to CUDA's printf."""
        self.program.called.add("print")
        texts = [self.known(a) for a in node.args]
        values = [
            None if isinstance(text, str) else self.translate(a)
            for text, a in zip(texts, node.args, strict=True)
        ]

        def run(frame: Frame) -> None:
            found = [v(frame) if v else text for v, text in zip(values, texts, strict=True)]
            for lane in frame.lanes.numbers:
                print(*(_printed(value, lane) for value in found))

        return run

    def _divmod(self, node: ast.Call, left: Run, right: Run) -> Run:
        floor, rest = (self.applied(node, kind) for kind in (ast.FloorDiv, ast.Mod))

        def run(frame: Frame) -> tuple[Value, Value]:
            a, b = left(frame), right(frame)
            dtype = divmod_type(dtype_of(a), dtype_of(b))
            a, b = cast(a, dtype), cast(b, dtype)
            return floor(frame, a, b), rest(frame, a, b)

        return run

    def _call_device_function(self, node: ast.Call, callee: Callable) -> Run:
        by_name = self._by_name(node, function_behind(callee))
        functions = self._fixed_arguments(function_behind(callee), by_name)
        call = self.program.device_function(callee, functions)
        self.calls.append(call)
        types, result = self._declared(node, callee)
        arguments = {
            name: _in_type(self.translate(value), types.get(name))
            for name, value in by_name.items()
            if name not in functions
        }
        step = self.program.machine.add_place(self.source.site(node)), NO_TURN

        def run(frame: Frame) -> Value:
            values = {name: a(frame) for name, a in arguments.items()}
            gang, way = frame.gang, frame.gang.way
            gang.way = (*way, step)
            result = call(frame, values)
            gang.way = way
            return result

        return _in_type(run, result)

    def _fixed_arguments(
        self, function: FunctionType, by_name: dict[str, ast.expr]
    ) -> dict[str, object]:
        """The arguments that are functions or types, or that may be the shape of an array."""
        source = source_of(function)
        found = {n: self.constant(v) for n, v in by_name.items() if n not in source.stored}
        return {
            name: value
            for name, value in found.items()
            if (callable(value) and cuda_name(value) not in SPECIAL)
            or (name in source.shapes and isinstance(value, int | tuple))
        }

    def _by_name(self, node: ast.Call, function: FunctionType) -> dict[str, ast.expr]:
        """Parameter -> the argument that the call passes, or the default."""
        names = names_of(function)
        defaults = zip(names[::-1], (function.__defaults__ or ())[::-1], strict=False)
        by_name = {name: ast.copy_location(ast.Constant(value), node) for name, value in defaults}
        by_name |= dict(zip(names, node.args, strict=False))
        by_name |= {keyword.arg: keyword.value for keyword in node.keywords}
        if len(node.args) > len(names) or set(by_name) != set(names):
            raise self.source.unsupported(
                node, f"{function.__name__} takes the arguments {', '.join(names)}"
            )
        return by_name

    def _declared(self, node: ast.Call, callee: Callable) -> tuple[dict[str, Type], Type]:
        """The types of the parameters and of the result, if there is a signature."""
        several, function = declared(callee), function_behind(callee)
        if len(several) > 1:
            raise self.source.unknown(node, f"{function.__name__}: it has several signatures")
        types, result = several[0] if several else ((), None)
        return dict(zip(names_of(function), types, strict=False)), result

    def array(self, node: ast.Call, kind: str, name: str) -> Run:
        """cuda.shared.array and cuda.local.array, whose shape is known before the kernel runs."""
        by_name = dict(zip(("shape", "dtype", "alignment"), node.args, strict=False))
        by_name |= {keyword.arg: keyword.value for keyword in node.keywords}
        values = {key: self._array_argument(node, key, value) for key, value in by_name.items()}
        names = {"shape", "dtype", "alignment"}
        if len(node.args) > 3 or not {"shape", "dtype"} <= set(values) <= names:
            raise self.source.unsupported(node, "an array takes shape, dtype and an alignment")
        shape, dtype = values["shape"], item_type(values["dtype"])
        if dtype is None:
            raise self.source.unknown(node, f"an array of {values['dtype']}")
        shape = shape if isinstance(shape, tuple) else (shape,)
        if not all(isinstance(n, int | np.integer) and n >= 0 for n in shape):
            raise self.source.unsupported(node, "the shape of an array must be whole numbers")
        shape = tuple(int(n) for n in shape)
        place = self.program.machine.add_place(self.source.site(node))
        name = name or kind
        if kind == "shared.array":
            own = dtype.alignment if dtype.names else dtype.itemsize
            alignment = max(values.get("alignment") or 1, own)
            if not isinstance(alignment, int | np.integer) or int(alignment).bit_count() != 1:
                raise self.source.unsupported(node, "an alignment must be a power of 2")
            try:
                spec = self.program.machine.reserve_shared(shape, dtype, alignment, name)
            except ValueError as error:
                raise self.source.unsupported(node, str(error)) from None
            return lambda f: f.gang.block.shared_array(place, spec)
        if 0 in shape:
            raise self.source.unsupported(node, "a local array cannot be empty")
        return lambda f: f.gang.local_array(place, f.lanes, shape, dtype, name)

    def _array_argument(self, node: ast.Call, key: str, value: ast.expr) -> object:
        found = self.constant(value)
        if found is not UNKNOWN:
            return found
        text = ast.unparse(value)
        sizes = value.elts if isinstance(value, ast.Tuple) else [value]
        if any(isinstance(size, ast.BinOp) for size in sizes):
            why = f"the {key} of an array must be a number or a name: Numba doesn't take {text}"
            raise self.source.unsupported(node, why)
        raise self.source.unknown(node, f"{text}, the {key} of an array, before the kernel runs")


def _in_type(run: Run, declared: Type | None) -> Run:
    return run if declared is None else lambda frame: as_declared(run(frame), declared)


@cache
def _marked(atomic: Callable, is_used: bool) -> Callable:
    """An atomic operation whose result is used, or isn't; one object for each, for `_takes`."""
    return partial(atomic, is_used=is_used)


@cache
def _takes(function: Callable, count: int) -> bool:
    """Does a function of ours take so many arguments?"""
    try:
        signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _hashable(thing: object) -> bool:
    return type(thing).__hash__ is not None


def _length(thing: object) -> object:
    if isinstance(thing, Array) and thing.ndim:
        return thing.shape[0]
    if not is_tuple(thing):
        raise Misuse(f"{thing} has no len")
    return len(thing)


def _as_tuple(thing: object) -> tuple:
    if not is_tuple(thing):
        raise Misuse(f"the simulator knows tuple(...) of a tuple, not of {thing}")
    return thing


def _printed(value: object, lane: int) -> str:
    """A value as Numba prints it: %lld, %llu, %f, or text."""
    if is_tuple(value):
        parts = [_printed(part, lane) for part in value]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    if isinstance(value, str):
        return value
    if dtype_of(value).kind == "c":
        raise Misuse("Numba doesn't print complex numbers; print .real and .imag")
    one = value[lane] if isinstance(value, np.ndarray) else value
    return f"{one:f}" if dtype_of(value).kind == "f" else str(one)


COMPUTED: dict[Callable, Callable] = {**MATH, len: _length, tuple: _as_tuple}
PLAIN = frozenset((*COMPUTED, *OPERATOR_NODES, divmod))
