"""What a machine may lack; tests that need it are skipped.

A test says `@pytest.mark.needs("POSIX")`; one that only knows while it runs calls `require`.
"""

import sys

import pytest
import torch

from pa_tutorial.kernels.triton.backend import why_absent as why_no_triton
from tests.simt import absent

# What may be absent -> why it is absent on this machine, or an empty string.
WHY = {
    **absent.WHY,
    "Triton": why_no_triton() or "",
    "a GPU": "" if torch.cuda.is_available() else "torch sees none",
    "limits of memory": "" if sys.platform == "linux" else f"not set on {sys.platform}",
}


def reason(what: str) -> str:
    """Why a test that needs this is skipped here, or an empty string."""
    return absent.reason(what, WHY)


def require(what: str) -> None:
    """Skip the running test if this is absent."""
    if WHY[what]:
        pytest.skip(reason(what))
