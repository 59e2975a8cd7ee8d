"""The small kernels of tests/simt_kernels on a GPU: are its answers those of the simulator?

They are read from the working tree; the simulator needs nothing there but NumPy and Numba.
"""

import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np

from pa_tutorial.bench.process_pool import WORKERS, run_in_pool
from pa_tutorial.simt import launch

TESTS = Path(__file__).parents[2] / "tests"
# A GPU fuses a * b + c into one rounding; its exp and sin differ in the last digits.
TOLERANCE = {np.dtype(np.float16): 2e-3, np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-12}
AT_ONCE = 5  # kernels that are one item of work

Run = Callable[[object, tuple], None]  # an example and its arguments, written in place


def examples() -> dict[str, object]:
    """Every kernel of tests/simt_kernels that has an answer."""
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    from simt_kernels.example import EXAMPLES

    return EXAMPLES


def simulate(example: object, args: tuple) -> None:
    launch(example.kernel, example.grid, example.block, *args, shared_bytes=example.shared_bytes)


def on_the_gpu(example: object, args: tuple) -> None:
    """Numba copies the arrays there and back."""
    from numba import cuda

    example.kernel[example.grid, example.block, 0, example.shared_bytes](*args)
    cuda.synchronize()


def cannot_be_copied(args: tuple) -> str | None:
    """Why a launch with these arrays of the host would not be the same on a GPU."""
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    if any(np.shares_memory(a, b) for a, b in combinations(arrays, 2)):
        return "its arrays share memory; copies would not"
    if not all(a.flags.c_contiguous or a.flags.f_contiguous for a in arrays):
        return "Numba copies no array with gaps"
    return None


def difference(example: object, run: Run) -> str | None:
    """What is wrong with the answer of `run`, held against the simulator's; None if nothing."""
    expected, found = example.draw(), example.draw()
    simulate(example, expected)
    try:
        run(example, found)
        for position in example.answer(*example.draw()):
            dtype = expected[position].dtype
            rtol = max(example.rtol, TOLERANCE.get(dtype, 0.0))
            np.testing.assert_allclose(found[position], expected[position], rtol=rtol, atol=rtol)
    except Exception as error:  # whatever happens there is a line of the report
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return None


def differences(names: tuple[str, ...], run: Run = on_the_gpu) -> dict[str, str]:
    """Kernel -> what is wrong with its answer, for those where something is."""
    found = {name: difference(examples()[name], run) for name in names}
    return {name: problem for name, problem in found.items() if problem}


def compare(
    seconds: float,
    workers: int = WORKERS,
    work: Callable[[tuple[str, ...]], dict[str, str]] = differences,
) -> dict[str, object]:
    """Runs every kernel; returns how many agree, and for the others why not."""
    reasons = {name: cannot_be_copied(each.draw()) for name, each in examples().items()}
    left_out = {name: reason for name, reason in reasons.items() if reason}
    names = [name for name, reason in reasons.items() if not reason]
    groups = [tuple(names[i : i + AT_ONCE]) for i in range(0, len(names), AT_ONCE)]
    done = run_in_pool(work, groups, workers, seconds)
    different = {name: why for found in done.results.values() for name, why in found.items()}
    failed = {" ".join(groups[place]): why for place, why in done.failed.items()}
    for place in done.left_out:
        left_out |= dict.fromkeys(groups[place], "no time")
    equal = sum(len(groups[place]) for place in done.results) - len(different)
    print(f"{equal} kernels: equal answers; {len(different)} differ, {len(left_out)} left out")
    for name, why in (different | failed).items():
        print(f"  {name}: {why}")
    results = {"equal": equal, "different": different, "failed": failed, "left_out": left_out}
    return results | {"wrong": [*different, *failed]}
