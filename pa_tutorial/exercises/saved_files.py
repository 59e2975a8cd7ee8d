"""my_kernel/ and my_pages.py on disk: read as they are now, written whole, set aside when damaged.

They have the form of ours; YOURS in each names the functions that are the reader's.
"""

import ast
import linecache
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path

from filelock import FileLock

from pa_tutorial.exercises.kernel_text import (
    excerpt,
    first_line,
    functions_in,
    lines_of,
    pieces_of,
    replaced,
)
from pa_tutorial.exercises.ours import READERS
from pa_tutorial.exercises.reader_files import text_of
from pa_tutorial.kernels import sources
from pa_tutorial.kernels.sources import KernelFileError, Source

PLACE = "PA_TUTORIAL_MY_KERNEL"  # an environment variable: another folder than my_kernel
PAGES, MY_PAGES = "pages", "my_pages.py"  # a file that lies beside the folder
EMPTY = ("", "# Mine; all other functions came with the tutorial.", "YOURS = ()")
PATIENCE = 10  # seconds; a file is written in milliseconds


class MyKernelError(KernelFileError):
    """A reader's files can't be used; the message is one line that says why."""


class DamagedError(MyKernelError):
    """A file isn't what `save` writes, nor a change of it."""


def folder_of() -> Path:
    """Beside the notebooks, where JupyterLab runs them, unless PA_TUTORIAL_MY_KERNEL says where."""
    return Path(os.environ.get(PLACE, "my_kernel"))


def place_of(file: str) -> Path:
    """Where a reader's functions of a file are saved."""
    folder = folder_of()
    return folder.with_name(MY_PAGES) if file == PAGES else folder / f"{file}.py"


def old_file(folder: Path) -> Path | None:
    """What version 1.0 saved, in the place of the folder or beside it."""
    places = folder, folder.with_suffix(".py")
    return next((path for path in places if path.is_file() and not folder.is_dir()), None)


def locked(path: Path) -> AbstractContextManager:
    """One notebook at a time changes a file. A folder that can't be written needs no lock.

    Raises TimeoutError after PATIENCE seconds.
    """
    may_write = os.access(path.parent, os.W_OK)
    lock = path.with_name(f".{path.stem}.lock")
    return FileLock(lock, timeout=PATIENCE) if may_write else nullcontext()


def spoken(path: Path) -> str:
    """my_kernel/v1.py, my_pages.py; elsewhere the whole path"""
    home = folder_of().parent
    return path.relative_to(home).as_posix() if path.is_relative_to(home) else str(path)


def reason(error: OSError) -> str:
    return error.strerror or f"another notebook has kept it locked for {PATIENCE} seconds"


# Reading ------------------------------------------------------------------------------------------


def text_in(path: Path) -> str:
    """Bytes that aren't UTF-8 are kept as they are; sources_in refuses them. Raises MyKernelError
    for what can't be read, such as a folder."""
    try:
        return path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise MyKernelError(f"{spoken(path)} can't be read: {error.strerror}.") from None


def sources_in(text: str, path: Path) -> dict[str, Source]:
    """The functions of a file that are the reader's, by name.

    Raises DamagedError if it isn't a saved file, or not Python.
    """
    try:
        text.encode()
        nodes, yours = functions_in(text), names_of_reader(text)
    except UnicodeEncodeError:
        raise DamagedError(f"{spoken(path)} is damaged: it isn't UTF-8.") from None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        why = str(error) or "it can't be parsed"
        raise DamagedError(f"{spoken(path)} is damaged: {why}.") from None
    if lost := sorted(yours - nodes.keys()):
        names = ", ".join(lost)
        raise DamagedError(f"{spoken(path)} is damaged: YOURS names {names}, which it lacks.")
    theirs, name = [nodes[one] for one in sorted(yours)], kept_in_memory(text, path)
    READERS[Path(name).resolve()] = yours
    return {n.name: Source(excerpt(text, n), name, first_line(n)) for n in theirs}


def kept_in_memory(text: str, path: Path) -> str:
    """A name under which Python finds this text even after the file has been saved again: the
    simulator reads a function's lines at its launch. linecache keeps an entry without a time."""
    name = f"<{spoken(path)} {sha256(text.encode()).hexdigest()[:6]}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    return name


def names_of_reader(text: str) -> set[str]:
    """The names in YOURS. Raises ValueError if it isn't there or is no tuple of names."""
    values = [node.value for node in ast.parse(text).body if is_yours(node)]
    if not values:
        raise ValueError("it doesn't say whose functions it has, because YOURS is missing")
    try:
        names = ast.literal_eval(values[0])
    except (ValueError, TypeError):  # no literal
        names = None
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"YOURS is {ast.unparse(values[0])}; it must be a tuple of names")
    return set(names)


def is_yours(node: ast.stmt) -> bool:
    return sources.is_constant(node) and node.targets[0].id == "YOURS"


# Writing ------------------------------------------------------------------------------------------


def empty_file(file: str) -> str:
    """One of our files with YOURS below its docstring."""
    text = text_of(file)
    end = ast.parse(text).body[0].end_lineno
    lines = lines_of(text)
    return "\n".join([*lines[:end], *EMPTY, *lines[end:]]) + "\n"


def with_yours(text: str, names: Iterable[str]) -> str:
    """The text of a saved file with other names in YOURS."""
    lines = "".join(f'    "{name}",\n' for name in sorted(names))
    return replaced(text, lambda node: f"YOURS = (\n{lines})" if is_yours(node) else None)


def loses(before: str, text: str, ours: str) -> bool:
    """Whether a text has anything that neither the new one nor ours has."""
    pieces = [piece for node, piece in pieces_of(before) if not is_yours(node)]
    return any(piece not in text and piece not in ours for piece in pieces)


def write(path: Path, text: str) -> None:
    """Whole or not at all, so that no other notebook reads half a file. A link stays one."""
    path = Path(os.path.realpath(path))
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(text, encoding="utf-8", newline="\n")
    new.replace(path)


def beside(path: Path) -> Path:
    """v1_1.py for v1.py, or the first such name that is free."""
    number = 1
    while (free := path.with_name(f"{path.stem}_{number}.py")).exists():
        number += 1
    return free
