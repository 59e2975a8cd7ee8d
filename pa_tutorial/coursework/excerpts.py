"""Extract functions and what they need from a module or a notebook."""

import ast
import re
import symtable
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass

FOR_IPYTHON = re.compile(r"\s*[%!?]|.*\?\s*$")  # a line; `% b` may be half of a long `a % b`
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
ALWAYS = "*"


@dataclass(frozen=True)
class Statement:
    """One top-level statement.

    text   as written; of an import, only one of its names
    binds  the names that it defines or changes; ALWAYS for an import that affects the rest
    uses   the names that it takes from outside
    """

    text: str
    binds: frozenset[str]
    uses: frozenset[str] = frozenset()
    is_import: bool = False


def statements(texts: Iterable[str]) -> list[Statement]:
    """The statements of some modules or cells.

    Leaves out lines for IPython, text that isn't Python, and `f = attempt("f", f)`, which may
    replace an answer with our function.
    """
    found: list[Statement] = []
    for cell in texts:
        text = cell.replace("\r\n", "\n").removeprefix("\ufeff")
        for node in _parsed(text):
            match node:
                case ast.Import() | ast.ImportFrom():
                    found += _imports(node)
                case ast.Assign(value=ast.Call(func=ast.Name(id="attempt"))):
                    continue
                case _:
                    with suppress(*NOT_PYTHON):  # `await` at the top is for IPython only
                        found.append(_statement(node, text))
    return found


def excerpt(names: Iterable[str], known: Iterable[Statement]) -> str:
    """Every statement that defines or changes the names, or what these need; imports first."""
    wanted, taken, before = {*names, ALWAYS}, set(), -1
    while len(taken) > before:
        before = len(taken)
        taken |= {one for one in known if one.binds & wanted}
        wanted = wanted.union(*(one.uses for one in taken))
    parts = dict.fromkeys(one for one in known if one in taken)
    ordered = sorted(parts, key=lambda one: (ALWAYS not in one.binds, not one.is_import))
    text = "\n".join(one.text if one.is_import else f"\n\n{one.text}" for one in ordered)
    return text.strip("\n")


def _parsed(text: str) -> list[ast.stmt]:
    """Nothing if the text isn't Python. Lines for IPython become empty, to keep line numbers."""
    without = ["" if FOR_IPYTHON.match(line) else line for line in text.split("\n")]
    for one in (text, "\n".join(without)):
        with suppress(*NOT_PYTHON):
            return ast.parse(one).body
    return []


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Statement]:
    module = getattr(node, "module", None) or ""
    if module.startswith("kernel_"):
        return  # a file that the notebook writes, which no answer has
    for alias in node.names:
        name = ALWAYS if module == "__future__" else (alias.asname or alias.name).split(".")[0]
        alone = copy(node)
        alone.names = [alias]
        yield Statement(ast.unparse(alone), frozenset({name}), is_import=True)


def _statement(node: ast.stmt, text: str) -> Statement:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    own = "\n".join(text.split("\n")[first - 1 : node.end_lineno])
    table = symtable.symtable(own, "answer", "exec")
    return Statement(own, frozenset(_bound_by(node, table)), frozenset(_uses_of(table)))


def _bound_by(node: ast.stmt, table: symtable.SymbolTable) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    yield from (s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported())
    for part in ast.walk(node):
        if isinstance(getattr(part, "ctx", None), ast.Store | ast.Del):  # `a.x = 1`, `a[0] = 1`
            while isinstance(part, ast.Attribute | ast.Subscript):
                part = part.value
            if isinstance(part, ast.Name):
                yield part.id


def _uses_of(table: symtable.SymbolTable) -> Iterator[str]:
    """The names that a statement takes from outside, by Python's own rules."""
    outside = table.get_type() in ("module", "class")
    for symbol in table.get_symbols():
        if symbol.is_referenced() if outside else symbol.is_global():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _uses_of(child)
