"""What a kernel of this folder comes with: its launch, its arguments, its answer or its fault.

    @example(grid, block, arguments, answer)     a kernel that is right, and what it computes
    @fault(grid, block, arguments, check)        a kernel that is wrong, and the check that sees it
    from_text(name, parameters, body, names)     one of many kernels that differ in a line

In a wrong kernel the comment `# FAULT` marks the line that must be named; for a race, `# FIRST`
marks the other access (none if one line races with itself).
"""

import linecache
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import count
from textwrap import dedent, indent

import numpy as np
from numba import cuda
from numpy.typing import ArrayLike

Arguments = tuple[object, ...]
Draw = Callable[[np.random.Generator], Arguments]
Answer = Callable[..., dict[int, ArrayLike]]
Size = int | tuple[int, ...]
FILES = count()


@dataclass(frozen=True)
class Launch:
    """A kernel and how it is launched.

    arguments  draws fresh arguments: arrays (outputs included) and numbers
    """

    kernel: Callable
    grid: Size
    block: Size
    arguments: Draw
    _: KW_ONLY
    shared_bytes: int = 0

    def draw(self) -> Arguments:
        return self.arguments(np.random.default_rng(0))


@dataclass(frozen=True)
class Example(Launch):
    """A kernel without a fault.

    answer  from its arguments: position of an argument -> what it must hold afterwards
    rtol    allowed relative difference; 0 means equal
    """

    answer: Answer
    _: KW_ONLY
    rtol: float = 0.0


@dataclass(frozen=True)
class Fault(Launch):
    """A kernel with one fault, and the check that must find it: memory, init, race or sync."""

    check: str


EXAMPLES: dict[str, Example] = {}
FAULTS: dict[str, Fault] = {}
# kernel -> (expression, "read" or "write") -> column of a table of simt.traffic -> count
TRAFFIC: dict[str, dict[tuple[str, str], dict[str, int]]] = {}


def example(*how: object, **more: object) -> Callable[[Callable], Callable]:
    """Registers a @cuda.jit kernel as right; what follows it in Example is given here."""
    return partial(_register, EXAMPLES, lambda kernel: Example(kernel, *how, **more))


def fault(*how: object, **more: object) -> Callable[[Callable], Callable]:
    """Registers a @cuda.jit kernel as wrong; what follows it in Fault is given here."""
    return partial(_register, FAULTS, lambda kernel: Fault(kernel, *how, **more))


def _register(table: dict[str, object], make: Callable, kernel: Callable) -> Callable:
    name = kernel.py_func.__name__
    assert name not in table, f"two kernels are called {name}"
    table[name] = make(kernel)
    return kernel


def traffic(counts: dict[tuple[str, str], dict[str, int]]) -> Callable[[Callable], Callable]:
    """Records what each access of an example must cost, by hand; all thread blocks together."""

    def register(kernel: Callable) -> Callable:
        TRAFFIC[kernel.py_func.__name__] = counts
        return kernel

    return register


def from_text(name: str, parameters: str, body: str, names: Mapping[str, object]) -> Callable:
    """A @cuda.jit kernel of this text, in a file that only linecache has: the simulator reads it.

    names  what the kernel may name, for example globals()
    """
    text = f"@cuda.jit\ndef {name}({parameters}):\n{indent(dedent(body).strip(chr(10)), '    ')}\n"
    file = f"<kernel {next(FILES)}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    namespace = {"cuda": cuda, **names}
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def one_and_result(shape: Size, result: Size | None = None) -> Draw:
    """Small random numbers to read, and zeros to write to (of the same shape if not given)."""
    written = shape if result is None else result
    return lambda rng: (rng.integers(0, 10, shape, np.int32), np.zeros(written, np.int32))
