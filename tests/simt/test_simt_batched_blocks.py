"""Thread blocks side by side: what comes out is what they give one after another.

With a mistake they fall back, and then all is as it was.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

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

    batched  of the last launch side by side: None if that was not tried, else whether it ended
    said     what it raised, as text
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.tried, self.batched, self.said = monkeypatch, [], None, ""
        run = program.run_batched

        def noted(*args: object) -> bool:
            self.tried.append(run(*args))
            return self.tried[-1]

        monkeypatch.setattr(program, "run_batched", noted)

    @contextmanager
    def one_after_another(self) -> Iterator[None]:
        with self.monkeypatch.context() as patch:
            patch.setattr(program, "may_run_batched", lambda *_: False)
            yield

    def both(self, kernel, grid, block, draw: Callable[[], Arguments], **options) -> Report | None:
        """Side by side and one after another; they must agree. Returns the first report."""
        self.tried.clear()
        report, *found = outcome(kernel, grid, block, draw(), **options)
        self.batched = self.tried[0] if self.tried else None
        with self.one_after_another():
            _, *expected = outcome(kernel, grid, block, draw(), **options)
        np.testing.assert_equal(found, expected)
        self.said = found[0]
        return report


def outcome(
    kernel: Callable, grid: Size, block: Size, args: Arguments, **options
) -> tuple[Report | None, str, list, list]:
    """The report, what was raised, the arguments afterwards, and what the report says."""
    try:
        report = launch(kernel, grid, block, *args, **options)
    except Exception as found:  # a finding, or anything else: it must be the same
        return None, f"{type(found).__name__}: {found}", list(args), []
    snapshots = [
        (s.block, s.line, s.threads, {n: (v.dtype, v.tolist()) for n, v in s.values.items()})
        for s in report.snapshots
    ]
    trace = report.trace and [report.trace.records.tolist(), report.trace.ways]
    return report, "", list(args), [report.findings, snapshots, trace]


def six_blocks() -> Arguments:
    """out for six thread blocks of a warp, and one number for each thread of a warp."""
    return zeros(6 * 32), np.arange(32, dtype=np.float32)


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Trial:
    return Trial(monkeypatch)


@pytest.fixture
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of a wide gang, at most."""
    monkeypatch.setattr("simt.batched_blocks.LANES", request.param)
    return request.param


# Kernels without a mistake -------------------------------------------------------------------


def test_every_right_kernel_does_the_same(trial: Trial) -> None:
    ended = []
    for name, one in EXAMPLES.items():
        options = {"shared_bytes": one.shared_bytes, "watch": "end"}
        assert trial.both(one.kernel, one.grid, one.block, one.draw, **options).clean, name
        ended.append(trial.batched)
    assert False not in ended
    assert ended.count(True) >= 5


@pytest.mark.parametrize("lanes", [32, 64, 4096], indirect=True)
def test_random_programs_run_as_in_plain_python(lanes: int, trial: Trial, tmp_path: Path) -> None:
    for seed in range(20):
        module = write_program(seed, tmp_path)
        out, table = arguments(96)
        launch(module.kernel, 3, 32, out, table)
        assert trial.tried.pop()
        np.testing.assert_array_equal(out, run_thread_by_thread(module, 3, 32))


@cuda.jit
def sums_of_rows(out, a, lengths):
    """As many rounds, with a barrier in each, as the thread block's length says.

    out is read and written: a thread block that runs twice counts twice.
    """
    s = cuda.shared.array((2, N), float32)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    total = float32(0)
    if lengths[b] == 0:
        return
    for i in range(lengths[b]):
        s[i % 2, t] = a[b, i, t]
        cuda.syncthreads()
        total += s[i % 2, N - 1 - t]
    if b % 2 == 1:
        odd = total + float32(t)
        out[b, t] += odd
    else:
        out[b, t] += total


LENGTHS = np.array([3, 0, 8, 1, 5], np.int32)


def rows() -> Arguments:
    return floats(5, N), floats(5, 8, N), LENGTHS


