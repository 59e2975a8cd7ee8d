"""A kernel without one of its barriers, for the table of notebook 11."""

import ast
import linecache
from collections.abc import Iterator

from pa_tutorial.kernels.cuda_backends import PagedBackend
from pa_tutorial.kernels.template import Source, source_of


def without_each_barrier(backend: PagedBackend) -> Iterator[tuple[str, PagedBackend]]:
    """For each `cuda.syncthreads()` of v1: the line before it, and the backend without it."""
    functions = [one for one in vars(backend.namespace()).values() if hasattr(one, "py_func")]
    for text, file, first_line in map(source_of, functions):
        lines = text.splitlines(keepends=True)
        for node in barriers(text):
            above, below = lines[: node.lineno - 1], lines[node.lineno :]
            changed = [*above, " " * node.col_offset + "pass\n", *below]
            name = f"<{file} without line {first_line + len(above)}>"
            # The simulator reads a function's text here. linecache keeps an entry without a time.
            linecache.cache[name] = len(text), None, changed, name
            before = [code for line in above if not (code := line.strip()).startswith("#")][-1]
            yield before, backend.with_functions(v1=[Source("".join(changed), name, 1)])


def barriers(text: str) -> list[ast.Expr]:
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    calls = [node for node in nodes if ast.unparse(node) == "cuda.syncthreads()"]
    return sorted(calls, key=lambda node: node.lineno)
