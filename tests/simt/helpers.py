"""Kernels and helpers that several tests of the simulator share."""

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import numpy as np
from numba import cuda, float32

from simt import Report, Trace, launch
from simt.machine import CHECKS, Machine
from simt.program import Program
from simt.writes import Writes
from tests.simt.kernels.example import EXAMPLES, TRAFFIC, Example, Fault, from_text

N = 64
# A program with a race: thread 0 reads s[63], which thread 63 wrote
IMPORTS = "import numpy as np\nfrom numba import cuda, float32\na = np.arange(64, dtype=np.float32)"
REVERSE = """@cuda.jit
def reverse(out, a):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    out[t] = s[63 - t]
"""


@cuda.jit
def double(out, a):
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i] * float32(2)


@cuda.jit
def block_sum(out, a):
    s = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    s[t] = a[cuda.blockIdx.x, t]
    cuda.syncthreads()
    for i in range(N):
        total += s[i]
    if t == 0:
        out[cuda.blockIdx.x] = total


@cuda.jit
def shifted(out, a):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = a[i, 1]
    cuda.syncthreads()
    if t < 40:
        out[i] = cuda.shfl_down_sync(cuda.activemask(), s[63 - t], 3)


def kernel(parameters: str, body: str, **names: object) -> Callable:
    """A kernel of a few lines, in which t is the thread."""
    known = {"np": np, "float32": float32, "N": N, **names}
    return from_text("kernel", parameters, "t = cuda.threadIdx.x\n" + dedent(body), known)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def trace_of_shifted(**options) -> Trace:
    a = np.arange(256, dtype=np.float32).reshape(2, 128).T  # strides 1 and 128 items
    options = {"trace": 1, "checks": (), **options}
    return launch(shifted, 2, 64, zeros(128), a, **options).trace


def run(one: Example | Fault, *args: object, **options: object) -> Report:
    """A launch of a kernel of tests/simt/kernels, by default with arguments of its own."""
    where = one.kernel, one.grid, one.block
    return launch(*where, *(args or one.draw()), shared_bytes=one.shared_bytes, **options)


def traced(name: str, order: str | int = "together", **options: object) -> Trace:
    return run(EXAMPLES[name], trace="all", order=order, **options).trace


def wrong_counts(simt: ModuleType, name: str, trace: object) -> list[str]:
    """What the tables of a traced kernel say otherwise than its record in TRAFFIC."""
    found, counts_of = {}, TRAFFIC.get(name, {})
    for table in (simt.global_traffic(trace), simt.shared_traffic(trace)):
        for row in table.rows:
            named = dict(zip(table.columns, row, strict=True))
            found[named["expression"], named["does"]] = named
    if counts_of and found.keys() != counts_of.keys():
        return [f"accesses: {found.keys() ^ counts_of.keys()} are not in both"]
    return [
        f"{access}: {column} is {found[access].get(column)}, not {count}"
        for access, counts in counts_of.items()
        for column, count in counts.items()
        if found[access].get(column) != count
    ]


def may_be_written(kernel: Callable) -> set[str]:
    """The arguments of a kernel that may be written to, as far as its text tells."""
    names = ("collect", "shared_bytes", "exited_may_skip", "shuffles_order_memory", "max_turns")
    options = dict.fromkeys(names, 0)  # nothing runs
    machine = Machine((1, 1, 1), (32, 1, 1), CHECKS, "together", recorder=None, **options)
    program = Program(kernel.py_func, machine, (), ())
    return set(Writes(program).parameters(kernel.py_func))


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def imported(path: Path, text: str) -> ModuleType:
    """A module of this text, in a file of this path."""
    path.write_text(text, encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
