"""The text of a reader's file: its functions and constants by name, and others in their places.

Places are the lines of the syntax tree, so all else stays as it is, comments included.
"""

import ast
from collections.abc import Callable, Container, Iterator, Mapping

from pa_tutorial.kernels import sources


def lines_of(text: str) -> list[str]:
    """The lines as the syntax tree counts them: splitlines() would end one at a form feed too."""
    return text.removesuffix("\n").split("\n")


def first_line(node: ast.stmt) -> int:
    """The line where a definition begins, with its decorators."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


def excerpt(text: str, node: ast.stmt) -> str:
    """The lines of a statement."""
    return "\n".join(lines_of(text)[first_line(node) - 1 : node.end_lineno]) + "\n"


def functions_in(text: str) -> dict[str, ast.FunctionDef]:
    """The functions of a text by name."""
    return {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def head_of(text: str) -> str:
    """The imports and constants of a text, without the imports from other files of kernels."""
    body = sources.without_kernel_imports(ast.parse(text)).body
    wanted = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom | ast.Assign)]
    return "".join(excerpt(text, node) for node in wanted)


def replaced(text: str, new: Callable[[ast.stmt], str | None]) -> str:
    """The text with other lines for each statement for which `new` has some."""
    lines = lines_of(text)
    for node in reversed(ast.parse(text).body):  # so that the lines before keep their numbers
        if (theirs := new(node)) is not None:
            lines[first_line(node) - 1 : node.end_lineno] = lines_of(theirs.strip("\n"))
    return "\n".join(lines) + "\n"


def without(text: str, names: Container[str]) -> str:
    """The text without some of its functions."""
    return replaced(text, lambda node: "" if getattr(node, "name", "") in names else None)


def with_functions(text: str, functions: Mapping[str, str]) -> str:
    """The text with functions in the places of those of their names; others follow at the end. Of
    two with one name, only the last counted, and stays."""
    known = functions_in(text)

    def new(node: ast.stmt) -> str | None:
        name = getattr(node, "name", "")
        is_last = name in known and known[name].lineno == node.lineno
        return functions.get(name) if is_last or name not in functions else ""

    others = [functions[name] for name in functions if name not in known]
    return replaced(text, new) + "".join(f"\n\n{one}" for one in others)


def with_constants(text: str, values: Mapping[str, object]) -> str:
    """The text with other values for some of its constants."""

    def new(node: ast.stmt) -> str | None:
        name = node.targets[0].id if sources.is_constant(node) else ""
        return f"{name} = {values[name]!r}" if name in values else None

    return replaced(text, new)


def without_kernel_imports(text: str) -> str:
    """The text without imports from other files of kernels, as part of a kernel's whole text."""
    kept = set(map(ast.unparse, sources.without_kernel_imports(ast.parse(text)).body))
    return replaced(text, lambda node: None if ast.unparse(node) in kept else "")


def pieces_of(text: str) -> Iterator[tuple[ast.stmt, str]]:
    """Each statement, and its lines with the comments above it."""
    lines, end = lines_of(text), 0
    for node in ast.parse(text).body:
        yield node, "\n".join(lines[end : node.end_lineno]).strip("\n")
        end = node.end_lineno