@pytest.mark.parametrize("lanes", [64, 128, 192, 4096], indirect=True)
def test_thread_blocks_may_wait_at_different_times(lanes: int, trial: Trial) -> None:
    watch = ("total += s", "out[b, t] += odd", "end")
    report = trial.both(sums_of_rows, 5, N, rows, max_turns=max(LENGTHS), watch=watch)
    assert trial.batched
    assert len(report.at("total += s")) == sum(LENGTHS)


ROWS = """
    s, own = cuda.shared.array((2, 32), float32), cuda.local.array((2, 3), float32)
    b = cuda.blockIdx.x
    s[0, t] = s[1, t] = b
    own[b, 0] = own[b, 1] = t
    {}
    out[b, t] = t
    """


@pytest.mark.parametrize(
    ("line", "of_block_1"),
    [
        ("row = s[0]", [1.0] * 32),
        ("row = s[b]", [1.0] * 32),
        ("row = s[b, :b]", [1.0]),
        ("row = s[t // 32]", [1.0] * 32),
        ("row = s[t % 2]", None),  # the lanes have different rows
        ("if t < 9 + b:\n        row = s[1]", [1.0] * 32),
        ("row = own[b]", [[float(t), float(t), None] for t in range(32)]),
        ("row = own[b, :b]", [[float(t)] for t in range(32)]),
        ("row = own[b, :t % 2]", None),
    ],
)
def test_a_snapshot_has_the_part_of_an_array_that_its_block_sees(
    line: str, of_block_1: list | None, trial: Trial
) -> None:
    rows = kernel("out", ROWS.format(line))
    report = trial.both(rows, 2, 32, lambda: (zeros(2, 32),), watch="end")
    assert trial.batched
    row = report.at()[1].values.get("row")
    assert (row if row is None else row.tolist()) == of_block_1


@pytest.mark.parametrize(
    "line",
    [
        "x = cuda.activemask()",
        "row, first = a[b], a[0]\nx = row is first",
        "part, first = a[0, :b], a[0, :2]\nx = part is first",
    ],
)
def test_each_thread_block_gets_its_own(line: str, trial: Trial) -> None:
    own = kernel("out, a", f"b = cuda.blockIdx.x\n{line}\nout[b, t] = x")
    assert trial.both(own, 6, 32, lambda: (zeros(6, 32), floats(6, 32)), watch="end").clean
    assert trial.batched


# When it is tried ----------------------------------------------------------------------------


def test_exited_threads_may_skip_a_barrier_if_the_launch_says_so(trial: Trial) -> None:
    some_return = kernel(
        "out, a",
        """
        if t >= 20 + cuda.blockIdx.x:
            return
        cuda.syncthreads()
        out[32 * cuda.blockIdx.x + t] = a[t]
        """,
    )
    for may_skip in (False, True):
        trial.both(some_return, 6, 32, six_blocks, exited_may_skip=may_skip)
        assert trial.batched is may_skip


@pytest.mark.parametrize(
    ("num_threads", "options", "batched"),
    [
        (N, {}, True),
        (N, {"order": "forward"}, None),
        (N, {"order": 3}, None),
        (N, {"trace": "all"}, None),
        (N, {"shuffles_order_memory": True}, None),
        (48, {}, None),  # a part of a warp
    ],
    ids=str,
)
def test_what_needs_one_block_after_another_gets_it(
    num_threads: int, options: dict, batched: bool | None, trial: Trial
) -> None:
    trial.both(double, 4, num_threads, lambda: (zeros(256), floats(256)), **options)
    assert trial.batched is batched


@pytest.mark.parametrize(
    "line",
    [
        "out[t] = cuda.atomic.add(out, t, 1)",
        "cuda.threadfence()\n    cuda.atomic.add(out, t, 1)",
        "cuda.syncwarp()",
        "out[0, t] = cuda.syncthreads_count(t)",
        "print(t)",
    ],
)
def test_a_call_that_needs_one_block_after_another_gets_it(line: str, trial: Trial) -> None:
    trial.both(kernel("out", f"if cuda.blockIdx.x == 0:\n    {line}"), 4, 32, lambda: (zeros(32),))
    assert trial.batched is None


