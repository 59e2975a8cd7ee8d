"""Functions that a kernel defines inside: def f(x): ..., or f = lambda x: ...

As in Numba, each is inlined where it is called, so it sees the values that the variables around it
have at that moment, and it can't be passed on. Unlike in Numba, it can't call another one.
"""

import ast
from types import CellType, CodeType, FunctionType

from simt.iterables import Iterables
from simt.known import UNKNOWN, Captured
from simt.source import NESTED


class Closures(Iterables):
    """Translates the definitions of functions inside one function."""

    def define(self, name: str, node: ast.FunctionDef | ast.Lambda) -> None:
        """From now on, a call of this name runs the function that a node defines."""
        inside = [one for part in ast.iter_child_nodes(node) for one in ast.walk(part)]
        elsewhere = [other for other in self.source.nodes if _defines(other, name)]
        if len(elsewhere) > 1 or getattr(node, "decorator_list", ()):
            raise self.source.unknown(node, f"{name}, which is defined more than once or decorated")
        if any(isinstance(one, NESTED) for one in inside):
            raise self.source.unknown(node, f"a function inside {name}")
        code = next(code for code in self.function.__code__.co_consts if _is_of(code, name, node))
        cells = tuple(CellType(self._inside(name, node)) for name in code.co_freevars)
        self._require_called(name, node, code.co_freevars)
        inner = FunctionType(code, self.function.__globals__, code.co_name, None, cells)
        defaults = tuple(self.constant(default) for default in node.args.defaults)
        if any(default is UNKNOWN for default in defaults):
            raise self.source.unknown(node, f"a default of {name} that isn't a constant")
        inner.__defaults__ = defaults
        self.inner[name] = inner
        arrays = self.dtypes.keys() & {*code.co_freevars}
        self.program.dtypes[inner] = {name: self.dtypes[name] for name in arrays}

    def _require_called(self, name: str, node: ast.AST, used: tuple[str, ...]) -> None:
        """Raise Unsupported if it uses variables that aren't constants, and nothing calls it."""
        here = [ast.copy_location(ast.Name(one, ast.Load()), node) for one in used]
        changing = [one.id for one in here if self.constant(one) is UNKNOWN]
        called = [ast.unparse(n.func) for n in self.source.nodes if isinstance(n, ast.Call)]
        if changing and name not in called:
            why = (
                f"{name} uses the variable {changing[0]}, but is never called, which Numba refuses"
            )
            raise self.source.unsupported(node, why)

    def _inside(self, name: str, node: ast.AST) -> object:
        """What a variable around a function inside is there."""
        here = ast.copy_location(ast.Name(name, ast.Load()), node)
        return self.enclosed[name] if name in self.enclosed else Captured(self.constant(here))


def _defines(node: ast.AST, name: str) -> bool:
    match node:
        case ast.FunctionDef(name=found) | ast.Name(id=found, ctx=ast.Store()):
            return found == name
    return False


def _is_of(code: object, name: str, node: ast.FunctionDef | ast.Lambda) -> bool:
    """Is this constant the code of the function that a node defines?"""
    if not isinstance(code, CodeType) or code.co_firstlineno != node.lineno:
        return False
    return code.co_name == ("<lambda>" if isinstance(node, ast.Lambda) else name)
