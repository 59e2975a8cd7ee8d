"""Kernels as source text: the syntax tree of a function, and places in it.

The simulator walks the source of a kernel, so every access knows its line and its expression
from the start.
"""

import ast
import linecache
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import CodeType

from simt.tracebacks import ShortInNotebooks

# A comment line "# mark: scores" names a place to look at, whatever the statement there is.
MARK = re.compile(r"\s*# (mark: \w+)$")
# What Python compiles on its own, inside a function.
COMPREHENSIONS = ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp
CALLS_AND_ASSIGNMENTS = (
    *(ast.Call, ast.For, ast.FunctionDef),
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr),
)
NESTED = ast.Lambda, ast.FunctionDef, ast.ClassDef, *COMPREHENSIONS


# What the syntax tree has another word for than a reader of Python.
SPOKEN = {
    "list": "a list",
    "dict": "a dictionary",
    "set": "a set",
    "listcomp": "a list comprehension",
    "setcomp": "a set comprehension",
    "dictcomp": "a dictionary comprehension",
    "generatorexp": "a generator",
    "joinedstr": "an f-string",
    "namedexpr": "an assignment inside an expression",
    "importfrom": "import",
    "delete": "del",
}


class Unsupported(ShortInNotebooks, NotImplementedError):
    """The kernel uses something that the simulator, or Numba itself, doesn't know."""


@dataclass(frozen=True)
class Source:
    """The text of one function and its syntax tree; lines are numbered as in the file or cell."""

    name: str
    file: str
    lines: dict[int, str]
    tree: ast.FunctionDef

    def line(self, number: int) -> str:
        return self.lines.get(number, "").strip()

    @cached_property
    def marks(self) -> dict[ast.stmt, tuple[str, ...]]:
        """The marks above a statement; a mark refers to the next statement in the text."""
        statements = [node for node in self.nodes if isinstance(node, ast.stmt)]
        statements.sort(key=lambda node: (node.lineno, node.col_offset))
        found: dict[ast.stmt, tuple[str, ...]] = {}
        for number, line in self.lines.items():
            mark = MARK.match(line)
            after = next((node for node in statements if node.lineno > number), None)
            if mark and after:
                found[after] = (*found.get(after, ()), mark[1])
        return found

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree, from the outside inwards."""
        return list(ast.walk(self.tree))

    @cached_property
    def calls_and_assignments(self) -> list[ast.AST]:
        return [node for node in self.nodes if isinstance(node, CALLS_AND_ASSIGNMENTS)]

    @cached_property
    def stored(self) -> set[str]:
        """The variables that a statement of the function assigns."""
        names = (node for node in self.nodes if isinstance(node, ast.Name))
        return {node.id for node in names if isinstance(node.ctx, ast.Store)}

    @cached_property
    def shapes(self) -> set[str]:
        """The names that stand in a call that makes an array: each may be its shape."""
        calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        arrays = [call for call in calls if ast.unparse(call.func).endswith("array")]
        return {n.id for call in arrays for n in ast.walk(call) if isinstance(n, ast.Name)}

    def text(self, node: ast.AST) -> str:
        """The lines of an expression, joined, or the first line of a statement."""
        last = node.end_lineno if isinstance(node, ast.expr) else node.lineno
        lines = [self.lines[n].encode() for n in range(node.lineno, last + 1)]  # bytes: columns
        if last == node.end_lineno:
            lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return " ".join(line.decode().strip() for line in lines)

    def site(self, node: ast.AST) -> "Site":
        where = node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
        if where not in self._sites:
            text, code = self.text(node), self.line(node.lineno)
            self._sites[where] = Site(self.name, self.file, node.lineno, text, code, self)
        return self._sites[where]

    @cached_property
    def _sites(self) -> dict[tuple[int | None, ...], "Site"]:
        """Those that were asked for, by their place: every launch asks for all of its kernel."""
        return {}

    def given(self, name: str, line: int) -> ast.stmt | None:
        """The last statement above a line that assigns a variable; None if there is none."""
        found = [
            statement
            for statement in ast.walk(self.tree)
            if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For)
            and statement.lineno <= line
            for target in getattr(statement, "targets", None) or [statement.target]
            for node in ast.walk(target)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
        ]
        return max(found, key=lambda statement: statement.lineno, default=None)

    def unsupported(self, node: ast.AST, why: str) -> Unsupported:
        return Unsupported(why + self.where(node))

    def unknown(self, node: ast.AST, what: str = "") -> Unsupported:
        """For what the simulator doesn't know, though Numba may."""
        return self.unsupported(node, f"the simulator does not know {what or ast.unparse(node)}")

    def unknown_kind(self, node: ast.AST, where: str = "in a kernel") -> Unsupported:
        """For a kind of statement or expression, by the name that Python's users give it."""
        kind = type(node).__name__.lower()
        return self.unknown(node, f"{SPOKEN.get(kind, f'`{kind}`')} {where}")

    def where(self, node: ast.AST) -> str:
        file, line = spoken(self.file), self.line(node.lineno)
        return f"\n  {file}, line {node.lineno}, in {self.name}:\n    {line}"