@pytest.mark.parametrize(
    ("batched", "lines"),
    [
        (True, "for i in range(3): cuda.atomic.add(counts, (t + i) % 8, t)"),
        (True, "cuda.atomic.max(counts, t % 8, b)"),
        (True, "for i in range(3): x += cuda.atomic.sub(s, i, t)"),
        (True, "cuda.atomic.add(sums, t % 4, x)"),
        (True, "for i in range(3): cuda.atomic.add(sums, 2 * b + t % 2, x)"),
        (True, "cuda.atomic.exch(counts, t % 8, 10 * b)"),
        # Here the order of the thread blocks counts.
        (False, "for i in range(3): cuda.atomic.add(sums, t % 4, x * i)"),
        (False, "for i in range(3): cuda.atomic.exch(counts, t % 8, 10 * b + i)"),
        (False, "cuda.atomic.add(counts, t % 8, b)\ncuda.atomic.max(counts, t % 8, 2 * b)"),
        (False, "cuda.atomic.max(sums, 0, x)\nif sums[0] > 1:\n    sums[1] = 1"),
    ],
)
def test_atomic_operations_are_batched_if_the_order_of_blocks_cant_matter(
    lines: str, batched: bool, trial: Trial
) -> None:
    start = """
        b, x = cuda.blockIdx.x, numbers[cuda.grid(1)]
        s = cuda.shared.array(32, int32)
        s[t] = t
        cuda.syncthreads()
        """
    end = "cuda.syncthreads()\nshared[cuda.grid(1)] = s[t] + x"
    text = "\n".join([dedent(start), lines, end])
    atomics = kernel("counts, sums, shared, numbers", text, int32=int32)
    numbers = (floats(192) * 10 ** np.linspace(-3, 3, 192)).astype(np.float32)
    trial.both(atomics, 6, 32, lambda: (np.zeros(8, np.int32), zeros(12), zeros(192), numbers))
    assert trial.batched is batched


@pytest.mark.parametrize("trace", [0, [1, 4], (2, 0, 0)], ids=str)
def test_traced_thread_blocks_run_once_more_alone(trace: object, trial: Trial) -> None:
    report = trial.both(sums_of_rows, 5, N, rows, trace=trace, watch=("total += s", "end"))
    assert trial.batched
    assert len(report.trace.records) > 0
    assert len(report.at()) == 5


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
    indirect=["lanes"],
)
def test_a_mistake_is_left_to_the_blocks_alone(
    name: str, lanes: int, options: dict, trial: Trial
) -> None:
    one = FAULTS[name]
    kernel, grid = (one.kernel, one.grid) if one.grid != 1 else (in_one_block_of_six(one), 6)
    trial.both(kernel, grid, N, one.draw, shared_bytes=one.shared_bytes, **options)
    assert trial.batched is not True  # with atomics and syncwarps, it was not even tried


WRITE = "b = cuda.blockIdx.x\nout[32 * b + t] += 1\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("x = t // (b - 5)", "ZeroDivisionError: thread 0 of thread block 5"),
        ("assert b < 5", "AssertionError: thread 0 of thread block 5"),
        ("x = (1, 2, 3, 4, 5)[b]", "IndexError: tuple index out of range"),
        ("while b == 5:\n    t += 1", "RuntimeError: 100 loop turns"),
        ("for i in range(0, 9, b - 5):\n    t += i", "thread 0 of thread block 5 gives range"),
        ("if b == 5:\n    out[0.5] = 1", "Unsupported: an index of out must be an integer"),
        ("if b == 5:\n    out[0, 0] = 1", "Unsupported: out has 1 dimensions"),
        ("if b == 5:\n    cuda.ldcg(b, 0)", "Unsupported: b is not an array"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"collect": True, "watch": "end"}, {"checks": ()}])
