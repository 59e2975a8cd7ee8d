"""Which operations a kernel does in float64: launch(trace=0, float64=True) puts them in the trace.

An operation is in float64 if it takes one or gives one: arithmetic, a comparison, min or max, a
function of math, fma, a conversion that the source writes, such as float32(x). Each counts once;
that its operands are converted first belongs to it. What is known before the kernel runs is folded
and doesn't count: float32(0.5). To load, store, pass or shuffle a float64 is no operation: 8 bytes
are 8 bytes.
"""

import ast
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from simt.arithmetic import COMPLEX128, FLOAT64, MATH, OPERATORS, dtype_of
from simt.known import Known
from simt.lanes import Frame
from simt.names import cast_target, cuda_name

FUNCTIONS = {*MATH, *(functions[0] for functions in OPERATORS.values()), pow, divmod}
OF_CUDA = "fma", "cbrt"
NUMBER = bool | int | float | complex | np.generic

Run = Callable[..., object]


def noting(function: Known, node: ast.AST, run: Run) -> Run:
    """What computes a node, noting the type it gives and, if it is an operation in float64, that.

    run  run(frame, *values) -> the value
    """
    types = function.types_given
    parts = operands(function, node)
    is_operation = not all(is_fixed(function, part) for part in parts)
    place = function.program.machine.add_place(function.source.site(node)) if is_operation else None

    def noted(frame: Frame, *values: object) -> object:
        value = run(frame, *values)
        types[node] = dtype_of(value) if isinstance(value, NUMBER | np.ndarray) else None
        recorder = frame.gang.block.recorder
        if is_operation and recorder and in_float64(node, [*map(types.get, (node, *parts))]):
            recorder.event(frame, place, "float64")
        return value

    return noted


def operands(function: Known, node: ast.AST) -> list[ast.expr]:
    """The operands of an operation; none if a node isn't one."""
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.AugAssign(target=target, value=value):
            return [target, value]
        case ast.UnaryOp(operand=operand):
            return [operand]
        case ast.Compare(left=left, comparators=others):
            return [left, *others]
        case ast.Call(func=callee, args=arguments) if computes(function.constant(callee)):
            return arguments
    return []


def computes(callee: object) -> bool:
    """Whether a call of it is an operation, and not an access, a shuffle or a function's call."""
    is_known = type(callee).__hash__ is not None and callee in FUNCTIONS
    return is_known or cast_target(callee) is not None or cuda_name(callee) in OF_CUDA


def is_fixed(function: Known, node: ast.expr) -> bool:
    """Whether its value is known before the kernel runs."""
    if parts := operands(function, node):
        return all(is_fixed(function, part) for part in parts)
    return isinstance(function.known(node), NUMBER)


def in_float64(node: ast.AST, types: list[np.dtype | None]) -> bool:
    """types: of its value, then of its operands. An int64 and a uint64 are compared in float64."""
    known = [one for one in types if one is not None]  # None == FLOAT64: to NumPy it's the default
    if isinstance(node, ast.Compare):
        known += [np.promote_types(*pair) for pair in pairwise(known[1:])]
    return FLOAT64 in known or COMPLEX128 in known
