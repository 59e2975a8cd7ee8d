"""What some functions need: cut out of a module or a notebook, with nothing else."""

import ast
import re
import symtable
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

# A line for IPython. `% b` may be the second line of a long `a % b`: parse first.
MAGIC = re.compile(r"\s*(%{1,2}[A-Za-z]|!|\?)|[^#]*=\s*(!|%[A-Za-z])|.*\?\s*$")
ANOTHER_LANGUAGE = re.compile(r"\s*%%(?!time|capture|prun)")
MAY_NOT_RUN = ast.If | ast.For | ast.While | ast.Try | ast.With | ast.Match
HAS_A_NAME = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Definition:
    """One top-level statement of a text.

    text     as it is written; of an import, the one name alone
    place    number of the text and line; None for an import
    uses     the names that it takes from outside
    earlier  what defined the same name before, if that is needed too
    """

    text: str
    place: tuple[int, int] | None = None
    uses: frozenset[str] = frozenset()
    earlier: "Definition | None" = field(default=None, compare=False)


def definitions(texts: Iterable[str]) -> dict[str, Definition]:
    """Every name that is defined at the top of one of the texts; the last definition counts.

    texts  of modules or cells. Lines for IPython (% and !) are left out, and so are texts that
           are not Python.
    """
    found: dict[str, Definition] = {}
    for number, cell in enumerate(texts):
        text, statements = parsed(cell)
        for node in statements:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name, definition in _imported_by(node):
                    earlier = found.get(name) if isinstance(node, ast.Import) else None
                    found[name] = replace(definition, earlier=earlier)
                continue
            definition = _definition(node, text, number)
            bound = _bound_by(node, definition)
            bound |= {n: True for n in _changed_by(node) if n in found and found[n].place}
            for name, needs_earlier in bound.items():
                earlier = found.get(name) if needs_earlier else None
                found[name] = replace(definition, earlier=earlier)
    return found


def excerpt(names: Iterable[str], known: Mapping[str, Definition]) -> str:
    """What defines the names, and all that this needs: imports first, the rest in its order."""
    wanted = [*names, *(name for name in known if name.startswith(("*", "__future__")))]
    parts: set[Definition] = set()
    while wanted:
        part = known.get(wanted.pop())
        while part is not None and part not in parts:
            parts.add(part)
            wanted += part.uses
            part = part.earlier
    imports = sorted(
        (part.text for part in parts if part.place is None),
        key=lambda text: ("__future__" not in text, text.startswith("from"), text),
    )
    others = sorted((part for part in parts if part.place), key=lambda part: part.place)
    return "\n\n\n".join(filter(None, ["\n".join(imports), *(part.text for part in others)]))


def parsed(cell: str) -> tuple[str, list[ast.stmt]]:
    """The Python of a cell, and its statements; none if it is not Python."""
    text = cell.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    lines = ["" if MAGIC.match(line) else line for line in text.split("\n")]
    for one in () if ANOTHER_LANGUAGE.match(text) else (text, "\n".join(lines)):
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return one, ast.parse(one).body
    return text, []


def _imported_by(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Definition]]:
    """Names, and what imports each; of what gives names that are not told, one that begins with *.

    `import torch` and `import torch.utils.data` define one name; both are needed.
    """
    for alias in node.names:
        name = alias.asname or alias.name
        if isinstance(node, ast.Import):
            yield name.split(".")[0], Definition(ast.unparse(ast.Import([alias])))
        else:
            if name == "*" or node.module == "__future__":
                name = f"{'*' if name == '*' else '__future__'} {node.module} {name}"
            one = ast.unparse(ast.ImportFrom(node.module, [alias], node.level))
            yield name, Definition(one)


def _definition(node: ast.stmt, text: str, number: int) -> Definition:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    own = "\n".join(text.split("\n")[first - 1 : node.end_lineno])
    return Definition(own, (number, first), _names_used(own))


def _bound_by(node: ast.stmt, definition: Definition) -> dict[str, bool]:
    """The names that a statement defines; and whether it needs what they were before."""
    if isinstance(node, HAS_A_NAME):
        return {node.name: False}  # it may use itself
    symbols = _table(definition.text).get_symbols()
    names = [s.get_name() for s in symbols if s.is_assigned() or s.is_imported()]
    adds = isinstance(node, MAY_NOT_RUN | ast.AugAssign)
    return {n: adds or n in definition.uses for n in names}


def _changed_by(node: ast.stmt) -> set[str]:
    """Names of what a statement may change: `a[0] = 1`, `a.append(1)`, `@function.register`.

    Inside of functions and classes nothing counts: they have not run.
    """
    if isinstance(node, HAS_A_NAME):
        return {_root(d) for d in node.decorator_list if not isinstance(d, ast.Name)} - {node.name}
    parts = list(ast.walk(node))
    changed = [p for p in parts if not isinstance(getattr(p, "ctx", ast.Load()), ast.Load)]
    if isinstance(node, ast.Expr | MAY_NOT_RUN):
        changed += [p.func for p in parts if isinstance(p, ast.Call)]
    return {_root(p) for p in changed if isinstance(p, ast.Attribute | ast.Subscript)}


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names_used(text: str) -> frozenset[str]:
    """The names that a statement takes from outside, by Python's own rules."""
    used, tables = set(), [_table(text)]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        outside = table.get_type() in ("module", "class")
        symbols = table.get_symbols()
        used |= {s.get_name() for s in symbols if (s.is_referenced() if outside else s.is_global())}
    return frozenset(used)


def _table(text: str) -> symtable.SymbolTable:
    try:
        return symtable.symtable(text, "answer", "exec")
    except (SyntaxError, RecursionError):  # `await` at the top is for IPython only
        return symtable.symtable("", "answer", "exec")
