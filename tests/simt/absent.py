"""What a machine may lack that the simulator's tests need: `@pytest.mark.needs("POSIX")`."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path


def ptxas() -> Path | None:
    """NVIDIA's assembler, which Triton brings."""
    triton = find_spec("triton")
    path = Path(triton.origin).parent / "backends/nvidia/bin/ptxas" if triton else Path()
    return path if path.is_file() else None


# What may be absent -> why it is absent on this machine, or an empty string.
WHY = {
    "numba-cuda": "" if find_spec("numba_cuda") else f"not installed on this {sys.platform}",
    "ptxas": "" if ptxas() else f"Triton, which brings it, isn't installed on this {sys.platform}",
    "POSIX": "" if hasattr(os, "fork") else f"this is {sys.platform}: no fork, no process groups",
}


def reason(what: str, why: dict[str, str] = WHY) -> str:
    """Why a test that needs this is skipped here, or an empty string."""
    return why[what] and f"needs {what}: {why[what]}"
