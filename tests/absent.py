"""What a machine may lack: one table, by which tests are skipped and the skipped are counted.

A test says `@pytest.mark.needs("POSIX")`; one that finds out as it runs calls `require`.
"""

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from typing import NoReturn

import pytest
import torch

from pa_tutorial.kernels.triton_launch import why_absent as why_no_triton

CPP_COMPILER = shutil.which("g++") or shutil.which("clang++")
# What may be absent -> why it is, on this machine; empty where it is there.
WHY = {
    "numba-cuda": "" if find_spec("numba_cuda") else f"not installed on this {sys.platform}",
    "Triton": why_no_triton() or "",
    "a C++ compiler": "" if CPP_COMPILER else "neither g++ nor clang++ can be found",
    "Chromium": "",  # tests/conftest.py looks for it when a test asks for a browser
    "a GPU": "" if torch.cuda.is_available() else "torch sees none",
    "limits of memory": "" if sys.platform == "linux" else f"we know none for {sys.platform}",
    "POSIX": "" if hasattr(os, "fork") else f"this is {sys.platform}: no fork, no process groups",
}


def reason(what: str) -> str:
    """Why a test is skipped that needs this; empty where it is there."""
    return WHY[what] and f"needs {what}: {WHY[what]}"


def skip(what: str, why: str) -> NoReturn:
    """Skip the test that runs, which has looked for something of the table."""
    assert what in WHY
    pytest.skip(f"needs {what}: {why}")


def require(what: str) -> None:
    """Skip the test that runs if this is absent."""
    if WHY[what]:
        skip(what, WHY[what])


def summary(reasons: Iterable[str]) -> str:
    """What this machine lacks, in a line. reasons: one for each test that was skipped."""
    found = [re.search(r"needs ([^:]+): ", text) for text in reasons]
    skipped = Counter(match[1] for match in found if match)
    lacks = [
        f"{what} ({skipped[what]} tests skipped)" for what in WHY if skipped[what] or WHY[what]
    ]
    return f"This machine lacks {', '.join(lacks)}." if lacks else "This machine lacks nothing."
