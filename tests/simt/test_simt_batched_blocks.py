"""Thread blocks side by side: what comes out is what they give one after another.

With a mistake they fall back, and then all is as it was.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from numba import cuda, float32

from pa_tutorial.simt import Report, Snapshot, launch, program
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES
from tests.simt.simt_programs import arguments, run_thread_by_thread, write_program
from tests.simt_helpers import N, block_sum, double, floats, kernel, zeros
from tests.simt_kernels.example import EXAMPLES, FAULTS, Arguments


class Trial:
    """Launches, and notes which ran side by side.

    batched  of the last launch side by side: None if that was not tried, else whether it ended
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.tried, self.batched = monkeypatch, [], None
        run = program.run_batched

        def noted(*args: object) -> bool:
            self.tried.append(run(*args))
            return self.tried[-1]

        monkeypatch.setattr(program, "run_batched", noted)

    def run(self, kernel, grid, block, args: Arguments, **options) -> tuple[Report | None, str]:
        """The report, and what was raised."""
        self.tried.clear()
        try:
            return launch(kernel, grid, block, *args, **options), ""
        except Exception as found:  # a finding, or anything else: it must be the same
            return None, f"{type(found).__name__}: {found}"

    @contextmanager
    def one_after_another(self) -> Iterator[None]:
        with self.monkeypatch.context() as patch:
            patch.setattr(program, "may_run_batched", lambda *_: False)
            yield

    def both(self, kernel, grid, block, draw: Callable[[], Arguments], **options) -> Report | None:
        """Side by side and one after another; they must agree. Returns the first report."""
        args, other_args = draw(), draw()
        report, error = self.run(kernel, grid, block, args, **options)
        self.batched = self.tried[0] if self.tried else None
        with self.one_after_another():
            other, other_error = self.run(kernel, grid, block, other_args, **options)
        assert not self.tried
        assert error == other_error
        for a, b in zip(args, other_args, strict=True):
            np.testing.assert_array_equal(a, b)
        if report is not None:
            same_reports(report, other)
        return report


def same_reports(one: Report, other: Report) -> None:
    assert one.findings == other.findings
    same_snapshots(one.snapshots, other.snapshots)
    if one.trace is not None:
        np.testing.assert_array_equal(one.trace.records, other.trace.records)
        assert one.trace.ways == other.trace.ways


def same_snapshots(ones: list[Snapshot], expected: list[Snapshot]) -> None:
    assert [(s.block, s.line) for s in ones] == [(s.block, s.line) for s in expected]
    for one, other in zip(ones, expected, strict=True):
        np.testing.assert_array_equal(one.threads, other.threads)
        assert set(one.values) == set(other.values)
        for name, value in one.values.items():
            assert value.dtype == other[name].dtype, name
            np.testing.assert_array_equal(
                np.ma.getmaskarray(value), np.ma.getmaskarray(other[name])
            )
            np.testing.assert_array_equal(value.compressed(), other[name].compressed())


def six_blocks() -> Arguments:
    """out for six thread blocks of a warp, and one number for each thread of a warp."""
    return zeros(6 * 32), np.arange(32, dtype=np.float32)


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Trial:
    return Trial(monkeypatch)


@pytest.fixture
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of a wide gang, at most."""
    monkeypatch.setattr("pa_tutorial.simt.batched_blocks.LANES", request.param)
    return request.param


# Kernels without a mistake -------------------------------------------------------------------


@pytest.mark.parametrize("kernels", [EXAMPLES, FAULTS], ids=["right", "faulty"])
def test_every_small_kernel_does_the_same(kernels: dict, trial: Trial) -> None:
    ended = {True: [], False: [], None: []}
    for name, one in kernels.items():
        options = {"shared_bytes": one.shared_bytes, "collect": True, "watch": "end"}
        trial.both(one.kernel, one.grid, one.block, one.draw, **options)
        ended[trial.batched].append(name)
    assert ended[kernels is FAULTS] == []
    assert len(ended[kernels is EXAMPLES]) >= 5


@pytest.mark.parametrize("lanes", [32, 64, 4096], indirect=True)
def test_random_programs_run_as_in_plain_python(lanes: int, trial: Trial, tmp_path: Path) -> None:
    for seed in range(20):
        module = write_program(seed, tmp_path)
        out, table = arguments(96)
        trial.run(module.kernel, 3, 32, (out, table))
        assert trial.tried == [True]
        np.testing.assert_array_equal(out, run_thread_by_thread(module, 3, 32))


@cuda.jit
def sums_of_rows(out, a, lengths):
    """As many rounds, with a barrier in each, as the thread block's length says."""
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
        out[b, t] = odd
    else:
        out[b, t] = total


