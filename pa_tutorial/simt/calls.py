"""Calls in a kernel: cuda.…, math.…, casts, device functions, arrays, twins."""

import ast
from inspect import signature
from types import FunctionType

import numpy as np

from pa_tutorial.simt.arithmetic import MATH, Value, cast
from pa_tutorial.simt.expressions import Expressions, Run
from pa_tutorial.simt.intrinsics import ARRAYS, FUNCTIONS
from pa_tutorial.simt.known import UNKNOWN
from pa_tutorial.simt.lanes import Frame
from pa_tutorial.simt.memory import Array
from pa_tutorial.simt.names import cast_target, cuda_name, plain_function
from pa_tutorial.simt.trace import NO_TURN
from pa_tutorial.simt.twins import TWINS, LaneAccess


class Calls(Expressions):
    """Translates the calls of one function."""

    def _on_call(self, node: ast.Call) -> Run:
        callee = self.known(node.func)
        if callee is UNKNOWN:
            text = ast.unparse(node.func)
            raise self.source.unsupported(node, f"{text}(...) is not supported by the simulator")
        name = cuda_name(callee)
        if name in ARRAYS:
            return self.array(node, name, "")
        if plain_function(callee) is not None:
            return self._call_device_function(node, plain_function(callee))
        if node.keywords:
            raise self.source.unsupported(node, "arguments by name are for device functions only")
        arguments = [self.translate(a) for a in node.args]
        if name in FUNCTIONS:
            place = self.program.machine.add_place(self.source.site(node))
            function = FUNCTIONS[name]
            self.program.called.add(name)
            return lambda frame: function(frame, place, *[a(frame) for a in arguments])
        if _hashable(callee):
            if callee in MATH:
                function = MATH[callee]
                self._must_take(node, function)
                return lambda frame: function(*[a(frame) for a in arguments])
            if callee in TWINS:
                place = self.program.machine.add_place(self.source.site(node))
                twin = TWINS[callee]
                return lambda frame: twin(LaneAccess(frame, place), *[a(frame) for a in arguments])
            if callee is divmod and len(arguments) == 2:
                return self._divmod(node, *arguments)
            if callee is len and len(arguments) == 1:
                (array,) = arguments
                return lambda frame: _length(array(frame))
        dtype = cast_target(callee)
        if dtype is not None and len(arguments) == 1:
            (value,) = arguments
            return lambda frame: cast(value(frame), dtype)
        raise self.source.unsupported(node, _why_not_callable(ast.unparse(node.func), callee))

    def _divmod(self, node: ast.Call, left: Run, right: Run) -> Run:
        floor, rest = (self.applied(node, kind) for kind in (ast.FloorDiv, ast.Mod))

        def run(frame: Frame) -> tuple[Value, Value]:
            a, b = left(frame), right(frame)
            return floor(frame, a, b), rest(frame, a, b)

        return run

    def _must_take(self, node: ast.Call, function: object) -> None:
        """Numba knows Python's functions with fewer arguments than Python does."""
        try:
            signature(function).bind(*node.args)
        except TypeError:
            raise self.source.unsupported(
                node, f"{ast.unparse(node)}: not with {len(node.args)} arguments"
            ) from None

    def _call_device_function(self, node: ast.Call, function: FunctionType) -> Run:
        call = self.program.device_function(function)
        names = [*call.parameters]
        given = dict(zip(names, node.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in node.keywords}
        if len(node.args) > len(names) or set(given) != set(names):
            raise self.source.unsupported(
                node, f"{function.__name__} takes the arguments {', '.join(names)}"
            )
        arguments = {name: self.translate(value) for name, value in given.items()}
        step = self.program.machine.add_place(self.source.site(node)), NO_TURN

        def run(frame: Frame) -> Value:
            values = {name: a(frame) for name, a in arguments.items()}
            gang, way = frame.gang, frame.gang.way
            gang.way = (*way, step)
            result = call(frame, values)
            gang.way = way
            return result

        return run

    def array(self, node: ast.Call, kind: str, name: str) -> Run:
        """cuda.shared.array and cuda.local.array: their shape is known before the kernel runs."""
        given = dict(zip(("shape", "dtype", "alignment"), node.args, strict=False))
        given |= {keyword.arg: keyword.value for keyword in node.keywords}
        values = {key: self._array_argument(node, key, value) for key, value in given.items()}
        if not {"shape", "dtype"} <= set(values) <= {"shape", "dtype", "alignment"}:
            raise self.source.unsupported(node, "an array takes shape, dtype and maybe alignment")
        shape, dtype = values["shape"], values["dtype"]
        dtype = _dtype_by_name(dtype) if isinstance(dtype, str) else cast_target(dtype)
        shape = shape if isinstance(shape, tuple) else (shape,)
        if dtype is None or not all(isinstance(n, int | np.integer) and n >= 0 for n in shape):
            raise self.source.unsupported(node, "an array takes whole numbers and a type of number")
        shape = tuple(int(n) for n in shape)
        place = self.program.machine.add_place(self.source.site(node))
        name = name or kind
        if kind == "shared.array":
            alignment = max(values.get("alignment") or 1, dtype.itemsize)
            try:
                spec = self.program.machine.reserve_shared(shape, dtype, alignment, name)
            except ValueError as error:
                raise self.source.unsupported(node, str(error)) from None
            return lambda f: f.gang.block.shared_array(place, spec)
        if 0 in shape:
            raise self.source.unsupported(node, "a local array cannot be empty")
        return lambda f: f.gang.local_array(place, f.lanes, shape, dtype, name)

    def _array_argument(self, node: ast.Call, key: str, value: ast.expr) -> object:
        found = self.known(value)
        if found is UNKNOWN and isinstance(value, ast.Name):
            found = self.constants.get(value.id, UNKNOWN)
        if found is UNKNOWN:
            raise self.source.unsupported(
                node,
                f"the {key} of an array must be a number, or a name from outside of the kernel: "
                f"Numba does not take {ast.unparse(value)}",
            )
        return found


def _hashable(thing: object) -> bool:
    return type(thing).__hash__ is not None


def _length(thing: object) -> object:
    if isinstance(thing, Array):
        return thing.shape[0]
    if not isinstance(thing, tuple):
        raise TypeError(f"{thing} has no len")
    return len(thing)


def _dtype_by_name(name: str) -> np.dtype | None:
    try:
        return np.dtype(name)
    except TypeError:
        return None


def _why_not_callable(text: str, callee: object) -> str:
    if isinstance(callee, FunctionType):
        return (
            f"{text} is a plain Python function, which a kernel cannot call; one of your own can "
            "have @cuda.jit(device=True) above it"
        )
    return f"{text} is not supported by the simulator"
