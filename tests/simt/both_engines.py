"""Runs the launches of numba-cuda's own tests in both engines, and compares what they compute.

    python -m tests.simt.both_engines [test_atomics ...]

A launch that is right in the simulator runs once more, from the same numbers, as compiled PTX. The
arrays must be equal afterwards; floats may differ by ULPS units in their last place, because
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

# refused: run_ptx names what it can't do. fault: it finds a mistake. error: any other exception
OUTCOMES = EQUAL, CLOSE, DIFFERENT, FAULT, REFUSED, ERROR = (
    *("equal", "close", "different", "fault", "refused", "error"),
)
ULPS = 8
SECONDS = 60  # for a test; its kernels are compiled in this time, too
COMPILE = cuda.compile  # which the tests must do without, and run_ptx needs


class BothEngines(numba_cuda_tests.Outcomes):
    """Counts in `found`, as (outcome, kernel and words), what became of each launch in PTX."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[str, str]] = Counter()

    def launch(self, kernel: Callable, *args: object, **options: object) -> None:
        arrays = list(arrays_in(args))
        before = [array.copy() for array in arrays]
        super().launch(kernel, *args, **options)
        right = [array.copy() for array in arrays]
        set_all(arrays, before)
        outcome, words = run_compiled(kernel, *args, **options)
        if not outcome:
            outcome = compared(right, arrays)
        set_all(arrays, right)
        self.found[outcome, f"{kernel.py_func.__qualname__}{words}"] += 1


def arrays_in(values: Iterable[object]) -> Iterator[np.ndarray]:
    """The arrays among the arguments of a launch, also those in tuples."""
    for value in map(numbers_of, values):
        if isinstance(value, tuple):
            yield from arrays_in(value)
        elif isinstance(value, np.ndarray):
            yield value


def set_all(arrays: Iterable[np.ndarray], numbers: Iterable[np.ndarray]) -> None:
    """Set what the arrays hold. (As copies, they would lose their strides and what they share.)"""
    for array, its_numbers in zip(arrays, numbers, strict=True):
        if array.flags.writeable:
            array[...] = its_numbers


def run_compiled(
    kernel: Callable, *args: object, sizes: tuple, shared_bytes: int = 0
) -> tuple[str, str]:
    """Returns the outcome and its words if run_ptx raises, else two empty strings."""
    try:
        with mock.patch.object(cuda, "compile", COMPILE):
            run_ptx(kernel, *sizes, *args, shared_bytes=shared_bytes)
    except Exception as error:
        outcome = {PtxError: REFUSED, PtxFault: FAULT}.get(type(error), ERROR)
        return outcome, f": {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return "", ""


def compared(right: list[np.ndarray], found: list[np.ndarray]) -> str:
    for outcome, ulps in ((EQUAL, 0), (CLOSE, ULPS)):
        if all(agree(*pair, ulps) for pair in zip(right, found, strict=True)):
            return outcome
    return DIFFERENT


def agree(a: np.ndarray, b: np.ndarray, ulps: int) -> bool:
    if a.dtype.names:
        return all(agree(a[name], b[name], ulps) for name in a.dtype.names)
    if a.dtype.kind not in "fc":
        return np.array_equal(a, b)
    return np.allclose(a, b, rtol=ulps * np.finfo(a.dtype).eps, atol=0, equal_nan=True)


if __name__ == "__main__":
    print_anything()
    with (
        mock.patch.object(numba_cuda_tests, "Outcomes", BothEngines),
        mock.patch.object(numba_cuda_tests, "SECONDS", SECONDS),
    ):
        found = numba_cuda_tests.run(sys.argv[1:]).found
    for outcome in OUTCOMES:
        rows = [(count, words) for (its, words), count in found.items() if its == outcome]
        print(f"{sum(count for count, _ in rows):5} launches {outcome}")
        for count, words in rows if outcome not in (EQUAL, CLOSE) else ():
            print(f"      {count:4} {words}")
