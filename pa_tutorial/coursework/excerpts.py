"""What one function needs: cut it out of a module or a notebook, with nothing else."""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """One top-level statement of a text.

    text   as it is written; of an import, the one name alone
    place  number of the text and line; None for an import
    uses   the names that occur in it
    """

    text: str
    place: tuple[int, int] | None = None
    uses: frozenset[str] = frozenset()


def definitions(texts: Iterable[str]) -> dict[str, Definition]:
    """Every name that is defined at the top of one of the texts; the last definition counts.

    texts  of modules or cells. Lines for IPython (% and !) are left out, and so are texts that
           are not Python.
    """
    found: dict[str, Definition] = {}
    for number, text in enumerate(texts):
        text = without_magic(text)
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in tree.body:
            for name, definition in _defined_by(node, text, number):
                found[name] = definition
    return found


def needed_by(names: Iterable[str], known: Mapping[str, Definition]) -> list[Definition]:
    """The definitions of some names, and of all that these use, and so on."""
    wanted, found = sorted(names), {}
    while wanted:
        name = wanted.pop()
        if name in known and name not in found:
            found[name] = known[name]
            wanted += known[name].uses
    return list(found.values())


def excerpt(name: str, texts: Iterable[str]) -> str:
    """What defines `name`, and all that it needs; imports first. "" if nothing defines it."""
    known = definitions(texts)
    return joined(needed_by([name], known)) if name in known else ""


def joined(parts: Iterable[Definition]) -> str:
    """The texts of some definitions, each once: imports first, then the others in their order."""
    ordered = sorted(set(parts), key=lambda part: part.place or (0, 0))
    pieces = [import_block(part.text for part in ordered if part.place is None)]
    pieces += [part.text for part in ordered if part.place is not None]
    return "\n\n\n".join(piece for piece in pieces if piece)


def import_block(imports: Iterable[str]) -> str:
    """Imports in the usual order: Python's own, of others, ours; one line for each module."""
    plain: dict[int, set[str]] = {0: set(), 1: set(), 2: set()}
    names: dict[int, dict[str, set[str]]] = {0: {}, 1: {}, 2: {}}
    for text in imports:
        node = ast.parse(text).body[0]
        if isinstance(node, ast.Import):
            plain[_section(node.names[0].name)].add(text)
        else:
            module = names[_section(node.module)].setdefault(node.module, set())
            module.add(ast.unparse(node.names[0]))
    sections = []
    for number in plain:
        froms = [f"from {m} import {', '.join(sorted(n))}" for m, n in names[number].items()]
        sections.append("\n".join(sorted(plain[number]) + sorted(froms)))
    return "\n\n".join(section for section in sections if section)


def _section(module: str) -> int:
    top = module.split(".")[0]
    return 0 if top in sys.stdlib_module_names else 2 if top == "pa_tutorial" else 1


def without_magic(text: str) -> str:
    return "\n".join(
        "" if line.lstrip().startswith(("%", "!")) else line for line in text.splitlines()
    )


def _defined_by(node: ast.stmt, text: str, number: int) -> Iterator[tuple[str, Definition]]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            one = ast.Import([alias])
            if isinstance(node, ast.ImportFrom):
                one = ast.ImportFrom(node.module, [alias], node.level)
            yield alias.asname or alias.name.split(".")[0], Definition(ast.unparse(one))
        return
    uses = _names_used(node)
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    definition = Definition("\n".join(lines), (number, first), uses)
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name, definition
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for one in (n for target in targets for n in ast.walk(target)):
            if isinstance(one, ast.Name):
                yield one.id, definition


def _names_used(node: ast.stmt) -> frozenset[str]:
    """The names that a statement takes from outside: without those that it makes itself."""
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    own = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    own |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return frozenset(n.id for n in names) - own
