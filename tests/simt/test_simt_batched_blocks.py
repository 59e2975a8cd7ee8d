"""Thread blocks side by side: what comes out is what they give one after another.

With a mistake they fall back, and then all is as it was.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from unittest import mock

import numpy as np
import pytest
from numba import cuda, float32, int16, int32

from simt import Report, Unsupported, launch, program
from simt.batched_blocks import WideGang
from tests.simt.helpers import N, double, floats, kernel, zeros
from tests.simt.kernels.example import EXAMPLES, FAULTS, Arguments, Fault, Size, from_text
from tests.simt.kernels.faults import NAMES
from tests.simt.simt_programs import arguments, run_thread_by_thread, write_program


class Trial:
    """Launches, and notes which ran side by side.

    batched  of the last launch: None if it was not tried side by side, else whether it ended
    said     what it raised, as text
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch, self.batched, self.said = monkeypatch.setattr, None, ""
        run = program.run_batched

        def noted(*args: object) -> bool:
            self.batched = run(*args)
            return self.batched

        self.patch(program, "run_batched", noted)

    def lanes(self, number: int) -> None:
        """Of a wide gang, at most."""
        self.patch("simt.batched_blocks.LANES", number)

    def both(self, kernel, grid, block, draw: Callable[[], Arguments], **options) -> Report | None:
        """Side by side and one after another; they must agree. Returns the first report."""
        self.batched = None
        report, *found = outcome(kernel, grid, block, draw(), **options)
        with mock.patch.object(program, "may_run_batched", return_value=False):
            _, *expected = outcome(kernel, grid, block, draw(), **options)
        np.testing.assert_equal(found, expected)
        self.said = found[0]
        return report


def outcome(
    kernel: Callable, grid: Size, block: Size, args: Arguments, **options
) -> tuple[Report | None, str, Arguments, list]:
    """The report, what was raised, the arguments afterwards, and what the report says."""
    try:
        report = launch(kernel, grid, block, *args, **options)
    except Exception as found:  # a finding, or anything else: it must be the same
        return None, f"{type(found).__name__}: {found}", args, []
    snapshots = [
        (s.block, s.line, s.threads, {n: (v.dtype, v.tolist()) for n, v in s.values.items()})
        for s in report.snapshots
    ]
    trace = report.trace and [report.trace.records.tolist(), report.trace.ways]
    return report, "", args, [report.findings, snapshots, trace]


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Trial:
    return Trial(monkeypatch)


# Kernels without a mistake -------------------------------------------------------------------


def test_every_right_kernel_does_the_same(trial: Trial) -> None:
    ended = []
    for name, one in EXAMPLES.items():
        options = {"shared_bytes": one.shared_bytes, "watch": "end"}
        assert trial.both(one.kernel, one.grid, one.block, one.draw, **options).clean, name
        ended.append(trial.batched)
    assert False not in ended
    assert ended.count(True) >= 5


def test_random_programs_run_as_in_plain_python(trial: Trial, tmp_path: Path) -> None:
    trial.lanes(64)
    for seed in range(20):
        module = write_program(seed, tmp_path)
        out, table = arguments(96)
        launch(module.kernel, 3, 32, out, table)
        assert trial.batched
        np.testing.assert_array_equal(out, run_thread_by_thread(module, 3, 32))


@cuda.jit
def sums_of_rows(out, a, lengths):
    """As many rounds, with a barrier in each, as the thread block's length says.

    out is read and written: a thread block that runs twice counts twice.
    """
    s = cuda.shared.array((2, N), float32)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    for i in range(lengths[b]):
        s[i % 2, t] = a[b, i, t]
        cuda.syncthreads()
        out[b, t] += s[i % 2, N - 1 - t]


LENGTHS = np.array([3, 0, 8, 1, 5], np.int32)


@pytest.mark.parametrize("lanes", [128, 4096])
def test_thread_blocks_may_wait_at_different_times(lanes: int, trial: Trial) -> None:
    """And those that are traced run once more, alone."""
    trial.lanes(lanes)
    options = {"watch": ("out[b, t] +=", "end"), "trace": [1, 4], "max_turns": max(LENGTHS)}
    report = trial.both(
        sums_of_rows, 5, N, lambda: (floats(5, N), floats(5, 8, N), LENGTHS), **options
    )
    assert trial.batched
    assert len(report.at("out[b, t] +=")) == sum(LENGTHS)
    assert len(report.trace.records) > 0


