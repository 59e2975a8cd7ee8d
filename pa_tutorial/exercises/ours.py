"""Whose a function is: ours, or a reader's."""

import ast
from collections.abc import Callable, Iterable
from pathlib import Path

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.exercises.kernel_text import functions_in
from pa_tutorial.exercises.reader_files import PLAIN, path_of
from pa_tutorial.kernels import sources
from pa_tutorial.kernels.sources import Source, source_of

# Constants that a launch sets.
SET = {*("HEAD_SIZE", "BLOCK_SIZE", "DTYPE", "NUM_QUERIES_PER_KV", "NUM_THREADS", "PARTITION_SIZE")}
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
    return file.parent == sources.FOLDER.resolve() or file in map(path_of, PLAIN)


def is_from_a_file(function: object) -> bool:
    """Whether it came from a reader's file, by `saved` or write_kernel, and not from a cell."""
    place = place_of(function)
    return bool(place) and place[0] in READERS


def is_unfinished(function: Callable | Source) -> bool:
    """Whether `...` is still in it."""
    nodes = ast.walk(ast.parse(source_of(function).text))
    return any(isinstance(node, ast.Expr) and ast.unparse(node) == "..." for node in nodes)


def readers(functions: Iterable[Callable | Source]) -> dict[str, Callable | Source]:
    """Those that aren't ours, by name; of two with one name, the last is the one that counts."""
    return {name: one for name, one in last_of_each_name(functions).items() if not is_ours(one)}


def last_of_each_name(functions: Iterable[Callable | Source]) -> dict[str, Callable | Source]:
    """Functions by name. A whole file that was loaded is none."""
    names = [(list(functions_in(source_of(one).text)), one) for one in functions]
    return {found[0]: one for found, one in names if len(found) == 1}


def require_theirs(answer: Callable | None) -> None:
    """Raises AnswerError for our own function and for one that isn't finished."""
    if is_ours(answer):
        raise AnswerError("it is our function, not yet yours")
    if answer and is_unfinished(answer):
        raise AnswerError("not written yet: `...` is still in it")
