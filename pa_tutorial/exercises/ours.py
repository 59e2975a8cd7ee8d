"""Whose a function of a kernel is: ours, or a reader's; how many are; and our kernels by name."""

import ast
from collections.abc import Callable, Iterable
from pathlib import Path

from pa_tutorial.exercises import sizes as plain_python
from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.kernel_text import functions_in
from pa_tutorial.kernels import template
from pa_tutorial.kernels.cuda_backends import (
    CudaBackend,
    naive_backend,
    v1_backend,
    v1_vector_backend,
    v2_backend,
)
from pa_tutorial.kernels.template import Source, files_of, source_of

BACKENDS: dict[str, CudaBackend] = {
    one.kernel: one for one in (naive_backend, v1_backend, v1_vector_backend, v2_backend)
}
# Constants that a launch sets.
SET = {*("HEAD_SIZE", "BLOCK_SIZE", "DTYPE", "NUM_QUERIES_PER_KV", "NUM_THREADS", "PARTITION_SIZE")}
NOT_RUN = {"v2": ("paged_attention_v1",)}  # of a kernel's files: v2 has its own in its place
READERS: dict[Path, set[str]] = {}  # a file of saved or write_kernel -> whose functions aren't ours


def place_of(function: object) -> tuple[Path, str] | None:
    """The file and name of a function; None for what has none."""
    if isinstance(function, Source):
        return Path(function.file).resolve(), next(iter(functions_in(function.text)))
    code = getattr(getattr(function, "py_func", function), "__code__", None)
    return code and (Path(code.co_filename).resolve(), code.co_name)


def is_ours(function: object) -> bool:
    """Whether it comes from one of our files, and not from a reader's cell or file."""
    if not (place := place_of(function)):
        return False
    file, name = place
    if file in READERS:
        return name not in READERS[file]
    return file.parent == template.FOLDER.resolve() or file == Path(plain_python.__file__).resolve()


def is_from_a_file(function: object) -> bool:
    """Whether it came from a reader's file, by `saved` or write_kernel, and not from a cell."""
    place = place_of(function)
    return bool(place) and place[0] in READERS


def is_unfinished(function: Callable | Source) -> bool:
    """Whether `...` is still in it."""
    nodes = ast.walk(ast.parse(source_of(function).text))
    return any(isinstance(node, ast.Expr) and ast.unparse(node) == "..." for node in nodes)


# A kernel's functions -----------------------------------------------------------------------------


def readers(functions: Iterable[Callable | Source]) -> dict[str, Callable | Source]:
    """Those that aren't ours, by name; of two with one name, the last is the one that counts."""
    return {name: one for name, one in last_of_each_name(functions).items() if not is_ours(one)}


def last_of_each_name(functions: Iterable[Callable | Source]) -> dict[str, Callable | Source]:
    """Functions by name. A whole file that was loaded is none."""
    names = [(list(functions_in(source_of(one).text)), one) for one in functions]
    return {found[0]: one for found, one in names if len(found) == 1}


def blanks_in(file: str) -> set[str]:
    """The functions of a file that a reader can write."""
    return {blank.function for blank in all_blanks().values() if blank.file == file}


def functions_of(kernel: str) -> dict[str, str]:
    """Those of a kernel that run, each with its file: the last that defines it."""
    last = {name: file for file in files_of(kernel) for name in blanks_in(file)}
    return {name: file for name, file in last.items() if name not in NOT_RUN.get(kernel, ())}


def how_many(kernel: str, yours: dict[str, Iterable[str]]) -> str:
    """7 of 12 functions of v1 are yours

    yours  the names of the reader's functions, by file
    """
    known = functions_of(kernel)
    number = sum(known.get(name) == file for file, names in yours.items() for name in {*names})
    return f"{number} of {len(known)} functions of {kernel} {'is' if number == 1 else 'are'} yours"


def whose(file: str, yours: Iterable[str], kernel: str = "") -> str:
    """Which functions of a file that a reader can write are theirs, and which ours; for a kernel,
    only those that run."""
    blanks, idle = blanks_in(file), set()
    if kernel:
        idle = blanks - {name for name, where in functions_of(kernel).items() if where == file}
    both = {"Yours": sorted({*yours} - idle), "Ours": sorted(blanks - {*yours} - idle)}
    return " ".join(f"{who}: {', '.join(names)}." for who, names in both.items() if names)
