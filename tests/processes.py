"""Whether processes are still there; on every system, so by psutil and not by /proc."""

import time
from collections.abc import Iterable

import psutil


def is_gone(pid: int) -> bool:
    """A process that has ended and waits for its parent to notice is gone too."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def still_there(pids: Iterable[int], seconds: float) -> list[int]:
    """Those that are not gone after so long; it returns as soon as all are."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if not is_gone(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
