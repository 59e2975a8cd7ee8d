"""What a machine may lack: tests that need it are skipped, and the skipped tests are counted.

A test says `@pytest.mark.needs("POSIX")`; one that only knows while it runs calls `require`.
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from typing import NoReturn

import pytest
import torch

from pa_tutorial.kernels.triton_launch import why_absent as why_no_triton

# What may be absent -> why it is absent on this machine, or an empty string.
WHY = {
    "numba-cuda": "" if find_spec("numba_cuda") else f"not installed on this {sys.platform}",
    "Triton": why_no_triton() or "",
    "Chromium": "",  # tests/conftest.py looks for it when a test asks for a browser
    "a GPU": "" if torch.cuda.is_available() else "torch sees none",
    "limits of memory": "" if sys.platform == "linux" else f"not set on {sys.platform}",
    "POSIX": "" if hasattr(os, "fork") else f"this is {sys.platform}: no fork, no process groups",
}


def reason(what: str) -> str:
    """Why a test that needs this is skipped here, or an empty string."""
    return WHY[what] and f"needs {what}: {WHY[what]}"


def skip(what: str, why: str) -> NoReturn:
    """Skip the running test, which looked for an entry of the table and didn't find it."""
    assert what in WHY
    pytest.skip(f"needs {what}: {why}")


def require(what: str) -> None:
    """Skip the running test if this is absent."""
    if WHY[what]:
        skip(what, WHY[what])


def summary(reasons: Iterable[str]) -> str:
    """One line about what this machine lacks, given the reason of each skipped test."""
    found = [re.search(r"needs ([^:]+): ", text) for text in reasons]
    skipped = Counter(match[1] for match in found if match)
    lacks = [
        f"{what} ({skipped[what]} tests skipped)" for what in WHY if skipped[what] or WHY[what]
    ]
    return f"This machine lacks {', '.join(lacks)}." if lacks else "This machine lacks nothing."
