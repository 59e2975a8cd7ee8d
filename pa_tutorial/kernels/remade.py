"""A kernel written in a notebook, for other constants: what a C++ template does by itself."""

import ast
import re
from collections.abc import Callable, Iterable
from types import FunctionType

from numba import cuda


def remade(kernel: Callable, **constants: object) -> Callable:
    """The same kernel with other constants: remade(kernel, HEAD_SIZE=64, BLOCK_SIZE=16).

    kernel     a @cuda.jit kernel of a notebook
    constants  by name. The cell that assigns them all is run again with these values, so what its
               formulas compute follows; the names in the notebook stay as they are

    The notebook's device functions are remade too. Raises ValueError if no cell assigns all names.
    """
    of_notebook = kernel.py_func.__globals__
    names = dict(of_notebook)
    for statement in cell_that_assigns(constants, names.get("In", ())):
        exec(compile(ast.Module([statement], []), "<constants>", "exec"), names)
        names.update(constants)  # they win over what the cell says
    for name, thing in of_notebook.items():
        if isinstance(thing, type(kernel)) and thing.py_func.__globals__ is of_notebook:
            function = FunctionType(thing.py_func.__code__, names, name)
            names[name] = cuda.jit(**thing.targetoptions)(function)
    return names[kernel.py_func.__name__]


def cell_that_assigns(wanted: Iterable[str], cells: Iterable[str]) -> list[ast.stmt]:
    """The statements of the last cell with all of these names at the left of an `=`."""
    targets = [rf"^[\w, ]*\b{name}\b[\w, ]* = " for name in wanted]
    for text in reversed(list(cells)):
        if all(re.search(target, text, re.MULTILINE) for target in targets):
            return ast.parse(text).body
    raise ValueError(f"no cell of this notebook assigns {', '.join(wanted)}, or it was not run")