ARRAYS = """
b = cuda.blockIdx.x
out[b, t] += 1
s, own = cuda.shared.array((2, 32), float32), cuda.local.array((2, 3), float32)
s[0, t] = s[1, t] = b
own[b, 0] = own[b, 1] = t
"""


@cuda.jit(device=True)
def some(b):
    if b > 0:
        return b


@pytest.mark.parametrize(
    ("batched", "line"),
    [
        (True, "x = cuda.activemask()"),
        (True, "row, first = a[b], a[0]\nx = row is first"),
        (True, "part, first = a[0, :b], a[0, :2]\nx = part is first"),
        (True, "row = s[b]"),
        (True, "row = s[b, :b]"),
        (True, "row = s[t % 2]"),  # the lanes have different rows
        (True, "if t < 9 + b: row = s[1]"),
        (True, "row = own[b]"),
        (True, "row = own[b, :t % 2]"),
        (False, "x = a if b == 0 else out\ny = len(x)"),
        (False, "x = (a, out)[b]\ny = len(x)"),
        (False, "x = (1, 2.5)[b]"),
        (False, "x = None if b == 0 else b\ny = 1 if x is None else x"),
        (False, "x = some(b)"),
        (False, "x = (1, 2) if b == 0 else (1, 2, 3)\ny = len(x)"),
    ],
)
def test_a_variable_of_each_thread_block_is_its_own(line: str, batched: bool, trial: Trial) -> None:
    """Side by side, if it holds numbers, or arrays of one shape."""
    own = kernel("out, a", ARRAYS + line, some=some)
    assert trial.both(own, 2, 32, lambda: (zeros(2, 32), floats(2, 32)), watch="end").clean
    assert trial.batched is batched


# When it is tried ----------------------------------------------------------------------------


RETURN = "if t >= 20 + b:\n    return\ncuda.syncthreads()"


@pytest.mark.parametrize(
    ("line", "num_threads", "options", "batched"),
    [
        ("", N, {}, True),
        ("", N, {"order": "forward"}, None),
        ("", N, {"trace": "all"}, None),
        ("", N, {"shuffles_order_memory": True}, None),
        ("", 48, {}, None),  # a part of a warp
        (RETURN, 32, {}, False),
        (RETURN, 32, {"exited_may_skip": True}, True),
        ("if b == 0: a[t] = cuda.atomic.add(a, t, 1)", 32, {}, None),
        ("if b == 0: cuda.threadfence(), cuda.atomic.add(a, t, 1)", 32, {}, None),
        ("if b == 0: cuda.syncwarp()", 32, {}, None),
        ("if b == 0: a[t] = cuda.syncthreads_count(t)", 32, {}, None),
        ("if b == 0: print(t)", 32, {}, None),
    ],
    ids=str,
)
def test_what_needs_one_block_after_another_gets_it(
    line: str, num_threads: int, options: dict, batched: bool | None, trial: Trial
) -> None:
    one = kernel("out, a", f"b = cuda.blockIdx.x\n{line}\nout[b, t] = 2 * t")
    trial.both(one, 6, num_threads, lambda: (zeros(6, N), floats(N)), **options)
    assert trial.batched is batched


@pytest.mark.parametrize(
    ("batched", "line"),
    [
        (True, "for i in range(3): cuda.atomic.add(counts, (t + i) % 8, t)"),
        (True, "for i in range(3): x += cuda.atomic.sub(s, i, t)"),
        (True, "cuda.atomic.add(sums, t % 4, x)"),
        (True, "for i in range(3): cuda.atomic.add(sums, 2 * b + t % 2, x)"),
        (True, "cuda.atomic.exch(counts, t % 8, 10 * b)"),
        # Here the order of the thread blocks counts.
        (False, "for i in range(3): cuda.atomic.add(sums, t % 4, x * i)"),
        (False, "for i in range(3): cuda.atomic.exch(counts, t % 8, 10 * b + i)"),
        (False, "cuda.atomic.add(counts, t % 8, b)\ncuda.atomic.max(counts, t % 8, 2 * b)"),
        (False, "cuda.atomic.max(sums, 0, x)\nif sums[0] > 1:\n    sums[1] = 1"),
        # A carry goes from the bytes of one item into those of the other.
        (False, "cuda.atomic.add(counts, t % 8, 1 << 30)\ncuda.atomic.add(shifted, t % 8, 77)"),
    ],
)
def test_atomic_operations_are_batched_if_the_order_of_blocks_cant_matter(
    line: str, batched: bool, trial: Trial
) -> None:
    start = """
        b, x = cuda.blockIdx.x, numbers[cuda.grid(1)]
        s = cuda.shared.array(32, int32)
        s[t] = t
        cuda.syncthreads()
        """
    end = "cuda.syncthreads()\nshared[cuda.grid(1)] = s[t] + x"
    text = "\n".join([dedent(start), line, end])
    atomics = kernel("counts, shifted, sums, shared, numbers", text, int32=int32)

    def draw() -> Arguments:
        memory = np.zeros(34, np.int8)
        counts, shifted = memory[:32].view(np.int32), memory[2:].view(np.int32)
        numbers = (floats(192) * 10 ** np.linspace(-3, 3, 192)).astype(np.float32)
        return counts, shifted, zeros(12), zeros(192), numbers

    trial.both(atomics, 6, 32, draw)
    assert trial.batched is batched