LENGTHS = np.array([3, 0, 8, 1, 5], np.int32)


def rows() -> Arguments:
    return zeros(5, N), floats(5, 8, N), LENGTHS


@pytest.mark.parametrize("lanes", [64, 128, 192, 4096], indirect=True)
def test_thread_blocks_may_wait_at_different_times(lanes: int, trial: Trial) -> None:
    trial.both(sums_of_rows, 5, N, rows, max_turns=max(LENGTHS))
    assert trial.batched


def test_snapshots_are_of_each_thread_block_in_its_turn(trial: Trial) -> None:
    watch = ("total += s", "out[b, t] = odd", "end")
    report = trial.both(sums_of_rows, 5, N, rows, watch=watch)
    assert trial.batched
    assert len(report.at("total += s")) == sum(LENGTHS)
    assert [s.block[0] for s in report.at("out[b, t] = odd")] == [3]  # 1 has returned
    assert [s.block[0] for s in report.at("end") if "odd" in s.values] == [3]


def test_a_snapshot_of_a_part_of_a_shared_array_is_left_to_the_blocks_alone(trial: Trial) -> None:
    row_of_shared = kernel(
        "out",
        """
        s = cuda.shared.array((2, 32), float32)
        s[0, t] = float32(cuda.blockIdx.x)
        row = s[0]
        out[cuda.blockIdx.x, t] = row[t]
        """,
    )
    report = trial.both(row_of_shared, 2, 32, lambda: (zeros(2, 32),), watch="end")
    assert trial.batched is False
    assert report.at()[1]["row"].tolist() == [1.0] * 32


@pytest.mark.parametrize("stage", ["cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2"])
def test_the_kernels_of_the_ladder(stage: str, trial: Trial) -> None:
    case = CASES["decode/gqa_alibi"]
    one = STAGES[stage].run(case)
    assert trial.tried
    assert all(trial.tried)
    with trial.one_after_another():
        other = STAGES[stage].run(case)
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


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
    ("options", "batched"),
    [
        ({}, True),
        ({"order": "forward"}, None),
        ({"order": 3}, None),
        ({"trace": "all"}, None),
        ({"shuffles_order_memory": True}, None),
    ],
    ids=str,
)
def test_what_needs_one_block_after_another_gets_it(options, batched, trial: Trial) -> None:
    trial.both(block_sum, 4, N, lambda: (zeros(4), floats(4, N)), **options)
    assert trial.batched is batched


