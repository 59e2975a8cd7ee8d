"""How long an answer may run, and how much memory it may take."""

import faulthandler
from dataclasses import dataclass
from typing import TextIO

from pa_tutorial.arguments import require

try:
    import resource
except ImportError:  # Windows
    resource = None

MEGABYTE = 2**20
FILE_MEGABYTES = 64  # more than Numba or Triton keep of a kernel
TOO_LATE = "Timeout ("  # what faulthandler says first


@dataclass(frozen=True)
class Limits:
    """For one task of one submission.

    seconds    that its cases may take together
    megabytes  on top of what the process has before the answer is loaded; Linux only
    """

    seconds: float = 120.0
    megabytes: int = 2048

    def __post_init__(self) -> None:
        require(self.seconds > 0, "seconds", self.seconds, "more than 0")
        require(self.megabytes >= 1, "megabytes", self.megabytes, "at least 1")


def limit_seconds(seconds: float, channel: TextIO) -> None:
    """End this process after so many seconds from now, whatever it does; say so first.

    The watch is a thread in C: it needs neither Python's lock nor a signal that an answer catches.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=channel)


def limit_memory(megabytes: int) -> None:
    """From now on this process may take so much more memory; Linux only."""
    try:
        with open("/proc/self/statm", encoding="utf-8") as file:
            pages = int(file.read().split()[0])
    except OSError:  # not Linux
        return
    most = pages * resource.getpagesize() + megabytes * MEGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def limit_files() -> None:
    """From now on no file that this process writes may grow large, and a crash leaves none."""
    if resource is not None:
        most = FILE_MEGABYTES * MEGABYTE
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
