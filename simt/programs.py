"""The programs that the command runs: a script, or the cells of a notebook."""

import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import TextIO

from simt.source import spoken
from simt.tracebacks import ShortInNotebooks

INTERRUPTED = 130  # the exit code that shells give for Ctrl-C
OURS = os.path.dirname(__file__)


class Refused(Exception):
    """The program can't be run; the words say why."""


@dataclass(frozen=True)
class Cell:
    """A cell with code. If it may raise, the notebook goes on after an error."""

    text: str
    may_raise: bool


def run_script(code: CodeType, path: str, arguments: Sequence[str]) -> int | None:
    """As `python path arguments` runs it."""
    module = ModuleType("__main__")
    module.__file__ = str(Path(path).absolute())
    sys.modules["__main__"] = module
    begin_in(path, arguments)
    try:
        exec(code, vars(module))
    except BaseException as error:  # a program may raise anything
        status = ended_with(error)
        if status is None:
            print_without_ours(error)
        return status
    return 0


def begin_in(path: str, arguments: Sequence[str]) -> None:
    """What a program finds in sys.argv, and where it imports from first."""
    sys.argv, sys.path[0] = [path, *arguments], str(Path(path).resolve().parent)


def ended_with(error: BaseException) -> int | None:
    """The exit code of a program that was ended on purpose; None after any other error."""
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        return int(error.code if isinstance(error.code, int) else bool(error.code))
    if isinstance(error, KeyboardInterrupt):
        where = error.args[0] if error.args else ", outside of kernels"
        print(f"Stopped{where}", file=sys.stderr)
        return INTERRUPTED
    return None


def cells_of(path: str, content: bytes) -> list[Cell]:
    """The cells with code of a notebook. Raises Refused if they can't be read."""
    try:
        notebook = json.loads(content)
    except ValueError as error:
        raise Refused(f"{path} isn't a notebook: it isn't JSON ({error})") from None
    version = notebook.get("nbformat") if isinstance(notebook, dict) else None
    if version != 4:
        raise Refused(
            f"{path} has the nbformat {version}; it must be 4. To convert a notebook: "
            f"jupyter nbconvert --to notebook --inplace {path}"
        )
    try:
        language = notebook["metadata"].get("kernelspec", {}).get("language", "python")
        cells = [
            Cell("".join(cell["source"]), "raises-exception" in cell["metadata"].get("tags", []))
            for cell in notebook["cells"]
            if cell["cell_type"] == "code"
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise Refused(f"{path} isn't a notebook of nbformat 4: {error!r}") from None
    if language != "python":
        raise Refused(f"{path} is written in {language}; it must be Python")
    return cells


def print_without_ours(
    error: BaseException, hidden: tuple[str, ...] = (), to: TextIO | None = None
) -> None:
    """The program's traceback, as Python prints it, without the frames of the simulator.

    hidden  the folders of other packages whose frames aren't shown either
    to      in place of sys.stderr
    """
    shown = traceback.TracebackException.from_exception(error)
    if isinstance(error, ShortInNotebooks):
        shown.__cause__ = shown.__context__ = None
    files = {getattr(shown, "filename", None) or ""}  # that of a syntax error
    for one in chain(shown):
        frames = [f for f in one.stack if os.path.dirname(f.filename) != OURS]
        frames = [f for f in frames if not f.filename.startswith(hidden)]
        one.stack = traceback.StackSummary.from_list(frames)
        files |= {frame.filename for frame in frames}
    text = "".join(shown.format())
    for file in files:
        if spoken(file) != file:
            text = text.replace(f'File "{file}"', spoken(file))
    print(text, end="", file=to or sys.stderr)


def chain(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """An error, and those that led to it."""
    while shown:
        yield shown
        shown = shown.__cause__ or shown.__context__