@cuda.jit
def counted(out, lengths):
    """out is read and written: whoever runs twice counts twice."""
    s = cuda.shared.array(N, float32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    for i in range(lengths[b]):
        s[t] = out[b, t] + i
        cuda.syncthreads()
        out[b, t] += s[N - 1 - t]
        cuda.syncthreads()


@pytest.mark.parametrize("trace", [0, [1, 4], (2, 0, 0)], ids=str)
def test_traced_thread_blocks_run_once_more_alone(trace: object, trial: Trial) -> None:
    draw = lambda: (floats(5, N), LENGTHS)  # noqa: E731
    report = trial.both(counted, 5, N, draw, trace=trace, watch=("s[t] = out", "end"))
    assert trial.batched
    assert len(report.trace.records) > 0
    assert len(report.at()) == 5


@pytest.mark.parametrize("block", [1, 31, 33, 48])
def test_only_whole_warps_run_side_by_side(block: int, trial: Trial) -> None:
    trial.both(double, 4, block, lambda: (zeros(200), floats(200)))
    assert trial.batched is None


# Kernels with a mistake ----------------------------------------------------------------------

# In most of them, one thread block of six makes it. t is the thread, b the thread block, mine the
# thread's item of out; s is shared memory.
MISTAKES = {
    "two_blocks_write_one_cell": "out[(b % 5) * 32 + t] = b",
    "one_block_reads_what_another_wrote": """
        if b < 5:
            out[mine] = b
        if b == 5:
            out[mine] = out[t] + 1""",
    "one_block_writes_what_another_read": """
        out[mine] = a[t]
        if b == 5:
            a[t] = 7""",
    "the_last_reader_writes": """
        out[mine] = a[0]
        if b == 5 and t == 31:
            a[0] = 7""",
    "the_last_reader_in_shared_memory_writes": """
        s[t] = a[t]
        cuda.syncthreads()
        x = s[0]
        if t == 31 and b == 3:
            s[0] = x
        out[mine] = x""",
    "the_second_of_two_readers_writes": """
        s[t] = a[t]
        cuda.syncthreads()
        if t == 7:
            out[32 * b] = s[5]
        if t == 31:
            out[mine] = s[5]
            if b == 3:
                s[5] = 0""",
    "one_block_without_a_barrier": """
        s[t] = a[t]
        if b != 4:
            cuda.syncthreads()
        out[mine] = s[31 - t]""",
    "a_barrier_for_half_of_one_block": """
        if b != 4 or t < 16:
            cuda.syncthreads()
        out[mine] = a[t]""",
    "two_lanes_write_one_shared_cell": "s[t // 2 if b == 4 else t] = a[t]",
    "a_shuffle_for_half_of_one_warp": """
        x = a[t]
        if b != 4 or t < 16:
            x = cuda.shfl_xor_sync(0xFFFFFFFF, x, 1)
        out[mine] = x""",
    "outside_in_one_block": "out[mine] = a[t + b // 4]",
    # -1 is the last item, if nobody checks
    "before_the_start_in_one_block": """
        s[t] = 100 * b + t
        cuda.syncthreads()
        out[mine] = s[t - b // 4]""",
    "unwritten_in_one_block": """
        if b != 4:
            s[t] = b
        out[mine] = s[t]""",
    "no_value_in_one_block": """
        if b != 4:
            x = a[t]
        out[mine] = x""",
    "divided_by_zero_in_one_block": "out[mine] = t // (b - 4)",
    "one_block_never_ends": """
        out[mine] += 1
        while b == 4:
            out[mine] += 1""",
}
START = """
    s = cuda.shared.array(32, float32)
    b = cuda.blockIdx.x
    mine = 32 * b + t
"""


def mistaken(name: str) -> Callable:
    return kernel("out, a", dedent(START) + dedent(MISTAKES[name]))


@pytest.mark.parametrize("lanes", [32, 64, 4096], indirect=True)  # blocks: 1, 2, all 6
@pytest.mark.parametrize("collect", [False, True])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_left_to_the_blocks_alone(
    name: str, collect: bool, lanes: int, trial: Trial
) -> None:
    options = {"collect": collect, "max_turns": 100, "watch": ("mine =", "end")}
    report = trial.both(mistaken(name), 6, 32, six_blocks, **options)
    assert trial.batched is False
    assert report is None or report.findings


@pytest.mark.parametrize("checks", [(), "memory", "init", "race", "sync"])
@pytest.mark.parametrize("name", MISTAKES)
def test_with_fewer_checks_a_mistake_computes_the_same(name, checks, trial: Trial) -> None:
    trial.both(mistaken(name), 6, 32, six_blocks, checks=checks, max_turns=100)
    assert trial.batched is False


def test_after_a_fallback_the_memory_is_as_before(trial: Trial) -> None:
    body = """
        out[32 * cuda.blockIdx.x + t] += 1
        if cuda.blockIdx.x == 1:
            a[t] = 1
        if cuda.blockIdx.x == 0:
            out[t] += a[t]  # in thread block 0, which comes first, nobody has written it
    """
    report = trial.both(
        kernel("out, a", body), 6, 32, six_blocks, unwritten="a", collect=True, watch="end"
    )
    assert trial.batched is False
    assert [finding.check for finding in report.findings] == ["init", "race"]


def test_a_fallback_is_not_always_a_mistake(trial: Trial) -> None:
    """All threads have read what one then writes; the wide gang only knows that several have."""
    body = """
        x = a[cuda.blockIdx.x]
        cuda.syncthreads()
        if t == 3:
            a[cuda.blockIdx.x] = 7
        out[32 * cuda.blockIdx.x + t] = x
    """
    assert trial.both(kernel("out, a", body), 6, 32, six_blocks).clean
    assert trial.batched is False


def test_a_mistake_beside_a_traced_block_is_found(trial: Trial) -> None:
    outside = mistaken("outside_in_one_block")
    report = trial.both(outside, 6, 32, six_blocks, trace=1, collect=True)
    assert trial.batched is False
    assert [finding.block for finding in report.findings] == [(4, 0, 0)]
