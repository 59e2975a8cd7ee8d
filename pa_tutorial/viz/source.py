"""Code as a picture: what a function does, without what its docstring says."""

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
