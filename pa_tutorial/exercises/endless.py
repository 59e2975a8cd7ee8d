"""A reader's function that doesn't end is stopped, and the line is named where it was."""

import linecache
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.kernels.sources import Source, source_of

SECONDS = 1  # of this thread's own time, so that a busy machine changes nothing
LONGEST = 0.05  # that one line counts for: it may import a library


@contextmanager
def stopped_if_endless(functions: Iterable[Callable | Source]) -> Iterator[None]:
    """Raises AnswerError in the line of a reader's file that runs when SECONDS are over."""
    files = {source_of(function).file for function in functions}
    spent, last = 0.0, time.thread_time()

    def traced(frame: FrameType, event: str, _: object) -> Callable | None:
        nonlocal spent, last
        code, number = frame.f_code, frame.f_lineno
        if code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True  # `while True: pass` is one that jumps to itself
        now = time.thread_time()
        spent, last = spent + min(now - last, LONGEST), now
        if spent > SECONDS:
            line = f"{code.co_name}:  {linecache.getline(code.co_filename, number).strip()}"
            raise AnswerError(f"{SECONDS} second and no end: line {number} of {line}")
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        yield
    finally:
        sys.settrace(before)
