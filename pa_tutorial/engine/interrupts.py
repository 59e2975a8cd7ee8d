"""Ctrl-C between two changes that belong together."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Ctrl-C waits until this block ends: lists, block tables and reference counts change
    together. Also a decorator.

    Python raises KeyboardInterrupt in the main thread only, so elsewhere nothing is to be done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple] = []
    before = signal.signal(signal.SIGINT, lambda *received: held.append(received))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held and callable(before):
            before(*held[0])
