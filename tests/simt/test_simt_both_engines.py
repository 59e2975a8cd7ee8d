"""The simulator and run_ptx, each the other's oracle."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simt import SimtError, launch
from simt.ptx import PtxFault, run_ptx
from tests.simt.kernels.example import from_text
from tests.simt.simt_programs import NUM_THREADS, arguments, run_thread_by_thread, write_program

pytestmark = pytest.mark.needs("numba-cuda")
SEVERAL = 15  # kernels of a test
WHO = ("b == 0", "b == 1", "t == 0", "t == 40", "t == 0 and b == 1", "t == 3 and b == 0")
ORDERS = ("syncthreads", "syncwarp", "threadfence", "threadfence_block")


def random_kernel(seed: int) -> Callable:
    """Threads of two thread blocks that access the same items, in some order or in none."""
    pick = random.Random(seed).choice
    lines = ["t, b, x = cuda.threadIdx.x, cuda.blockIdx.x, 0"]
    for number in range(pick(range(4, 10))):
        item, flag = pick(("0", "1", "t", "t + 64 * b")), pick(("0", "1"))
        access = pick((f"data[{item}] = x + {number}", f"x += data[{item}]"))
        atomic = f"x += cuda.atomic.{pick(('add', 'exch'))}(flags, {flag}, {number})"
        accesses = [f"if {pick(WHO)}:", f"    {pick((access, atomic))}"]
        lines += pick(([f"cuda.{pick(ORDERS)}()"], accesses, accesses))
    return from_text("kernel", "out, data, flags", "\n".join([*lines, "out[t + 64 * b] = x"]), {})


def outcome(run: Callable, kernel: Callable) -> str | list[list[int]]:
    """The check that finds a mistake, or what is in the arrays afterwards."""
    arrays = [np.zeros(size, np.int64) for size in (128, 128, 2)]
    try:
        run(kernel, 2, 64, *arrays)
    except (SimtError, PtxFault) as error:
        return str(error).partition(":")[0]
    return [array.tolist() for array in arrays]


@pytest.mark.rest(keep=["0"])
@pytest.mark.parametrize("first", range(0, 75, SEVERAL))
def test_both_find_a_race_or_compute_the_same(first: int) -> None:
    kernels = [random_kernel(seed) for seed in range(first, first + SEVERAL)]
    found = [outcome(launch, kernel) for kernel in kernels]
    assert [outcome(run_ptx, kernel) for kernel in kernels] == found
    assert 0 < found.count("race") < SEVERAL


@pytest.mark.rest("test_ptx_numba.py: kernels with known answers")
@pytest.mark.parametrize("seed", range(9))
def test_a_random_program_computes_as_plain_python(seed: int, tmp_path: Path) -> None:
    """simt_programs.py: branches, loops and device functions, compiled."""
    module, (out, table) = write_program(seed, tmp_path), arguments()
    run_ptx(module.kernel, 1, NUM_THREADS, out, table)
    assert np.array_equal(out, run_thread_by_thread(module))
