"""What this machine is, for the first notebook and every measurement; how processes end on it."""

import contextlib
import os
import platform
import signal
import subprocess
from importlib import metadata

import torch


def cpu_name() -> str:
    """The processor's model name, as far as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # no Linux: the platform module knows less, but something
    return platform.processor() or platform.machine()


def package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def describe_machine() -> dict[str, str | int | None]:
    """Python, packages, processor and GPU; None for what is not there."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "numba": package_version("numba"),
        "numba-cuda": package_version("numba-cuda"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def report() -> str:
    """describe_machine as lines, and what it means for the walk."""
    machine = describe_machine()
    lines = [
        f"{name:12} {'not there' if value is None else value}" for name, value in machine.items()
    ]
    if machine["gpu"] is None:
        lines += ["", "No GPU here: nothing is missing. Everything in this walk runs without one."]
    return "\n".join(lines)


def end_group(process: subprocess.Popen) -> None:
    """End a process that was started with start_new_session, and all that it started itself; on
    Windows, which has no sessions, the process alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
