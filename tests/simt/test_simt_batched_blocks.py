"""Thread blocks side by side: what comes out is what they give one after another."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numba import cuda, float32, int32
from simt_helpers import N, block_sum, double, floats
from simt_kernels.example import EXAMPLES
from simt_programs import arguments, run_thread_by_thread, write_program
from simt_trial import Arguments, Trial, six_blocks

from pa_tutorial.simt import batched_blocks, program
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Trial:
    return Trial(monkeypatch)


# Kernels without a mistake -------------------------------------------------------------------


def test_every_example_computes_the_same(trial: Trial) -> None:
    ran = {
        name: trial.both(
            one.kernel, one.grid, one.block, one.draw, shared_bytes=one.shared_bytes, watch="end"
        ).batched
        for name, one in EXAMPLES.items()
    }
    assert not [name for name, ended in ran.items() if ended is False]
    assert sum(ended is True for ended in ran.values()) >= 8


@pytest.mark.parametrize("lanes", [32, 64, 4096])
def test_random_programs_run_as_in_plain_python(
    lanes: int, trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched_blocks, "LANES", lanes)
    for seed in range(20):
        module = write_program(seed, tmp_path)
        out, table = arguments(96)
        assert trial.run(module.kernel, 3, 32, (out, table)).batched
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
    monkeypatch.setattr(batched_blocks, "LANES", lanes)
    assert trial.both(sums_of_rows, 5, N, rows(*LENGTHS), max_turns=max(LENGTHS)).batched


def test_snapshots_are_of_each_thread_block_in_its_turn(trial: Trial) -> None:
    watch = ("total += s", "out[b, t] = odd", "end")
    ran = trial.both(sums_of_rows, 5, N, rows(*LENGTHS), watch=watch)
    assert ran.batched
    assert len(ran.report.at("total += s")) == sum(LENGTHS)
    assert [snapshot.block[0] for snapshot in ran.report.at("out[b, t] = odd")] == [
        3
    ]  # 1 has returned
    assert [("odd" in snapshot.values) for snapshot in ran.report.at("end")] == [
        b == 3 for b in range(5)
    ]


def test_a_snapshot_of_a_part_of_a_shared_array_is_left_to_the_blocks_alone(trial: Trial) -> None:
    @cuda.jit
    def kernel(out):
        s = cuda.shared.array((2, 32), float32)
        s[0, cuda.threadIdx.x] = float32(cuda.blockIdx.x)
        row = s[0]
        out[cuda.blockIdx.x, cuda.threadIdx.x] = row[cuda.threadIdx.x]

    ran = trial.both(kernel, 2, 32, lambda: (np.zeros((2, 32), np.float32),), watch="end")
    assert ran.batched is False
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
    assert ran.batched
    np.testing.assert_array_equal(ran.arguments[0][5], 500 + 5 + 5 + np.arange(31, -1, -1))


@pytest.mark.parametrize("stage", ["cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2"])
def test_the_kernels_of_the_ladder(stage: str, trial: Trial) -> None:
    case = CASES["decode/gqa_alibi"]
    one = STAGES[stage].run(case)
    assert trial.tried
    assert all(trial.tried)
    with trial.monkeypatch.context() as patch:
        patch.setattr(program, "may_run_batched", lambda *_: False)
        other = STAGES[stage].run(case)
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


# When it is tried ----------------------------------------------------------------------------


def test_exited_threads_may_skip_a_barrier_if_the_launch_says_so(trial: Trial) -> None:
    @cuda.jit
    def kernel(out, a):
        b, t = cuda.blockIdx.x, cuda.threadIdx.x
        if t >= 20 + b:
            return
        cuda.syncthreads()
        out[32 * b + t] = a[t]

    assert trial.both(kernel, 6, 32, six_blocks).batched is False
    assert trial.both(kernel, 6, 32, six_blocks, exited_may_skip=True).batched


@pytest.mark.parametrize(
    "options",
    [{"order": "forward"}, {"order": 3}, {"trace": "all"}, {"shuffles_order_memory": True}],
    ids=str,
)
def test_what_needs_one_block_after_another_gets_it(options: dict, trial: Trial) -> None:
    draw = lambda: (np.zeros(4, np.float32), floats(4, N))  # noqa: E731
    assert trial.both(block_sum, 4, N, draw).batched
    assert trial.both(block_sum, 4, N, draw, **options).batched is None


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
    assert ran.batched
    assert len(ran.report.trace.records) > 0
    assert len(ran.report.at()) == 5


@pytest.mark.parametrize("block", [1, 31, 33, 48])
def test_only_whole_warps_run_side_by_side(block: int, trial: Trial) -> None:
    draw = lambda: (np.zeros(200, np.float32), floats(200))  # noqa: E731
    assert trial.both(double, 4, block, draw).batched is None
