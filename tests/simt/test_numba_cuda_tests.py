"""numba-cuda's own tests, in a process of their own: they replace parts of numba.cuda."""

import subprocess
import sys

import pytest

from tests.simt.numba_cuda_tests import RANKS


@pytest.mark.rest("kernels/language.py: a kernel for each kind of language that they use")
@pytest.mark.needs("numba-cuda")
@pytest.mark.needs("POSIX")  # for the tests' time limit
@pytest.mark.parametrize(("arguments", "most"), [((), 430), (("--compiled", "test_idiv"), 2)])
def test_kernels_of_numbas_tests_compute_the_right_numbers(arguments: tuple, most: int) -> None:
    command = [sys.executable, "-m", "tests.simt.numba_cuda_tests", *arguments]
    table = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=True).stdout
    rows = [line.split() for line in table.splitlines()]
    counts = {row[1]: int(row[0]) for row in rows if row[1:] and row[1] in RANKS and len(row) == 2}
    assert counts["right"] >= most, table
    assert counts["wrong"] == counts["finding"] == 0, table
