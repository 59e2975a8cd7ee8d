"""Thread blocks side by side: what comes out is what they give one after another.

With a mistake they fall back, and then all is as it was.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from simt import launch, program
from simt.batched_blocks import run_batched
from tests.simt.helpers import N, floats, kernel, zeros
from tests.simt.kernels.example import EXAMPLES, FAULTS, Arguments, Fault, Size, from_text
from tests.simt.kernels.faults import NAMES
from tests.simt.simt_programs import arguments, write_program

LANES = "simt.batched_blocks.LANES"  # of a wide gang, at most


def runs_batched(
    kernel: Callable, grid: Size, block: Size, draw: Callable[[], Arguments], **options
) -> bool | None:
    """Whether a launch ended side by side; None if that was not tried. In any case all must be as
    it is one after another."""
    tried = []

    def noted(*args: object) -> bool:
        tried.append(run_batched(*args))
        return tried[-1]

    with mock.patch.object(program, "run_batched", noted):
        found = outcome(kernel, grid, block, draw(), **options)
    with mock.patch.object(program, "may_run_batched", return_value=False):
        np.testing.assert_equal(found, outcome(kernel, grid, block, draw(), **options))
    return tried[0] if tried else None


def outcome(kernel: Callable, grid: Size, block: Size, args: Arguments, **options) -> list:
    """The arguments afterwards, and what was raised or what the report says."""
    try:
        report = launch(kernel, grid, block, *args, **options)
    except Exception as found:  # a finding, or anything else: it must be the same
        return [args, f"{type(found).__name__}: {found}"]
    snapshots = [
        (s.block, s.line, s.threads, {n: (v.dtype, v.tolist()) for n, v in s.values.items()})
        for s in report.snapshots
    ]
    trace = report.trace and [report.trace.records.tolist(), report.trace.ways]
    return [args, report.findings, snapshots, trace]


# Kernels without a mistake -------------------------------------------------------------------


def test_every_right_kernel_does_the_same() -> None:
    ended = [
        runs_batched(
            *(one.kernel, one.grid, one.block, one.draw),
            shared_bytes=one.shared_bytes,
            watch="end",
        )
        for one in EXAMPLES.values()
    ]
    assert False not in ended
    assert ended.count(True) >= 5


def test_random_programs_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LANES, 64)
    for seed in range(20):
        kernel = write_program(seed, tmp_path).kernel
        assert runs_batched(kernel, 3, 32, lambda: arguments(96))
    assert runs_batched(kernel, 3, 40, lambda: arguments(120)) is None, "a part of a warp"


START = """
b = cuda.blockIdx.x
x = numbers[b, t]
out[b, t] += 1
s = cuda.shared.array((2, 32), float32)
own = cuda.local.array((2, 3), float32)
s[0, t] = s[1, t] = b
own[b % 2, 0] = own[b % 2, 1] = t
cuda.syncthreads()
"""
SIDE_BY_SIDE = (
    # They may wait at different times.
    "for i in range(b): s[i % 2, t] = x; cuda.syncthreads(); out[b, t] += s[i % 2, 31 - t]",
    # A variable that holds numbers, or arrays of one shape
    "part, first = out[0, :b], out[0, :2]\ny = part is first",
    "row = s[t % 2]",
    "if t < 9 + b: row = s[1]",
    "row = own[b % 2, :t % 2]",
    # Atomic operations whose order can't matter
    "for i in range(3): cuda.atomic.add(counts, (t + i) % 8, t)",
    "y = cuda.atomic.sub(s, (0, t % 4), x)",
    "for i in range(3): cuda.atomic.add(sums, 2 * b + t % 2, x)",
)
FALL_BACK = (
    "y = numbers if b == 0 else out",
    "y = None if b == 0 else b\nz = 1 if y is None else y",
    "if t >= 20 + b:\n    return\ncuda.syncthreads()",
    "for i in range(3): cuda.atomic.add(sums, t % 4, x * i)",
    "cuda.atomic.add(counts, t % 8, b)\ncuda.atomic.max(counts, t % 8, 2 * b)",
    "cuda.atomic.max(sums, 0, x)\nif sums[0] > 1:\n    sums[1] = 1",
    # A carry goes from the bytes of one item into those of the other.
    "cuda.atomic.add(counts, t % 8, 1 << 30)\ncuda.atomic.add(shifted, t % 8, 77)",
    # More reads than wait to be entered
    "for i in range(40): x += s[0, t]\ns[0, 31 - t] = x",
    # Errors
    "y = t // (b - 5)",
    "while b == 5:\n    t += 1",
    "if b == 5:\n    out[0.5] = 1",
)
ALONE = (
    "if b == 0: numbers[0, t] = cuda.atomic.add(sums, 0, 1)",
    "if b == 0: cuda.threadfence(), cuda.atomic.add(sums, 0, 1)",
    "if b == 0: cuda.syncwarp()",
    "if b == 0: print(t)",
)


@pytest.mark.parametrize(
    ("line", "batched"),
    [
        *((line, True) for line in SIDE_BY_SIDE),
        *((line, False) for line in FALL_BACK),
        *((line, None) for line in ALONE),
    ],
)
def test_what_needs_one_block_after_another_gets_it(
    line: str, batched: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread block that is traced runs once more, alone."""

    def draw() -> Arguments:
        memory = np.zeros(34, np.int8)
        counts, shifted = memory[:32].view(np.int32), memory[2:].view(np.int32)
        numbers = floats(6, 32) * np.float32(10) ** np.arange(-3, 3)[:, None]
        return counts, shifted, zeros(12), zeros(6, 32), numbers.astype(np.float32)

    one = kernel("counts, shifted, sums, out, numbers", START + line)
    monkeypatch.setattr(LANES, 128)
    options = {"watch": "end", "trace": [1], "max_turns": 100}
    assert runs_batched(one, 6, 32, draw, **options) is batched


# Kernels with a mistake ----------------------------------------------------------------------


def in_one_block_of_six(fault: Fault) -> Callable:
    """A kernel whose thread block 4 does what the fault's only one does; the others do nothing."""
    _, _, body = inspect.getsource(fault.kernel.py_func).partition(":\n")
    return from_text("one_of_six", "a, out", f"if cuda.blockIdx.x == 4:\n{body}", NAMES)


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.block == N])
# Without checks, it must compute the same as one after another.
@pytest.mark.parametrize("options", [{"collect": True, "watch": "end"}, {"checks": ()}])
def test_a_mistake_is_left_to_the_blocks_alone(name: str, options: dict) -> None:
    one = FAULTS[name]
    kernel, grid = (one.kernel, one.grid) if one.grid != 1 else (in_one_block_of_six(one), 6)
    batched = runs_batched(kernel, grid, N, one.draw, shared_bytes=one.shared_bytes, **options)
    assert batched is not True  # with atomics and syncwarps, it was not even tried
