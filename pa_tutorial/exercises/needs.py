"""What the answers to some exercises use of their module or kernel, for files without it."""

import ast
from collections.abc import Sequence

from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.kernel_text import excerpt
from pa_tutorial.kernels.sources import names_used

# Our modules work without Triton; an answer written in Triton doesn't.
OUR_TRITON = "from pa_tutorial.exercises.triton_grading import"
TRITON = {
    f"{OUR_TRITON} triton": "import triton",
    f"{OUR_TRITON} tl": "import triton.language as tl",
}


def needs_of(exercises: Sequence[Exercise | Blank]) -> str:
    """What the exercises of a notebook use of their module or kernel: imports, then the rest."""
    names = set().union(*(names_used(ast.parse(e.source)) for e in exercises))
    names -= {exercise.function for exercise in exercises}
    found = [
        part for around in dict.fromkeys(e.around for e in exercises) for part in parts(around)
    ]
    taken: list[tuple[ast.stmt, str]] = []
    while new := [one for one in found if one not in taken and binds(one[0]) & names]:
        taken += new
        names.update(*(names_used(node) for node, _ in new))
    ordered = [one for one in found if one in taken]
    imports = dict.fromkeys(text for node, text in ordered if is_import(node))
    others = dict.fromkeys(text.rstrip() for node, text in ordered if not is_import(node))
    head = "\n".join(TRITON.get(line, line) for line in imports)
    return "\n\n\n".join(part for part in (head, *others) if part)


def parts(text: str) -> list[tuple[ast.stmt, str]]:
    """The top-level statements of a module, each name of an import by itself."""
    found: list[tuple[ast.stmt, str]] = []
    for node in ast.parse(text).body:
        if is_import(node):
            module = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
            lines = [f"{module}import {ast.unparse(alias)}" for alias in node.names]
            found += [(ast.parse(line).body[0], line) for line in lines]
        else:
            found.append((node, excerpt(text, node)))
    return found


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def binds(node: ast.stmt) -> set[str]:
    """The names that a statement defines."""
    if is_import(node):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}
