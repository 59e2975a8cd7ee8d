"""Thread blocks side by side: what comes out is what they give one after another."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from numba import cuda, float32, int32
from simt_helpers import N, block_sum, double, floats
from simt_kernels.example import EXAMPLES, FAULTS
from simt_programs import arguments, run_thread_by_thread, write_program

from pa_tutorial.cases import CASES
from pa_tutorial.ladder import STAGES
from pa_tutorial.simt import Report, Snapshot, abreast, launch, program

Arguments = tuple[object, ...]


@dataclass
class Ran:
    """What a launch gave. abreast: None if it was not tried, else whether it came to its end."""

    report: Report | None
    error: str
    arguments: Arguments
    abreast: bool | None


@dataclass
class Trial:
    """Launches with thread blocks side by side where that is possible, or never."""

    monkeypatch: pytest.MonkeyPatch
    tried: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        run = program.run_abreast

        def noted(*args: object) -> bool:
            self.tried.append(run(*args))
            return self.tried[-1]

        self.monkeypatch.setattr(program, "run_abreast", noted)

    def run(self, kernel: object, grid: object, block: object, args: Arguments, **options) -> Ran:
        self.tried.clear()
        report, error = None, ""
        try:
            report = launch(kernel, grid, block, *args, **options)
        except Exception as found:  # a finding, or anything else: it must be the same
            error = f"{type(found).__name__}: {found}"
        return Ran(report, error, args, self.tried[0] if self.tried else None)

    def both(
        self, kernel: object, grid: object, block: object, draw: Callable[[], Arguments], **options
    ) -> Ran:
        """Side by side and one after another; they must agree. Returns the first."""
        one = self.run(kernel, grid, block, draw(), **options)
        with self.monkeypatch.context() as patch:
            patch.setattr(program, "may_run_abreast", lambda *_: False)
            other = self.run(kernel, grid, block, draw(), **options)
        assert other.abreast is None
        assert one.error == other.error
        for a, b in zip(one.arguments, other.arguments, strict=True):
            np.testing.assert_array_equal(a, b)
        if one.report is not None:
            assert one.report.findings == other.report.findings
            same_snapshots(one.report.snapshots, other.report.snapshots)
            if one.report.trace is not None:
                np.testing.assert_array_equal(one.report.trace.records, other.report.trace.records)
                assert one.report.trace.ways == other.report.trace.ways
        return one


def same_snapshots(ones: list[Snapshot], others: list[Snapshot]) -> None:
    assert [(s.block, s.line) for s in ones] == [(s.block, s.line) for s in others]
    for one, other in zip(ones, others, strict=True):
        np.testing.assert_array_equal(one.threads, other.threads)
        assert set(one.values) == set(other.values)
        for name, value in one.values.items():
            assert value.dtype == other[name].dtype, name
            np.testing.assert_array_equal(
                np.ma.getmaskarray(value), np.ma.getmaskarray(other[name])
            )
            np.testing.assert_array_equal(value.compressed(), other[name].compressed())


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Trial:
    return Trial(monkeypatch)


# Kernels without a mistake -------------------------------------------------------------------


def test_every_example_computes_the_same(trial: Trial) -> None:
    ran = {
        name: trial.both(
            one.kernel, one.grid, one.block, one.draw, shared_bytes=one.shared_bytes, watch="end"
        ).abreast
        for name, one in EXAMPLES.items()
    }
    assert not [name for name, ended in ran.items() if ended is False]
    assert sum(ended is True for ended in ran.values()) >= 8


@pytest.mark.parametrize("lanes", [32, 64, 4096])
def test_random_programs_run_as_in_plain_python(
    lanes: int, trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abreast, "LANES", lanes)
    for seed in range(20):
        module = write_program(seed, tmp_path)
        out, table = arguments(96)
        assert trial.run(module.kernel, 3, 32, (out, table)).abreast
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


def rows(*lengths: int) -> Callable[[], Arguments]:
    def draw() -> Arguments:
        n = len(lengths)
        return np.zeros((n, N), np.float32), floats(n, 8, N), np.array(lengths, np.int32)

    return draw


LENGTHS = (3, 0, 8, 1, 5)


@pytest.mark.parametrize("lanes", [64, 128, 192, 4096])
def test_thread_blocks_may_wait_at_different_times(
    lanes: int, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abreast, "LANES", lanes)
    assert trial.both(sums_of_rows, 5, N, rows(*LENGTHS), max_turns=max(LENGTHS)).abreast


def test_snapshots_are_of_each_thread_block_in_its_turn(trial: Trial) -> None:
    watch = ("total += s", "out[b, t] = odd", "end")
    ran = trial.both(sums_of_rows, 5, N, rows(*LENGTHS), watch=watch)
    assert ran.abreast
    assert len(ran.report.at("total += s")) == sum(LENGTHS)
    assert [shot.block[0] for shot in ran.report.at("out[b, t] = odd")] == [3]  # 1 has returned
    assert [("odd" in shot.values) for shot in ran.report.at("end")] == [b == 3 for b in range(5)]


def test_a_snapshot_of_a_part_of_a_shared_array_is_left_to_the_blocks_alone(trial: Trial) -> None:
    @cuda.jit
    def kernel(out):
        s = cuda.shared.array((2, 32), float32)
        s[0, cuda.threadIdx.x] = float32(cuda.blockIdx.x)
        row = s[0]
        out[cuda.blockIdx.x, cuda.threadIdx.x] = row[cuda.threadIdx.x]

    ran = trial.both(kernel, 2, 32, lambda: (np.zeros((2, 32), np.float32),), watch="end")
    assert ran.abreast is False
    assert ran.report.at()[1]["row"].tolist() == [1.0] * 32


def test_dynamic_shared_memory_of_two_types(trial: Trial) -> None:
    @cuda.jit
    def kernel(out):
        whole = cuda.shared.array(3, float32)
        bytes_ = cuda.shared.array(0, int32)
        numbers = cuda.shared.array(0, float32)
        t, b = cuda.threadIdx.x, cuda.blockIdx.y
        if t < 3:
            whole[t] = b * 100
        bytes_[t] = b
        numbers[32 + t] = b + t
        cuda.syncthreads()
        out[b, t] = numbers[63 - t] + bytes_[31 - t] + whole[t % 3]

    draw = lambda: (np.zeros((7, 32), np.float32),)  # noqa: E731
    ran = trial.both(kernel, (1, 7), 32, draw, shared_bytes=258, watch="end")
    assert ran.abreast
    np.testing.assert_array_equal(ran.arguments[0][5], 500 + 5 + 5 + np.arange(31, -1, -1))


@pytest.mark.parametrize("stage", ["cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2"])
def test_the_kernels_of_the_ladder(stage: str, trial: Trial) -> None:
    case = CASES["decode/gqa_alibi"]
    one = STAGES[stage].run(case)
    assert trial.tried
    assert all(trial.tried)
    with trial.monkeypatch.context() as patch:
        patch.setattr(program, "may_run_abreast", lambda *_: False)
        other = STAGES[stage].run(case)
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


# Kernels with a mistake ----------------------------------------------------------------------


def test_every_fault_is_found_as_it_was(trial: Trial) -> None:
    ran = {
        name: trial.both(
            one.kernel, one.grid, one.block, one.draw, shared_bytes=one.shared_bytes, collect=True
        ).abreast
        for name, one in FAULTS.items()
    }
    assert not [name for name, ended in ran.items() if ended]
    assert sum(ended is False for ended in ran.values()) >= 5


@cuda.jit
def two_blocks_write_one_cell(out, a):
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    out[(b % 5) * 32 + t] = b


@cuda.jit
def one_block_reads_what_another_wrote(out, a):
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    if b < 5:
        out[32 * b + t] = b
    if b == 5:
        out[32 * b + t] = out[t] + 1


@cuda.jit
def one_block_writes_what_another_read(out, a):
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    out[32 * b + t] = a[t]
    if b == 5:
        a[t] = 7


@cuda.jit
def the_last_reader_writes(out, a):
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    out[32 * b + t] = a[0]
    if b == 5 and t == 31:
        a[0] = 7


@cuda.jit
def the_last_reader_in_shared_memory_writes(out, a):
    s = cuda.shared.array(32, float32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    x = s[0]
    if t == 31 and b == 3:
        s[0] = x
    out[32 * b + t] = x


@cuda.jit
def one_block_without_a_barrier(out, a):
    s = cuda.shared.array(32, float32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    s[t] = a[t]
    if b != 4:
        cuda.syncthreads()
    out[32 * b + t] = s[31 - t]


@cuda.jit
def a_barrier_for_half_of_one_block(out, a):
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    if b != 4 or t < 16:
        cuda.syncthreads()
    out[32 * b + t] = a[t]


@cuda.jit
def two_lanes_write_one_shared_cell(out, a):
    s = cuda.shared.array(32, float32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    s[t // 2 if b == 4 else t] = a[t]
    out[32 * b + t] = b


@cuda.jit
def a_shuffle_for_half_of_one_warp(out, a):
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    x = a[t]
    if b != 4 or t < 16:
        x = cuda.shfl_xor_sync(0xFFFFFFFF, x, 1)
    out[32 * b + t] = x


@cuda.jit
def outside_in_one_block(out, a):
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    out[32 * b + t] = a[t + b // 4]


@cuda.jit
def before_the_start_in_one_block(out, a):
    s = cuda.shared.array(32, float32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    s[t] = 100 * b + t
    cuda.syncthreads()
    out[32 * b + t] = s[t - b // 4]  # -1 is the last item, if nobody checks


@cuda.jit
def unwritten_in_one_block(out, a):
    s = cuda.shared.array(32, float32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    if b != 4:
        s[t] = b
    out[32 * b + t] = s[t]


@cuda.jit
def no_value_in_one_block(out, a):
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    if b != 4:
        x = a[t]
    out[32 * b + t] = x


@cuda.jit
def divided_by_zero_in_one_block(out, a):
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    out[32 * b + t] = t // (b - 4)


@cuda.jit
def one_block_never_ends(out, a):
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    out[32 * b + t] += 1
    while b == 4:
        out[32 * b + t] += 1


MISTAKES = (
    two_blocks_write_one_cell,
    one_block_reads_what_another_wrote,
    one_block_writes_what_another_read,
    the_last_reader_writes,
    the_last_reader_in_shared_memory_writes,
    one_block_without_a_barrier,
    a_barrier_for_half_of_one_block,
    two_lanes_write_one_shared_cell,
    a_shuffle_for_half_of_one_warp,
    outside_in_one_block,
    before_the_start_in_one_block,
    unwritten_in_one_block,
    no_value_in_one_block,
    divided_by_zero_in_one_block,
    one_block_never_ends,
)


def six_blocks() -> Arguments:
    return np.zeros(6 * 32, np.float32), np.arange(32, dtype=np.float32)


@pytest.mark.parametrize("lanes", [32, 64, 4096])  # blocks in a wide gang: 1, 2, all 6
@pytest.mark.parametrize("collect", [False, True])
@pytest.mark.parametrize("kernel", MISTAKES, ids=lambda kernel: kernel.py_func.__name__)
def test_a_mistake_is_left_to_the_blocks_alone(
    kernel: object, collect: bool, lanes: int, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abreast, "LANES", lanes)
    options = {"collect": collect, "max_turns": 100, "watch": ("b, t =", "end")}
    ran = trial.both(kernel, 6, 32, six_blocks, **options)
    assert ran.abreast is False
    assert ran.error or ran.report.findings


@pytest.mark.parametrize("checks", [(), "memory", "init", "race", "sync"])
@pytest.mark.parametrize("kernel", MISTAKES, ids=lambda kernel: kernel.py_func.__name__)
def test_with_fewer_checks_a_mistake_computes_the_same(
    kernel: object, checks: object, trial: Trial
) -> None:
    ran = trial.both(kernel, 6, 32, six_blocks, checks=checks, max_turns=100)
    assert ran.abreast is False


def test_after_a_doubt_the_memory_is_as_before(trial: Trial) -> None:
    @cuda.jit
    def kernel(out, a):
        b, t = cuda.blockIdx.x, cuda.threadIdx.x
        out[32 * b + t] += 1
        if b == 1:
            a[t] = 1
        if b == 0:
            out[t] += a[t]  # in thread block 0, which comes first, nobody has written it

    ran = trial.both(kernel, 6, 32, six_blocks, unwritten="a", collect=True)
    assert ran.abreast is False
    assert [finding.check for finding in ran.report.findings] == ["init", "race"]
    assert ran.arguments[0].max() == 32  # 1 + a[31]: incremented once


def test_a_doubt_is_not_always_a_mistake(trial: Trial) -> None:
    @cuda.jit
    def kernel(out, a):
        b, t = cuda.blockIdx.x, cuda.threadIdx.x
        x = a[b]
        cuda.syncthreads()
        if t == 3:
            a[b] = 7  # all threads have read it; the run abreast only knows that several have
        out[32 * b + t] = x

    ran = trial.both(kernel, 6, 32, six_blocks)
    assert ran.abreast is False
    assert ran.report.clean


# When it is tried ----------------------------------------------------------------------------


def test_exited_threads_may_skip_a_barrier_if_the_launch_says_so(trial: Trial) -> None:
    @cuda.jit
    def kernel(out, a):
        b, t = cuda.blockIdx.x, cuda.threadIdx.x
        if t >= 20 + b:
            return
        cuda.syncthreads()
        out[32 * b + t] = a[t]

    assert trial.both(kernel, 6, 32, six_blocks).abreast is False
    assert trial.both(kernel, 6, 32, six_blocks, exited_may_skip=True).abreast


@pytest.mark.parametrize(
    "options",
    [{"order": "forward"}, {"order": 3}, {"trace": "all"}, {"shuffles_order_memory": True}],
    ids=str,
)
def test_what_needs_one_block_after_another_gets_it(options: dict, trial: Trial) -> None:
    draw = lambda: (np.zeros(4, np.float32), floats(4, N))  # noqa: E731
    assert trial.both(block_sum, 4, N, draw).abreast
    assert trial.both(block_sum, 4, N, draw, **options).abreast is None


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
    draw = lambda: (floats(5, N), np.array(LENGTHS, np.int32))  # noqa: E731
    ran = trial.both(counted, 5, N, draw, trace=trace, watch=("s[t] = out", "end"))
    assert ran.abreast
    assert len(ran.report.trace.records) > 0
    assert len(ran.report.at()) == 5


def test_a_mistake_beside_a_traced_block_is_found(trial: Trial) -> None:
    ran = trial.both(outside_in_one_block, 6, 32, six_blocks, trace=1, collect=True)
    assert ran.abreast is False
    assert [finding.block for finding in ran.report.findings] == [(4, 0, 0)]


@pytest.mark.parametrize("block", [1, 31, 33, 48])
def test_only_whole_warps_run_side_by_side(block: int, trial: Trial) -> None:
    draw = lambda: (np.zeros(200, np.float32), floats(200))  # noqa: E731
    assert trial.both(double, 4, block, draw).abreast is None