# Kernels with a mistake ----------------------------------------------------------------------


def in_one_block_of_six(fault: Fault) -> Callable:
    """A kernel whose thread block 4 does what the fault's only one does; the others do nothing."""
    _, _, body = inspect.getsource(fault.kernel.py_func).partition(":\n")
    return from_text("one_of_six", "a, out", f"if cuda.blockIdx.x == 4:\n{body}", NAMES)


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.block == N])
@pytest.mark.parametrize(
    ("lanes", "options"),
    [
        (N, {"collect": True, "watch": "end"}),
        (4096, {}),
        (4096, {"checks": ()}),  # it must compute the same as one after another
    ],
)
def test_a_mistake_is_left_to_the_blocks_alone(
    name: str, lanes: int, options: dict, trial: Trial
) -> None:
    trial.lanes(lanes)
    one = FAULTS[name]
    kernel, grid = (one.kernel, one.grid) if one.grid != 1 else (in_one_block_of_six(one), 6)
    trial.both(kernel, grid, N, one.draw, shared_bytes=one.shared_bytes, **options)
    assert trial.batched is not True  # with atomics and syncwarps, it was not even tried


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("x = t // (b - 5)", "ZeroDivisionError: thread 0 of thread block 5"),
        ("assert b < 5", "AssertionError: thread 0 of thread block 5"),
        ("if b == 5:\n    raise KeyError", "KeyError: "),
        ("x = (1, 2, 3, 4, 5)[b]", "IndexError: tuple index out of range"),
        ("while b == 5:\n    t += 1", "RuntimeError: 100 loop turns"),
        ("for i in range(0, 9, b - 5):\n    t += i", "thread 0 of thread block 5 gives range"),
        ("if b == 5:\n    out[0.5] = 1", "Unsupported: an index of out must be an integer"),
        ("if b == 5:\n    cuda.ldcg(b, 0)", "Unsupported: b is not an array"),
    ],
)
def test_an_error_of_a_lane_is_left_to_the_blocks_alone(line: str, says: str, trial: Trial) -> None:
    one = kernel("out", f"b = cuda.blockIdx.x\nout[b, t] += 1\n{line}")
    trial.both(one, 6, 32, lambda: (zeros(6, 32),), max_turns=100)
    assert trial.batched is False
    assert says in trial.said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        # More reads than wait to be entered
        ("for i in range(40): x += s[t]\ns[t] = x", "s[0], which thread 31 read"),
        # A write to smaller cells than those of the read
        ("h = cuda.shared.array(0, int16)\nif t == 1: h[62] = x", "h[62], which thread 0 read"),
    ],
)
def test_a_read_is_remembered_until_another_lane_writes(line: str, said: str, trial: Trial) -> None:
    start = "s = cuda.shared.array(0, int32)\ns[t] = t\ncuda.syncthreads()\nx = s[31 - t]"
    late = kernel("out", f"{start}\n{line}", int32=int32, int16=int16)
    trial.both(late, 6, 32, lambda: (zeros(1),), shared_bytes=128)
    assert said in trial.said


# A mistake of ours ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mistake", "raised"),
    [(KeyError, KeyError), (TypeError, Unsupported)],  # to some, a statement adds its line
)
def test_a_mistake_in_the_simulator_is_raised(
    mistake: type[Exception], raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = mock.Mock(side_effect=mistake("a mistake of ours"))
    monkeypatch.setattr(WideGang, "note_access", wrong)
    with pytest.raises(raised, match="a mistake of ours"):
        launch(double, 4, N, zeros(256), floats(256))
