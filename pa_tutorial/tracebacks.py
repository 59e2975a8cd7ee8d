"""How a notebook shows our own exceptions: the reader's lines and the message.

from pa_tutorial import tracebacks
tracebacks.full = True      # from now on the whole traceback, as plain Python prints it
"""

import os
import sysconfig
import traceback
from pathlib import Path

full = False

HEAD = "Your lines; `from pa_tutorial import tracebacks; tracebacks.full = True` adds all others:"
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
NOT_THE_READERS = tuple(str(f) + os.sep for f in (Path(__file__).parent, *LIBRARIES))


class ShortInNotebooks(Exception):
    """The base of our own exceptions. Plain Python and pytest show them as any other."""

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython prints in place of its own traceback."""
        if full:
            return "".join(traceback.format_exception(self)).splitlines()
        frames = traceback.extract_tb(self.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith(NOT_THE_READERS)]
        lines = [f"  line {frame.lineno} of {_place(frame)}:  {frame.line}" for frame in own]
        return [HEAD, *lines, *f"{type(self).__name__}: {self}".splitlines()]


def _place(frame: traceback.FrameSummary) -> str:
    """The function; outside of functions, "the cell" or the name of the file."""
    if frame.name != "<module>":
        return frame.name
    is_cell = "ipykernel_" in frame.filename or frame.filename.startswith("<")
    return "the cell" if is_cell else Path(frame.filename).name
