"""Kernels with a mistake: side by side they fall back, and then all is as it was."""

import pytest
from numba import cuda, float32
from simt_kernels.example import FAULTS
from simt_trial import Trial, six_blocks

from pa_tutorial.simt import batched_blocks


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Trial:
    return Trial(monkeypatch)


def test_every_fault_is_found_as_it_was(trial: Trial) -> None:
    ran = {
        name: trial.both(
            one.kernel, one.grid, one.block, one.draw, shared_bytes=one.shared_bytes, collect=True
        ).batched
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
def the_second_of_two_readers_writes(out, a):
    s = cuda.shared.array(32, float32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    if t == 7:
        out[32 * b] = s[5]
    if t == 31:
        out[32 * b + t] = s[5]
        if b == 3:
            s[5] = 0


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
    the_second_of_two_readers_writes,
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


@pytest.mark.parametrize("lanes", [32, 64, 4096])  # blocks in a wide gang: 1, 2, all 6
@pytest.mark.parametrize("collect", [False, True])
@pytest.mark.parametrize("kernel", MISTAKES, ids=lambda kernel: kernel.py_func.__name__)
def test_a_mistake_is_left_to_the_blocks_alone(
    kernel: object, collect: bool, lanes: int, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched_blocks, "LANES", lanes)
    options = {"collect": collect, "max_turns": 100, "watch": ("b, t =", "end")}
    ran = trial.both(kernel, 6, 32, six_blocks, **options)
    assert ran.batched is False
    assert ran.error or ran.report.findings


@pytest.mark.parametrize("checks", [(), "memory", "init", "race", "sync"])
@pytest.mark.parametrize("kernel", MISTAKES, ids=lambda kernel: kernel.py_func.__name__)
def test_with_fewer_checks_a_mistake_computes_the_same(
    kernel: object, checks: object, trial: Trial
) -> None:
    ran = trial.both(kernel, 6, 32, six_blocks, checks=checks, max_turns=100)
    assert ran.batched is False


def test_after_a_fallback_the_memory_is_as_before(trial: Trial) -> None:
    @cuda.jit
    def kernel(out, a):
        b, t = cuda.blockIdx.x, cuda.threadIdx.x
        out[32 * b + t] += 1
        if b == 1:
            a[t] = 1
        if b == 0:
            out[t] += a[t]  # in thread block 0, which comes first, nobody has written it

    ran = trial.both(kernel, 6, 32, six_blocks, unwritten="a", collect=True)
    assert ran.batched is False
    assert [finding.check for finding in ran.report.findings] == ["init", "race"]
    assert ran.arguments[0].max() == 32  # 1 + a[31]: incremented once


def test_a_fallback_is_not_always_a_mistake(trial: Trial) -> None:
    @cuda.jit
    def kernel(out, a):
        b, t = cuda.blockIdx.x, cuda.threadIdx.x
        x = a[b]
        cuda.syncthreads()
        if t == 3:
            a[b] = 7  # all threads have read it; the batched run only knows that several have
        out[32 * b + t] = x

    ran = trial.both(kernel, 6, 32, six_blocks)
    assert ran.batched is False
    assert ran.report.clean


def test_a_mistake_beside_a_traced_block_is_found(trial: Trial) -> None:
    ran = trial.both(outside_in_one_block, 6, 32, six_blocks, trace=1, collect=True)
    assert ran.batched is False
    assert [finding.block for finding in ran.report.findings] == [(4, 0, 0)]
