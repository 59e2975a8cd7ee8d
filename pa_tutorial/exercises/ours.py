"""Whose a function of a kernel is: ours, or a reader's; and our kernels by name."""

import ast
from collections.abc import Callable
from pathlib import Path

from pa_tutorial.exercises import sizes as plain_python
from pa_tutorial.exercises.kernel_text import functions_in
from pa_tutorial.kernels import template
from pa_tutorial.kernels.cuda_backends import (
    CudaBackend,
    naive_backend,
    v1_backend,
    v1_vector_backend,
    v2_backend,
)
from pa_tutorial.kernels.template import Source, source_of

BACKENDS: dict[str, CudaBackend] = {
    one.kernel: one for one in (naive_backend, v1_backend, v1_vector_backend, v2_backend)
}
# Constants that a launch sets.
SET = {*("HEAD_SIZE", "BLOCK_SIZE", "DTYPE", "NUM_QUERIES_PER_KV", "NUM_THREADS", "PARTITION_SIZE")}
WRITTEN: dict[Path, set[str]] = {}  # a file of write_kernel -> whose functions aren't ours


def is_ours(function: object) -> bool:
    """Whether it comes from one of our files, and not from a reader's cell or file."""
    if isinstance(function, Source):
        file, (name, *_) = Path(function.file), functions_in(function.text)
    else:
        code = getattr(getattr(function, "py_func", function), "__code__", None)
        if code is None:
            return False
        file, name = Path(code.co_filename), code.co_name
    if file.resolve() in WRITTEN:
        return name not in WRITTEN[file.resolve()]
    return file.parent == template.FOLDER or file == Path(plain_python.__file__)


def is_unfinished(function: Callable) -> bool:
    """Whether `...` is still in it."""
    nodes = ast.walk(ast.parse(source_of(function).text))
    return any(isinstance(node, ast.Expr) and ast.unparse(node) == "..." for node in nodes)