@dataclass(frozen=True)
class Site:
    """A place in a kernel: the expression that reads, writes, waits or shuffles."""

    function: str
    file: str
    line: int
    text: str  # the expression: s[t + 1]
    code: str  # the whole line
    source: Source | None = field(default=None, compare=False, repr=False)


def spoken(file: str) -> str:
    """The file's name; of a notebook's cell, as IPython names it: Cell In[5]."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    shell = get_ipython()
    of_cell = shell and shell.compile.format_code_name(file)
    return " ".join(of_cell) if of_cell else file


def source_of(function: Callable) -> Source:
    """The source of a plain function. Raises Unsupported if Python cannot find it."""
    try:
        return _parsed(function.__code__, function.__code__.co_filename)
    except (OSError, SyntaxError, TypeError) as error:
        raise Unsupported(
            f"The source of {function.__name__} cannot be read: {error}. The simulator needs the "
            "text of a function defined with def, in a file or in a notebook cell."
        ) from None


@lru_cache(maxsize=512)
def _parsed(code: CodeType, file: str) -> Source:
    """The file is part of the key, because to Python equal functions of two files are equal."""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    if not lines:
        raise OSError("could not get source code")
    if "@pytest_ar" in code.co_names:  # Numba couldn't compile it, either
        raise OSError(
            "pytest has rewritten its assert; with PYTEST_DONT_REWRITE in the docstring "
            "of the file, it leaves the file as it is"
        )
    # A file whose lines have moved has another function here. A changed operator slips through.
    first = code.co_firstlineno
    tree, there = _functions("".join(lines)).get((code.co_name, first), (None, None))
    if there is None and code.co_name == "<lambda>":
        raise TypeError("it must be the only lambda that begins on its line")
    if there is None or _names_and_constants(there) != _names_and_constants(code):
        raise OSError(f"{spoken(file)} has changed since it was imported")
    numbered = {n: lines[n - 1].rstrip("\n") for n in range(first, tree.end_lineno + 1)}
    return Source(code.co_name, file, numbered, tree)


@lru_cache(maxsize=64)
def _functions(text: str) -> dict[tuple[str, int], tuple[ast.FunctionDef, CodeType]]:
    """The functions of a file by name and first line: the tree, and what Python makes of it."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as in a notebook's cell
    tree = compile(text, "", "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    module = compile(tree, "", "exec", flags, dont_inherit=True)
    codes = {(code.co_name, code.co_firstlineno): code for code in _codes(module)}
    found = {}
    lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    lines = Counter(node.lineno for node in lambdas)
    alone = [_as_def(node) for node in lambdas if lines[node.lineno] == 1]
    for node in (*ast.walk(tree), *alone):
        if isinstance(node, ast.FunctionDef):
            place = node.name, min(part.lineno for part in (node, *node.decorator_list))
            if place in codes:  # what stands under `if False:` isn't compiled
                found[place] = node, codes[place]
    return found


def _as_def(node: ast.Lambda) -> ast.FunctionDef:
    """lambda x: 2 * x as a function that returns 2 * x"""
    body = [ast.copy_location(ast.Return(node.body), node.body)]
    return ast.copy_location(ast.FunctionDef("<lambda>", node.args, body, []), node)


def _names_and_constants(code: CodeType) -> tuple[object, ...]:
    """Without the code of nested functions, which contains line numbers."""
    constants = [c for c in code.co_consts if not isinstance(c, CodeType)]
    return code.co_names, code.co_varnames, code.co_freevars, constants


def _codes(code: CodeType) -> list[CodeType]:
    """The code objects of the functions in a module, nested ones included."""
    inside = [c for c in code.co_consts if isinstance(c, CodeType)]
    return inside + [c for one in inside for c in _codes(one)]
