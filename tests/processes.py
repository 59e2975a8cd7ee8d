"""Whether processes are still running, on every system (psutil, not /proc)."""

import time
from collections.abc import Iterable

import psutil


def is_gone(pid: int) -> bool:
    """A zombie, which has ended and waits for its parent to notice, is gone too."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def still_there(pids: Iterable[int], seconds: float) -> list[int]:
    """The processes that aren't gone after `seconds`; returns at once when all are."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if not is_gone(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
