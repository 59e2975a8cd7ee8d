"""What is known before a kernel runs: constants, globals, variables of the enclosing function.

They are folded in when the kernel is translated, as C++ templates and Numba do it.
"""

import ast
import builtins
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import FunctionType, MappingProxyType
from typing import NamedTuple

import numpy as np

from simt.intrinsics import REGISTERS, SPECIAL
from simt.names import CUDA_MODULES, cuda_name, function_behind, with_halves
from simt.source import Source

UNKNOWN = object()  # not known before the kernel runs
NOTHING: Mapping[str, object] = MappingProxyType({})
LITERAL = ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop


class Captured(NamedTuple):
    """A variable of the kernel, in a function that it defines inside."""

    constant: object  # what the kernel knows of it before it runs, or UNKNOWN


class Known:
    """Finds what the names and constants of one function mean.

    program      adds places and translates the functions that this one calls
    callee       what cuda.jit made of the function, or the function itself
    functions    parameters that are functions, which are known before the kernel runs too
    kept         copies of global arrays that an earlier launch compiled in, by name
    arrays       the same, of this launch
    compiled_in  all that was found outside the function, by name
    calls        the device functions that it calls, translated
    inner        the functions that are defined inside it
    dtypes       of its arguments that are arrays, as far as they are known
    types_given  node -> the type that it gave last; None unless operations in float64 are traced
    """

    def __init__(
        self,
        program: object,
        callee: Callable,
        source: Source,
        functions: Mapping[str, object] = NOTHING,
        kept: Mapping[str, np.ndarray] = NOTHING,
    ) -> None:
        self.constants = _constants(source.tree)
        self.program, self.callee, self.source = program, callee, source
        self.kept, self.arrays, self.compiled_in = kept, {}, {}
        self.calls: list[object] = []
        self.types_given: dict | None = {} if program.machine.float64 else None
        self.function = function = function_behind(callee)
        closure = function.__closure__ or ()
        cells = zip(function.__code__.co_freevars, closure, strict=True)
        self.enclosed = {name: cell.cell_contents for name, cell in cells} | dict(functions)
        code = function.__code__
        self.variables = {*code.co_varnames, *code.co_cellvars} - set(functions)
        self.inner: dict[str, FunctionType] = {}
        self.dtypes = program.dtypes.get(callee, NOTHING)

    def known(self, node: ast.AST) -> object:
        """The Python object that a node refers to, or UNKNOWN.

        Whatever a translation uses is asked for here, so `compiled_in` has it.
        """
        value = self.meant(node)
        if value is not UNKNOWN and isinstance(node, ast.Name | ast.Attribute):
            self.compiled_in[dotted(node)] = value
        return value

    def uses(self, as_compiled: bool) -> dict[str, object]:
        """All that was found outside the function, by name.

        as_compiled  of a global host array, the copy that was compiled in, not what it is now
        """
        copies = self.arrays if as_compiled else {}
        return {name: copies.get(name, value) for name, value in self.compiled_in.items()}

    def meant(self, node: ast.AST) -> object:
        """Like `known`, for what isn't compiled in itself: the module of which a member is used."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name not in self.variables:
                return self._outer(node, name)
            case ast.Attribute(value=base, attr=attr):
                owner = self.meant(base)
                if owner is UNKNOWN or cuda_name(owner) in REGISTERS:
                    return UNKNOWN
                return self._member(node, owner, attr)
            case ast.Tuple(elts=parts):
                values = [self.known(part) for part in parts]
                return UNKNOWN if any(v is UNKNOWN for v in values) else tuple(values)
            case ast.BinOp() | ast.UnaryOp() if all(isinstance(n, LITERAL) for n in ast.walk(node)):
                return _folded(node)
        return UNKNOWN

    def constant(self, node: ast.expr) -> object:
        """Like `known`, but also looks into the kernel's variables that are assigned once."""
        match node:
            case ast.Name(id=name) if isinstance(one := self.enclosed.get(name), Captured):
                return one.constant
            case ast.Name(id=name) if _ends_before(self.constants.get(name), node):
                return self.constant(self.constants[name])
            case ast.Tuple(elts=parts):
                values = [self.constant(part) for part in parts]
                return UNKNOWN if any(v is UNKNOWN for v in values) else tuple(values)
            case ast.Subscript(value=value, slice=ast.Constant(value=int() as index)):
                parts = self.constant(value)
                known = isinstance(parts, tuple) and -len(parts) <= index < len(parts)
                return parts[index] if known else UNKNOWN
            case ast.Attribute(value=ast.Name(id=name), attr="dtype") if name in self.dtypes:
                return self.dtypes[name]
            case ast.Attribute(value=ast.Attribute(attr="dtype") as owner, attr="type"):
                dtype = self.constant(owner)
                return dtype.type if isinstance(dtype, np.dtype) else UNKNOWN
        return self.known(node)

    def _outer(self, node: ast.AST, name: str) -> object:
        for place in (self.enclosed, self.function.__globals__, vars(builtins)):
            if name in place:
                return UNKNOWN if isinstance(place[name], Captured) else place[name]
        raise self.source.unsupported(node, f"{name} is not defined")

    def _member(self, node: ast.AST, owner: object, attr: str) -> object:
        if attr == "fp16":
            with_halves(owner)
        found = getattr(owner, attr, UNKNOWN)
        if found is None and getattr(owner, "__name__", None) in CUDA_MODULES:
            if attr in SPECIAL:  # numba_cuda_mlir has None for cuda.laneid
                return UNKNOWN
            raise self.source.unsupported(node, f"{owner.__name__} has no {attr}")
        if found is not UNKNOWN:
            return found
        raise self.source.unknown(node)


def dotted(node: ast.AST) -> str:
    """The text of a name, or of module.name; of others, whatever is before the dot."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=base, attr=attr):
            return f"{dotted(base)}.{attr}"
    return ast.unparse(node)


@lru_cache(maxsize=512)  # a kernel is launched often, and its text doesn't change
def _constants(tree: ast.FunctionDef) -> dict[str, ast.expr]:
    """Variables that are assigned once, and what is assigned to them.

    To Numba, N = 32 in a kernel is a constant, which can be the shape of an array.
    """
    constants: dict[str, ast.expr] = {}
    assignments: dict[str, list[ast.AST]] = {}
    parameters = {argument.arg for argument in tree.args.args}
    nodes = own_nodes(tree)
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            assignments.setdefault(node.id, []).append(node)
    for node in nodes:
        if isinstance(node, ast.Assign):
            (target, *more_targets) = node.targets
            once = isinstance(target, ast.Name) and len(assignments[target.id]) == 1
            if once and not more_targets and target.id not in parameters:
                constants[target.id] = node.value
    return constants


def own_nodes(tree: ast.AST) -> list[ast.AST]:
    """All nodes, except in functions that are defined inside."""
    parts = [part for part in ast.iter_child_nodes(tree) if not isinstance(part, ast.FunctionDef)]
    return [tree, *(node for part in parts for node in own_nodes(part))]


def _ends_before(value: ast.expr | None, use: ast.expr) -> bool:
    """Is a variable assigned before its use? (If so, the search for its value ends.)"""
    return value is not None and (
        (value.end_lineno, value.end_col_offset) <= (use.lineno, use.col_offset)
    )


def _folded(node: ast.BinOp | ast.UnaryOp) -> object:
    """Literals only, computed before the kernel runs, as Python does: -2 * 16 * 16."""
    code = compile(ast.fix_missing_locations(ast.Expression(node)), "", "eval")
    try:
        return eval(code, {"__builtins__": {}})
    except (ArithmeticError, TypeError):
        return UNKNOWN
