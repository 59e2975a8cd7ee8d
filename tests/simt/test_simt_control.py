"""Divergence: random programs run as plain Python does, one thread at a time."""

from pathlib import Path

import numpy as np
import pytest
from simt_programs import NUM_THREADS, arguments, run_thread_by_thread, write_program

from pa_tutorial.simt import launch


def check_program(seed: int, folder: Path, order: str) -> None:
    module = write_program(seed, folder)
    out, table = arguments()
    assert launch(module.kernel, 1, NUM_THREADS, out, table, order=order).clean
    np.testing.assert_array_equal(out, run_thread_by_thread(module))


@pytest.mark.parametrize("first", range(0, 300, 20))
def test_random_programs_run_as_in_plain_python(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        check_program(seed, tmp_path, "together" if seed % 3 else "reverse")


@pytest.mark.hours
@pytest.mark.parametrize("first", range(300, 10_300, 1000))
def test_many_random_programs_run_as_in_plain_python(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 1000):
        check_program(seed, tmp_path, "together" if seed % 3 else "forward")
