"""What one function needs: cut it out of a module or a notebook, with nothing else."""

import ast
import re
import symtable
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

# A line for IPython; not `% b`, the second line of a long `a % b`.
MAGIC = re.compile(r"\s*(%{1,2}[A-Za-z]|!|\?)|[^#]*=\s*(!|%[A-Za-z])|.*\?\s*$")
CELL_MAGIC = re.compile(r"\s*%%(\w+)")
RUNS_THE_CELL = ("time", "capture", "prun")
MAY_NOT_RUN = ast.If | ast.For | ast.While | ast.Try | ast.With | ast.Match


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
                    before = found.get(name)
                    both = before is not None and _is_plain(before.text, definition.text)
                    found[name] = replace(definition, earlier=before if both else None)
                continue
            definition = _definition(node, text, number)
            bound = _bound_by(node, definition)
            for name in bound:
                found[name] = replace(definition, earlier=found.get(name) if bound[name] else None)
            for name in _changed_by(node) - bound.keys():
                if name in found and found[name].place is not None:
                    found[name] = replace(definition, earlier=found[name])
    return found


def needed_by(names: Iterable[str], known: Mapping[str, Definition]) -> list[Definition]:
    """The definitions of some names, and of all that these use, and so on."""
    wanted, found = sorted(names), {}
    while wanted:
        part = known.get(wanted.pop())
        while part is not None and part not in found:
            found[part] = None
            wanted += part.uses
            part = part.earlier
    return list(found)


def needed_everywhere(known: Mapping[str, Definition]) -> list[str]:
    """`from … import *` and `from __future__ import …`: no name asks for them."""
    return [name for name in known if name.startswith(("*", "__future__"))]


def excerpt(name: str, texts: Iterable[str]) -> str:
    """What defines `name`, and all that it needs; imports first. "" if nothing defines it."""
    known = definitions(texts)
    return joined(needed_by([name, *needed_everywhere(known)], known)) if name in known else ""


def joined(parts: Iterable[Definition]) -> str:
    """The texts of some definitions, each once: imports first, then the others in their order."""
    ordered = sorted(set(parts), key=lambda part: part.place or (0, 0))
    pieces = [import_block(part.text for part in ordered if part.place is None)]
    pieces += [part.text for part in ordered if part.place is not None]
    return "\n\n\n".join(piece for piece in pieces if piece)


def import_block(imports: Iterable[str]) -> str:
    """Imports in the usual order: Python's own, of others, ours; one line for each module."""
    plain: dict[int, set[str]] = {-1: set(), 0: set(), 1: set(), 2: set()}
    names: dict[int, dict[str, set[str]]] = {0: {}, 1: {}, 2: {}}
    for text in imports:
        node = ast.parse(text).body[0]
        if isinstance(node, ast.Import):
            plain[_section(node.names[0].name)].add(text)
        elif node.names[0].name == "*" or node.module == "__future__":
            plain[_section(node.module)].add(text)
        else:
            module = names[_section(node.module)].setdefault(node.module, set())
            module.add(ast.unparse(node.names[0]))
    sections = []
    for number in plain:
        parts = names.get(number, {}).items()
        froms = [f"from {m} import {', '.join(sorted(n))}" for m, n in parts]
        sections.append("\n".join(sorted(plain[number]) + sorted(froms)))
    return "\n\n".join(section for section in sections if section)


def _section(module: str) -> int:
    top = module.split(".")[0]
    if top == "__future__":
        return -1  # before all others
    return 0 if top in sys.stdlib_module_names else 2 if top == "pa_tutorial" else 1


def parsed(cell: str) -> tuple[str, list[ast.stmt]]:
    """The Python of a cell, and its statements; none if it is not Python."""
    text = cell.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    magic = CELL_MAGIC.match(text)
    if magic and magic[1] not in RUNS_THE_CELL:
        return text, []
    for one in (text, without_magic(text)):
        try:
            tree = ast.parse(one)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        inner = _inside_magic(tree.body)
        return parsed(inner) if inner else (one, tree.body)
    return text, []


def without_magic(text: str) -> str:
    return "\n".join("" if MAGIC.match(line) else line for line in text.split("\n"))


def _inside_magic(body: list[ast.stmt]) -> str:
    """The cell under %%time, which IPython's `In` has as a call with a text; "" for any other."""
    match body:
        case [ast.Expr(ast.Call(ast.Attribute(attr="run_cell_magic"), [name, _, inner]))]:
            if ast.literal_eval(name) in RUNS_THE_CELL:
                return ast.literal_eval(inner)
    return ""


def _imported_by(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Definition]]:
    """Names, and what imports each; of what gives names that are not told, one that begins with *.

    `import torch` and `import torch.utils.data` define one name; both are needed.
    """
    for alias in node.names:
        if isinstance(node, ast.Import):
            name = alias.asname or alias.name.split(".")[0]
            yield name, Definition(ast.unparse(ast.Import([alias])))
        else:
            one = ast.unparse(ast.ImportFrom(node.module, [alias], node.level))
            name = alias.asname or alias.name
            if name == "*" or node.module == "__future__":
                name = f"{'*' if name == '*' else '__future__'} {node.module} {name}"
            yield name, Definition(one)


def _is_plain(*imports: str) -> bool:
    return all(text.startswith("import ") and " as " not in text for text in imports)


def _definition(node: ast.stmt, text: str, number: int) -> Definition:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    own = "\n".join(text.split("\n")[first - 1 : node.end_lineno])
    return Definition(own, (number, first), _names_used(own))


def _bound_by(node: ast.stmt, definition: Definition) -> dict[str, bool]:
    """The names that a statement defines; and whether it needs what they were before."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name: False}  # it may use itself
    table = _table(definition.text)
    names = [s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()]
    adds = isinstance(node, MAY_NOT_RUN | ast.AugAssign)
    return {n: adds or n in definition.uses for n in names}


def _changed_by(node: ast.stmt) -> set[str]:
    """Names of what a statement may change: `a[0] = 1`, `a.append(1)`, `@function.register`.

    Inside of functions and classes nothing counts: they have not run.
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {_root(one) for one in node.decorator_list if not isinstance(one, ast.Name)}
    parts = list(ast.walk(node))
    targets = [p for p in parts if isinstance(p, ast.Attribute | ast.Subscript)]
    changed = {_root(p) for p in targets if not isinstance(p.ctx, ast.Load)}
    if isinstance(node, ast.Expr | MAY_NOT_RUN):
        calls = (p.func for p in parts if isinstance(p, ast.Call))
        changed |= {_root(f) for f in calls if isinstance(f, ast.Attribute)}
    return changed


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
        used |= {
            s.get_name()
            for s in table.get_symbols()
            if (s.is_referenced() if outside else s.is_global())
        }
    return frozenset(used)


def _table(text: str) -> symtable.SymbolTable:
    try:
        return symtable.symtable(text, "answer", "exec")
    except (SyntaxError, RecursionError):  # `await` at the top is for IPython only
        return symtable.symtable("", "answer", "exec")
