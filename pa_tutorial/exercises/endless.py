"""A reader's function that doesn't end is stopped, and the line is named where it was."""

import linecache
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.tracebacks import NOT_THE_READERS

SECONDS = 1  # of this thread's own time, so that a busy machine changes nothing


@contextmanager
def stopped_if_endless() -> Iterator[None]:
    """Raises AnswerError in the reader's line that runs when SECONDS are over."""
    end = time.thread_time() + SECONDS

    def traced(frame: FrameType, event: str, _: object) -> Callable | None:
        if frame.f_code.co_filename.startswith(NOT_THE_READERS):
            return None
        if event == "line" and time.thread_time() > end:
            code, number = frame.f_code, frame.f_lineno
            line = f"{code.co_name}:  {linecache.getline(code.co_filename, number).strip()}"
            raise AnswerError(f"{SECONDS} second and no end: line {number} of {line}")
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        yield
    finally:
        sys.settrace(before)