def test_an_error_of_a_lane_is_left_to_the_blocks_alone(
    line: str, says: str, options: dict, trial: Trial
) -> None:
    trial.both(kernel("out, a", WRITE + line), 6, 32, six_blocks, max_turns=100, **options)
    assert trial.batched is False
    assert says in trial.said


@cuda.jit(device=True)
def some(b):
    if b > 2:
        return b


@pytest.mark.parametrize(
    "lines",
    [
        "x = a if b % 2 == 0 else out\ny = len(x)",
        "x = (a, out)[b % 2]\ny = len(x)",
        "x = ((1, 2), (3, 4))[b % 2]\ny = x[0]",
        "x = (1, 2.5)[b % 2]\ny = x",
        "x = None if b < 3 else b\ny = 1 if x is None else x",
        "x = some(b)",
        "x = (1, 2) if b < 3 else (1, 2, 3)\ny = len(x)",
    ],
)
def test_a_variable_may_hold_another_thing_in_each_thread_block(lines: str, trial: Trial) -> None:
    one = kernel("out, a", WRITE + lines, some=some)
    assert trial.both(one, 6, 32, six_blocks, watch="end").clean
    assert trial.batched is False


@pytest.mark.parametrize("collect", [False, True])
def test_a_wrong_call_says_the_same(collect: bool, trial: Trial) -> None:
    few = kernel("out, a", "out[t] = cuda.shfl_sync(t)")
    _, said, *_ = outcome(few, 6, 32, six_blocks(), collect=collect)
    with trial.one_after_another():
        _, alone, *_ = outcome(few, 6, 32, six_blocks(), collect=collect)
    assert said == alone
    assert "cuda.shfl_sync takes (lanes, value, d)" in said
    assert "out[t] = cuda.shfl_sync(t)" in said


@pytest.mark.parametrize("num_blocks", [1, 6])
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        # More reads than wait to be entered
        ("for i in range(40): x += s[t]\ns[t] = x", "s[0], which thread 31 read"),
        # A write to smaller cells than those of the read
        (
            "h = cuda.shared.array(0, int16)\nif t == 1:\n    h[62] = x",
            "h[62], which thread 0 read",
        ),
    ],
)
def test_a_read_is_remembered_until_another_lane_writes(
    lines: str, said: str, num_blocks: int, trial: Trial
) -> None:
    start = "s = cuda.shared.array(0, int32)\ns[t] = t\ncuda.syncthreads()\nx = s[31 - t]"
    late = kernel("out", f"{start}\n{lines}", int32=int32, int16=int16)
    trial.both(late, num_blocks, 32, lambda: (zeros(1),), shared_bytes=128)
    assert said in trial.said


# A mistake of ours ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mistake", "raised"),
    [
        (KeyError, KeyError),
        (IndexError, IndexError),
        (AssertionError, AssertionError),
        (AttributeError, Unsupported),  # a statement adds its line
        (TypeError, Unsupported),
        (ValueError, Unsupported),
    ],
)
def test_a_mistake_in_the_simulator_is_raised(
    mistake: type[Exception], raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object) -> None:
        raise mistake("a mistake of ours")

    monkeypatch.setattr(WideGang, "note_access", wrong)
    with pytest.raises(raised, match="a mistake of ours"):
        launch(double, 4, N, zeros(256), floats(256))


def test_atomic_sums_of_items_that_overlap_by_a_part_are_those_of_blocks_in_turn() -> None:
    """A carry goes from the bytes of one into those of the other, so their order shows."""
    lines = "g = cuda.grid(1)\ncuda.atomic.add(a, g % 8, v[g])\ncuda.atomic.add(b, g % 8, w[g])"
    values = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, (2, 128)).astype(np.int32)
    results = []
    for order in ("together", "forward"):
        memory = np.zeros(64, np.int8)
        a, b = memory[:32].view(np.int32), memory[2:34].view(np.int32)
        launch(kernel("a, b, v, w", lines), 4, 32, a, b, *values, order=order)
        results.append(memory.tobytes())
    assert results[0] == results[1]
