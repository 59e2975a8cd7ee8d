"""How long an answer may run, and how much memory it may take."""

from dataclasses import dataclass

from pa_tutorial.arguments import require

try:
    import resource
except ImportError:  # Windows
    resource = None

MEGABYTE = 2**20
FILE_MEGABYTES = 64  # more than Numba or Triton keep of a kernel


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


def limit_memory(megabytes: int) -> bool:
    """From now on this process may take so much more memory. False where that cannot be said."""
    try:
        with open("/proc/self/statm", encoding="utf-8") as file:
            pages = int(file.read().split()[0])
    except OSError:  # not Linux
        return False
    most = pages * resource.getpagesize() + megabytes * MEGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    return True


def limit_files() -> None:
    """From now on no file that this process writes may grow large, and a crash leaves none."""
    if resource is not None:
        most = FILE_MEGABYTES * MEGABYTE
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
