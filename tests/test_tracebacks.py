"""Our own exceptions in a notebook: few lines, unless the reader asks for all."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pa_tutorial
import simt

CELL = """
from pa_tutorial import tracebacks
from pa_tutorial.paging.allocator import BlockAllocator
tracebacks.full = {full}
def use(pool):
    pool.free(9)
use(BlockAllocator(4))
"""


@pytest.mark.rest(keep=["False"])
@pytest.mark.parametrize("full", [False, True])
def test_notebook_shows_the_readers_lines_and_the_message_or_all_on_request(full: bool) -> None:
    ipython = [sys.executable, "-m", "IPython", "--colors=NoColor", "-c", CELL.format(full=full)]
    said = subprocess.run(ipython, capture_output=True, text=True).stdout.rstrip()
    assert re.search(r"UnknownBlock: .*9.*$", said)
    if full:
        assert "in free" in said
    else:
        assert "line 6 of the cell:  use(BlockAllocator(4))\n  line 5 of use:  pool" in said
        assert said.count("\n") == 3


HAVE_IT = "PagingError", "KernelFileError", "MyKernelError", "AnswerError"


def test_every_exception_of_ours_that_a_reader_meets_is_shown_in_few_lines() -> None:
    own = re.compile(r"^class (\w+)\((\w*(?:Error|Exception))\):", re.M)
    folders = [Path(package.__file__).parent for package in (pa_tutorial, simt)]
    texts = [f.read_text(encoding="utf-8") for folder in folders for f in folder.rglob("*.py")]
    long = {name for text in texts for name, base in own.findall(text) if base not in HAVE_IT}
    caught_by_us = {"Fallback", "Doubt", "Misuse", "Raised", "BadScores", "Refused"}
    assert long == caught_by_us | {"ShortInNotebooks"}
