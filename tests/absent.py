"""What a machine may lack; tests that need it are skipped.

A test says `@pytest.mark.needs("POSIX")`; one that only knows while it runs calls `require`.
"""

import os
import sys
from importlib.util import find_spec

import pytest
import torch

from pa_tutorial.kernels.triton.backend import why_absent as why_no_triton

# What may be absent -> why it is absent on this machine, or an empty string.
WHY = {
    "numba-cuda": "" if find_spec("numba_cuda") else f"not installed on this {sys.platform}",
    "Triton": why_no_triton() or "",
    "a GPU": "" if torch.cuda.is_available() else "torch sees none",
    "limits of memory": "" if sys.platform == "linux" else f"not set on {sys.platform}",
    "POSIX": "" if hasattr(os, "fork") else f"this is {sys.platform}: no fork, no process groups",
}


def reason(what: str) -> str:
    """Why a test that needs this is skipped here, or an empty string."""
    return WHY[what] and f"needs {what}: {WHY[what]}"


def require(what: str) -> None:
    """Skip the running test if this is absent."""
    if WHY[what]:
        pytest.skip(reason(what))
