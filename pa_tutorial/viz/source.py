"""Code as a picture: a function without its docstring, or a piece of it."""

import ast
import inspect
import textwrap
from collections.abc import Callable


def body(function: Callable) -> str:
    """The source of a function after its docstring, comments kept, indentation removed."""
    source = textwrap.dedent(inspect.getsource(function))
    definition = ast.parse(source).body[0]
    first = definition.body[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    end_of_head = first.end_lineno if has_docstring else first.lineno - 1
    return textwrap.dedent("\n".join(source.splitlines()[end_of_head:]))


def piece(function: Callable, first: str, last: str) -> str:
    """The lines of a function from the one that holds `first` to the next that holds `last`.

    Raises ValueError if there are none.
    """
    return _between(inspect.getsource(function), function.__name__, first, last)


def _between(text: str, name: str, first: str, last: str) -> str:
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if first in line), None)
    if start is None:
        raise ValueError(f"first: {name} has no line with {first!r}")
    end = next((i for i in range(start, len(lines)) if last in lines[i]), None)
    if end is None:
        raise ValueError(f"last: {name} has no line with {last!r} after {first!r}")
    return textwrap.dedent("\n".join(lines[start : end + 1]))
