"""How a notebook shows our own exceptions: the reader's lines and the message.

from simt import tracebacks
tracebacks.full = True      # from now on the whole traceback, as plain Python prints it
"""

import os
import sysconfig
import traceback
from pathlib import Path

full = False

HEAD = "Your lines; `from simt import tracebacks; tracebacks.full = True` shows all others:"
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
NOT_THE_READERS = tuple(str(f) + os.sep for f in (Path(__file__).parent, *LIBRARIES))


class ShortInNotebooks(Exception):
    """The base of our exceptions. Plain Python and pytest show them like any other."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints instead of its usual traceback."""
        if full:
            return "".join(traceback.format_exception(self)).splitlines()
        frames = traceback.extract_tb(self.__traceback__)
        own = [frame for frame in frames if is_readers(frame.filename)]
        lines = [f"  line {frame.lineno} of {_place(frame)}:  {frame.line}" for frame in own]
        return [HEAD, *lines, *f"{type(self).__name__}: {self}".splitlines()]


def is_readers(file: str) -> bool:
    """Is it a cell, or a file beside the notebook? Other files are those of libraries."""
    beside = file.startswith(str(Path.cwd()) + os.sep) and not file.startswith(NOT_THE_READERS)
    return beside or is_cell(file)


def is_cell(file: str) -> bool:
    return "ipykernel_" in file or file.startswith("<")


def _place(frame: traceback.FrameSummary) -> str:
    """The function's name; outside functions, "the cell" or the name of the file."""
    if frame.name != "<module>":
        return frame.name
    return "the cell" if is_cell(frame.filename) else Path(frame.filename).name
