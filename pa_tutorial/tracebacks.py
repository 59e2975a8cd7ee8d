"""How a notebook shows our own exceptions: the reader's lines and the message.

from pa_tutorial import tracebacks
tracebacks.full = True      # from now on the whole traceback, as plain Python prints it
"""

import os
import sysconfig
import traceback
from pathlib import Path
from types import FrameType

full = False

HEAD = "Your lines; `from pa_tutorial import tracebacks; tracebacks.full = True` shows all others:"
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
OURS = (Path(__file__).parent, Path(__file__).parents[1] / "simt")
NOT_THE_READERS = tuple(str(f) + os.sep for f in (*OURS, *LIBRARIES))


class ShortInNotebooks(Exception):
    """The base of our exceptions. Plain Python and pytest show them like any other."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints instead of its usual traceback."""
        if full:
            return "".join(traceback.format_exception(self)).splitlines()
        own = traceback.StackSummary.extract(own_frames(self))
        lines = [f"  line {frame.lineno} of {_place(frame)}:  {frame.line}" for frame in own]
        return [HEAD, *lines, *f"{type(self).__name__}: {self}".splitlines()]


class InOneLine(ShortInNotebooks):
    """The same, without the line about all others: for a slip in the call itself."""

    def _render_traceback_(self) -> list[str]:
        lines = super()._render_traceback_()
        return lines if full else lines[1:]


def own_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """The frames of the traceback that are in the reader's code, each with its line number."""
    frames = traceback.walk_tb(error.__traceback__)
    return [f for f in frames if not f[0].f_code.co_filename.startswith(NOT_THE_READERS)]


def _place(frame: traceback.FrameSummary) -> str:
    """The function's name; outside functions, "the cell" or the name of the file."""
    if frame.name != "<module>":
        return frame.name
    is_cell = "ipykernel_" in frame.filename or frame.filename.startswith("<")
    return "the cell" if is_cell else Path(frame.filename).name
