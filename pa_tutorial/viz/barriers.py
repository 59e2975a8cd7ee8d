"""A kernel without one of its barriers."""

import ast
import linecache
from collections.abc import Iterator

from pa_tutorial.arguments import require
from pa_tutorial.kernels.cuda_backends import PagedBackend
from pa_tutorial.kernels.sources import Source, source_of


def without_each_barrier(backend: PagedBackend) -> Iterator[tuple[str, PagedBackend]]:
    """For each `cuda.syncthreads()` of v1: the line before it, and the backend without it."""
    for name, function in vars(backend.namespace()).items():
        if hasattr(function, "py_func"):
            source = source_of(function)
            for number, barrier in enumerate(barriers(source.text)):
                above = source.text.splitlines()[: barrier.lineno - 1]
                before = [line for code in above if not (line := code.strip()).startswith("#")]
                yield before[-1], without_barrier(backend, name, number)


def without_barrier(backend: PagedBackend, name: str, number: int = 0) -> PagedBackend:
    """v1 without a barrier of the function of this name; its first is number 0.

    Raises ValueError for a barrier that the function doesn't have.
    """
    text, file, first_line = source_of(vars(backend.namespace())[name])
    found = barriers(text)
    allowed = f"less than the number of barriers in {name}, {len(found)}"
    require(number < len(found), "number", number, allowed)
    barrier, lines = found[number], text.splitlines(keepends=True)
    line = barrier.lineno - 1
    lines[line] = " " * barrier.col_offset + "pass\n"
    file = f"<{file} without line {first_line + line}>"
    # The simulator reads a function's text here. linecache keeps an entry without a time.
    linecache.cache[file] = len(text), None, lines, file
    return backend.with_functions(v1=[Source("".join(lines), file, 1)])


def barriers(text: str) -> list[ast.Expr]:
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    calls = [node for node in nodes if ast.unparse(node) == "cuda.syncthreads()"]
    return sorted(calls, key=lambda node: node.lineno)
