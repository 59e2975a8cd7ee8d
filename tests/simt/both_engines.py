"""Runs numba-cuda's own tests in both engines, and compares what their launches compute.

    python -m tests.simt.both_engines [test_atomics ...]

A launch that is right in the simulator runs again as compiled PTX, with the same numbers. The
arrays must then be equal, or close: floats may differ by ULPS units of their last place, because
compiled code rounds a product and a sum together.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from unittest import mock

import numpy as np
from numba import cuda

from simt.device_array import numbers_of
from simt.printing import print_anything
from simt.ptx import PtxError, PtxFault, run_ptx
from tests.simt import numba_cuda_tests

# refused: run_ptx names what it doesn't support; error: it raises anything else
OUTCOMES = ("equal", "close", "different", "fault", "refused", "error")
ULPS = 8
COMPILE = cuda.compile  # run_ptx needs it; the tests are run without
SECONDS = 60  # a test's time limit; compiling takes longer than running


class BothEngines(numba_cuda_tests.Outcomes):
    """Counts launches in `compared`, by outcome and by kernel and words."""

    def __init__(self) -> None:
        super().__init__()
        self.compared: Counter[tuple[str, str]] = Counter()

    def launch(self, kernel: Callable, *args: object, sizes: tuple, **options: int) -> None:
        arrays = list(arrays_in(args))
        before = [array.copy() for array in arrays]
        super().launch(kernel, *args, sizes=sizes, **options)
        right = [array.copy() for array in arrays]
        fill(arrays, before)
        words = ""
        try:
            with mock.patch.object(cuda, "compile", COMPILE):
                run_ptx(kernel, *sizes, *args, **options)
            outcome = difference(right, arrays)
        except Exception as error:
            outcome = {PtxError: "refused", PtxFault: "fault"}.get(type(error), "error")
            words = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        fill(arrays, right)
        self.compared[outcome, f"{kernel.py_func.__qualname__}  {words}"] += 1


def arrays_in(values: Iterable[object]) -> Iterator[np.ndarray]:
    for value in map(numbers_of, values):
        if isinstance(value, tuple):
            yield from arrays_in(value)
        elif isinstance(value, np.ndarray):
            yield value


def fill(arrays: list[np.ndarray], numbers: list[np.ndarray]) -> None:
    """In place, since copies don't have the same strides, nor share bytes as the arrays may."""
    for array, its_numbers in zip(arrays, numbers, strict=True):
        if array.flags.writeable:
            array[...] = its_numbers


def difference(right: list[np.ndarray], found: list[np.ndarray]) -> str:
    for outcome, ulps in (("equal", 0), ("close", ULPS)):
        if all(agree(a, b, ulps) for a, b in zip(right, found, strict=True)):
            return outcome
    return "different"


def agree(a: np.ndarray, b: np.ndarray, ulps: int) -> bool:
    if a.dtype.kind not in "fc":
        return np.array_equal(a, b)
    return np.allclose(a, b, rtol=ulps * np.finfo(a.dtype).eps, atol=0, equal_nan=True)


def main(modules: list[str]) -> None:
    outcomes = BothEngines()
    with mock.patch.object(numba_cuda_tests, "SECONDS", SECONDS):
        numba_cuda_tests.run(outcomes, modules)
    for outcome in OUTCOMES:
        rows = [(n, words) for (its, words), n in outcomes.compared.items() if its == outcome]
        print(f"{sum(n for n, _ in rows):5} {outcome}")
        for n, words in rows if outcome not in OUTCOMES[:2] else ():
            print(f"      {n:4} {words}")


if __name__ == "__main__":
    print_anything()
    main(sys.argv[1:])
