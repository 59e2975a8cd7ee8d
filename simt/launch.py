"""launch runs a Numba CUDA kernel here, with checks, and returns a report."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from simt.kernel_arguments import (
    arrays_of,
    convert,
    forget,
    function_of,
    is_output,
    named,
    plain_number,
)
from simt.launch_options import (
    Order,
    Size,
    as_tuple,
    known_checks,
    known_order,
    require_grid_fits,
    require_limits,
    require_shared_fits,
    three_sizes,
)
from simt.machine import CHECKS, Machine
from simt.moments import with_moments
from simt.names import refuse_numbas_simulator
from simt.program import Program, Watch
from simt.recorder import Recorder
from simt.report import Report
from simt.signatures import as_passed, declared, types_of
from simt.snapshots import Index
from simt.trace import Trace, block_number
from simt.tuples import flattened, refilled
from simt.writes import Writes

Blocks = int | Index | list[int | Index] | range | str  # thread blocks; "all"


def launch(
    kernel: Callable,
    grid: Size,
    block: Size,
    *args: object,
    shared_bytes: int = 0,
    checks: str | Sequence[str] = CHECKS,
    order: Order = "together",
    collect: bool = False,
    unwritten: str | Sequence[str] = (),
    watch: Watch | Sequence[Watch] = (),
    names: str | Sequence[str] = (),
    trace: Blocks | None = None,
    float64: bool = False,
    exited_may_skip: bool = False,
    shuffles_order_memory: bool = False,
    max_turns: int | None = None,
) -> Report:
    """Runs kernel[grid, block, 0, shared_bytes](*args) in this process, without a GPU.

    kernel  a @cuda.jit kernel, or its plain function; unmodified
    grid    number of thread blocks: one number, or up to three (x, y, z)
    block   number of threads of each: at most 1,024
    args    NumPy arrays, records and torch CPU tensors (written in place), numbers, tuples of these
    shared_bytes  size of the dynamic shared memory
    checks  "memory": indices are in bounds, and vectors aligned. A negative index is out of
            bounds unless it is a constant: a[-1]. (Numba counts any negative index from the end of
            its axis; so does the simulator without this check)
            "init":   nothing is read before it was written
            "race":   no two threads access one address, one of them writing, unless a barrier, a
                      syncwarp that names both, or fences and an atomic operation order them
            "sync":   every thread that must reach a barrier or warp function does
    order   "together": the threads of a block execute statement by statement, side by side
            (fast); as long as nothing is found, so do those of several thread blocks.
            "forward", "reverse" or a number (a seed): one thread block after another in that
            order, and in each, one warp after another, up to the next barrier. Needs greenlet. A
            kernel without races computes the same, apart from what it takes from atomics.
            [1, 0, 2, 3]: these warps one after another, in each thread block.
    collect False: the first finding is raised; True: the report keeps all of them, once per pair
            of places
    unwritten  array arguments that hold nothing yet (np.empty): reading them is a finding
    watch   statements before which to copy the variables: the number of their first line, a piece
            of its text, or "mark: scores" for the statement below the comment line
            `# mark: scores`; for a loop, once, before it starts. "end": when a thread block ends.
            names: only these variables
    trace   thread blocks in which every access is recorded: a number (x fastest), an index
            (x, y), a list of these, or "all". The others run at full speed
    float64 True: the trace also has every operation in float64 (see float64.py)
    exited_may_skip        a thread that has returned may miss a later barrier
    shuffles_order_memory  shuffles order memory as syncwarp does (no GPU promises this)
    max_turns              loop turns of one thread block before it counts as hanging. By default
                           1,000,000, and 10,000 of a `while` loop in which nothing changes that
                           its condition, or that of an `if` inside it, depends on

    Raises SimtError for a finding; Unsupported, with the line, for what the simulator doesn't
    know; ZeroDivisionError if a lane divides an integer by zero; IndexError if a lane leaves the
    memory and that isn't checked; TypeError and ValueError for arguments that no launch accepts.
    """
    checks, watch = known_checks(checks), as_tuple(watch)
    refuse_numbas_simulator()
    grid, block = three_sizes("grid", grid), three_sizes("block", block)
    order = known_order(order, block)
    require_limits(grid, block, shared_bytes)
    machine = Machine(
        grid=grid,
        block=block,
        checks=checks,
        order=order,
        collect=collect,
        shared_bytes=shared_bytes,
        exited_may_skip=exited_may_skip,
        shuffles_order_memory=shuffles_order_memory,
        max_turns=max_turns,
        recorder=None if trace is None else Recorder(_traced_blocks(trace, grid), grid),
        float64=float64,
    )
    function = function_of(kernel)
    by_name = named(function, args)
    parts = flattened(by_name)
    arrays = arrays_of(parts)
    numbers = {n: plain_number(n, value) for n, value in parts.items() if n not in arrays}
    types = types_of(kernel, (refilled(n, v, parts | arrays) for n, v in by_name.items()))
    with without_search_for_garbage():
        program = Program(kernel, machine, watch, as_tuple(names), types)
        require_shared_fits(machine.static_bytes, shared_bytes)
        if "cg.this_grid" in program.called:
            require_grid_fits(grid, block, machine.static_bytes + shared_bytes)
        program.require_unchanged()
        written = Writes(program).parameters(kernel)
    views, program.on_device = convert(machine, parts, arrays, written, program.device_arrays)
    arguments = {name: refilled(name, v, numbers | views) for name, v in by_name.items()}
    if declared(kernel):
        values = map(as_passed, arguments.values(), types)
        arguments = dict(zip(arguments, values, strict=True))
    outputs = (name for name, value in zip(by_name, args, strict=True) if is_output(value))
    for name in (*as_tuple(unwritten), *outputs):
        forget(name, arguments)
    try:
        program.run(arguments)
    finally:
        program.forget_translations()
    traced = machine.recorder and _trace_of(function, program)
    return Report(
        kernel=function.__name__,
        grid=machine.grid,
        block=machine.block,
        order=str(order),
        checks=checks,
        findings=with_moments(machine.findings, machine.moments, traced)
        if traced
        else machine.findings,
        snapshots=program.snapshots,
        trace=traced,
    )


@contextmanager
def without_search_for_garbage() -> Iterator[None]:
    """A translation is thousands of objects. Python would search them for garbage, find none, and
    then search all other objects of the process, too: that took longer than a small launch."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _traced_blocks(blocks: Blocks, grid: tuple[int, int, int]) -> frozenset[Index]:
    """The indices of the thread blocks that are meant."""
    if isinstance(blocks, str) and blocks == "all":
        return frozenset(np.ndindex(*grid))
    several = blocks if isinstance(blocks, list | range) else [blocks]
    numbers = [block_number("trace", block, grid) for block in several]
    return frozenset(tuple(map(int, np.unravel_index(n, grid[::-1])[::-1])) for n in numbers)


def _trace_of(function: Callable, program: Program) -> Trace:
    machine, file = program.machine, function.__code__.co_filename
    sources = [*program.sources.values()]
    sizes = machine.grid, machine.block
    return machine.recorder.trace(function.__name__, file, *sizes, machine.places, sources)
