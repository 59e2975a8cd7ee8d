"""What a kernel of this folder comes with: its launch, its arguments, its answer or its fault.

    @example(grid, block, arguments, answer)     a kernel that is right, and what it computes
    @fault(check, grid, block, arguments)        a kernel that is wrong, and the check that sees it

In a wrong kernel the comment `# FAULT` marks the line that must be named; for a race, `# FIRST`
marks the other access (none if one line races with itself).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Arguments = tuple[object, ...]
Size = int | tuple[int, ...]


@dataclass(frozen=True)
class Example:
    """A kernel without a fault.

    arguments  draws fresh arguments: arrays (outputs included) and numbers
    answer     from those arguments: position of an argument -> what it must hold afterwards
    rtol       allowed relative difference; 0 means equal
    """

    kernel: Callable
    grid: Size
    block: Size
    arguments: Callable[[np.random.Generator], Arguments]
    answer: Callable[..., dict[int, np.ndarray]]
    shared_bytes: int = 0
    rtol: float = 0.0

    def draw(self) -> Arguments:
        return self.arguments(np.random.default_rng(0))


@dataclass(frozen=True)
class Fault:
    """A kernel with one fault, and the check that must find it: memory, init, race or sync."""

    kernel: Callable
    check: str
    grid: Size
    block: Size
    arguments: Callable[[np.random.Generator], Arguments]
    shared_bytes: int = 0

    def draw(self) -> Arguments:
        return self.arguments(np.random.default_rng(0))


EXAMPLES: dict[str, Example] = {}
FAULTS: dict[str, Fault] = {}
# kernel -> (expression, "read" or "write") -> column of a table of simt.traffic -> count
TRAFFIC: dict[str, dict[tuple[str, str], dict[str, int]]] = {}


def example(
    grid: Size,
    block: Size,
    arguments: Callable[[np.random.Generator], Arguments],
    answer: Callable[..., dict[int, np.ndarray]],
    shared_bytes: int = 0,
    rtol: float = 0.0,
) -> Callable[[Callable], Callable]:
    """Registers a @cuda.jit kernel as right."""

    def register(kernel: Callable) -> Callable:
        name = kernel.py_func.__name__
        assert name not in EXAMPLES, f"two examples are called {name}"
        EXAMPLES[name] = Example(kernel, grid, block, arguments, answer, shared_bytes, rtol)
        return kernel

    return register


def traffic(counts: dict[tuple[str, str], dict[str, int]]) -> Callable[[Callable], Callable]:
    """Records what each access of an example must cost, by hand; all thread blocks together."""

    def register(kernel: Callable) -> Callable:
        TRAFFIC[kernel.py_func.__name__] = counts
        return kernel

    return register


def fault(
    check: str,
    grid: Size,
    block: Size,
    arguments: Callable[[np.random.Generator], Arguments],
    shared_bytes: int = 0,
) -> Callable[[Callable], Callable]:
    """Registers a @cuda.jit kernel as wrong, and by which check."""

    def register(kernel: Callable) -> Callable:
        name = kernel.py_func.__name__
        assert name not in FAULTS, f"two faults are called {name}"
        FAULTS[name] = Fault(kernel, check, grid, block, arguments, shared_bytes)
        return kernel

    return register
