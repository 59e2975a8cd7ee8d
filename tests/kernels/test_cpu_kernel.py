"""The kernel for the CPU: what the cases of the ladder do not ask."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from inspect import getsource
from types import ModuleType

import numba
import numpy as np
import pytest
import torch
from numba import njit

from pa_tutorial import kernels
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels import cpu, cpu_vectors
from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.cpu_launch import BYTES_AHEAD, cut, paged_attention_cpu, prepare_cpu
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.problem import DecodeProblem

pytestmark = pytest.mark.cpu
# All of one head size, block size and dtype: they are compiled once.
MIXED = DecodeProblem("mixed", "", "", seq_lens=(1, 300, 16, 45, 129), alibi=True)
SIZES = cpu.Sizes(MIXED.head_size, MIXED.block_size, BYTES_AHEAD)


def arguments(problem: DecodeProblem) -> dict[str, object]:
    inputs = problem.paged("plain")
    names = "q", "k_cache", "v_cache", "block_tables", "seq_lens", "scale", "alibi_slopes"
    return {name: getattr(inputs, name) for name in names}


def error(out: torch.Tensor, problem: DecodeProblem) -> float:
    """The largest relative norm of a head's error."""
    expected = torch.from_numpy(problem.expected()["out"])
    return ((out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)).max().item()


@pytest.mark.parametrize("num_shares", [1, 2, 3, 7, 32, 33, 34, 1000])
def test_any_number_of_shares_gives_the_same_step(num_shares: int) -> None:
    """33 blocks in all: one a share, and more shares than blocks."""
    out = paged_attention_cpu(**arguments(MIXED), num_shares=num_shares)
    assert error(out, MIXED) < 1e-6


@pytest.mark.parametrize(
    ("seq_lens", "num_kv_heads", "cut_into"),
    [((40,), 4, (1, 1)), ((900,), 4, (2, 1)), ((900,), 3, (1, 2)), ((20_000,), 2, (1, 8))],
    ids=["one_core", "by_heads", "heads_do_not_go_up", "several_shares_a_core"],
)
def test_a_step_is_cut_by_its_work(
    monkeypatch, seq_lens: tuple[int, ...], num_kv_heads: int, cut_into: tuple[int, int]
) -> None:
    monkeypatch.setattr(numba, "get_num_threads", lambda: 2)
    heads = {"num_heads": 2 * num_kv_heads, "num_kv_heads": num_kv_heads}
    problem = replace(MIXED, seq_lens=seq_lens, **heads)
    inputs = arguments(problem)
    step = DecodeStep(*(inputs[name] for name in inputs))
    assert cut(step, num_workers=2) == cut_into
    assert error(paged_attention_cpu(**inputs), problem) < 1e-6


def test_a_core_that_is_free_takes_the_shares_of_others() -> None:
    """Asked of the counters: with one thread, it takes those of both workers."""
    prepared = prepare_cpu(**arguments(MIXED), num_shares=5)
    taken = prepared.arguments[10]
    numba.set_num_threads(1)
    try:
        assert error(prepared.run(), MIXED) < 1e-6
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    # each worker's counter went on from its first share to the last, and once more for every core
    assert taken.tolist() == [(i + 1) * 5 // len(taken) + len(taken) for i in range(len(taken))]


@pytest.mark.parametrize("group", [2, 3, 7, 16])
def test_heads_of_a_group_go_in_tiles_and_the_rest_in_smaller_ones(group: int) -> None:
    problem = replace(MIXED, num_heads=2 * group, num_kv_heads=2)
    assert error(paged_attention_cpu(**arguments(problem), num_shares=3), problem) < 1e-6


@pytest.mark.parametrize("lanes", [8, 16])
def test_a_processor_with_fewer_or_more_lanes_gives_the_same_step(monkeypatch, lanes: int) -> None:
    """One of the two is not what this machine has."""
    vectors = ModuleType("pa_tutorial.kernels.cpu_vectors")
    vectors.__file__ = cpu_vectors.__file__
    text, found = re.subn("^LANES = 16 .*", f"LANES = {lanes}", getsource(cpu_vectors), flags=re.M)
    assert found == 1
    exec(compile(text, "<lanes>", "exec"), vectors.__dict__)
    monkeypatch.setitem(sys.modules, "pa_tutorial.kernels.cpu_vectors", vectors)
    monkeypatch.setattr(kernels, "cpu_vectors", vectors)
    problem = replace(MIXED, num_heads=10, num_kv_heads=2)
    inputs = arguments(problem)
    kernel = changed(cpu.cpu_kernel, "TURN = 64 ", "TURN = 32 ")(SIZES)
    assert error(replace(prepare_cpu(**inputs), kernel=kernel).run(), problem) < 1e-6


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "block_tables", "seq_lens"])
def test_a_prepared_step_follows_its_tensors(name: str) -> None:
    """A decode loop writes the next token, its block and its length in place, and runs again."""
    inputs = arguments(MIXED)
    prepared = prepare_cpu(**inputs)
    before = prepared.run().clone()
    if name == "block_tables":
        inputs[name][1, :2] = inputs[name][1, :2].flip(0)
    elif name == "seq_lens":
        inputs[name][4] = 3
    else:
        inputs[name].mul_(2)
    after = prepared.run()
    assert torch.equal(after, prepare_cpu(**inputs).run())
    assert not torch.equal(before, after)


def test_there_is_no_backward_pass() -> None:
    inputs = arguments(MIXED)
    for name in ("q", "k_cache", "v_cache"):
        inputs[name].requires_grad_()
    out = paged_attention_cpu(**inputs)
    assert not out.requires_grad
    assert error(out, MIXED) < 1e-6


def test_memory_beside_the_cache_is_a_few_kilobytes_a_partition() -> None:
    prepared = prepare_cpu(**arguments(MIXED), num_shares=4)
    num_partitions = 2 * 4
    of_one = 4 * MIXED.num_heads * (MIXED.head_size + 2)
    assert prepared.bytes_beside_the_cache == num_partitions * of_one
    assert of_one < 2048


@njit
def exp_of(xs: np.ndarray) -> np.ndarray:
    out = np.empty_like(xs)
    for i in range(len(xs)):
        out[i] = cpu.exp(xs[i])
    return out


def test_exp_is_as_exact_as_float32_allows() -> None:
    xs = np.concatenate([np.linspace(-87, 0, 200_001), -np.logspace(-30, 0, 200)])
    xs = xs.astype(np.float32)
    relative = np.abs(exp_of(xs) / np.exp(xs.astype(np.float64)) - 1)
    # x * log2(e) is rounded once: half a unit in the last place of up to 126
    assert (relative < 2e-7 + np.abs(xs) * 1.2e-7).all()


def test_exp_at_its_ends() -> None:
    xs = np.array([0, -np.inf, -88, -1e30, np.nan], np.float32)
    got = exp_of(xs)
    assert got[:4].tolist() == [1, 0, 0, 0]
    assert np.isnan(got[4])


@njit
def copied(stored: np.ndarray, copy: np.ndarray) -> np.ndarray:
    """Each as it is kept: widened, times 1, and narrowed."""
    cpu.multiply(stored, 0, np.float32(1), copy, 0, len(stored) // 16, 16)
    return copy


@pytest.mark.parametrize(
    ("dtype", "kept_as"), [(torch.bfloat16, torch.uint16), (torch.float16, torch.int16)]
)
def test_every_16_bit_float_is_widened_exactly(dtype: torch.dtype, kept_as: torch.dtype) -> None:
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    got = torch.from_numpy(copied(numbers.view(kept_as).numpy(), np.empty(2**16, np.float32)))
    assert torch.allclose(got, numbers.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "kept_as"), [(torch.bfloat16, np.uint16), (torch.float16, np.int16)]
)
def test_floats_are_narrowed_as_torch_does(dtype: torch.dtype, kept_as: type) -> None:
    bits = np.random.default_rng(0).integers(-(2**31), 2**31, 2**14).astype(np.int32)
    numbers = np.concatenate([bits.view(np.float32), np.float32([np.nan, np.inf, -np.inf, 0] * 4)])
    got = torch.from_numpy(copied(numbers, np.empty(len(numbers), kept_as)).view(np.int16))
    expected = torch.from_numpy(numbers).to(dtype)
    assert torch.equal(got.view(dtype).float().nan_to_num(7), expected.float().nan_to_num(7))


def test_the_compiled_kernel_is_kept_on_disk() -> None:
    inputs = arguments(MIXED)
    prepare_cpu(**inputs).run()
    again = cpu.cpu_kernel.__wrapped__(SIZES)
    prepared = replace(prepare_cpu(**inputs), kernel=again)
    prepared.run()
    assert sum(again.stats.cache_hits.values()) == 1
    assert not again.stats.cache_misses


def test_a_changed_text_of_the_kernel_is_not_kept() -> None:
    """Numba knows a file by its time: a changed copy in memory would be taken for the file."""
    same = changed(cpu.cpu_kernel, "TURN = 64 ", "TURN = 128 ")
    inputs = arguments(MIXED)
    kernel = same(SIZES)
    assert error(replace(prepare_cpu(**inputs), kernel=kernel).run(), MIXED) < 1e-6
    assert not kernel.stats.cache_hits


def vllm_layout(arguments: dict) -> None:
    inputs = MIXED.paged("vllm")
    arguments.update(k_cache=inputs.k_cache, v_cache=inputs.v_cache)


def of_double(arguments: dict) -> None:
    for name in ("q", "k_cache", "v_cache"):
        arguments[name] = arguments[name].double()


def q_of_another_dtype(arguments: dict) -> None:
    arguments["q"] = arguments["q"].half()


def with_gaps(arguments: dict) -> None:
    arguments["k_cache"] = arguments["k_cache"][::2]
    arguments["v_cache"] = arguments["v_cache"][::2]
    arguments["block_tables"] //= 2


def blocks_of_four(arguments: dict) -> None:
    arguments["k_cache"] = arguments["k_cache"][:, :, :4].contiguous()
    arguments["v_cache"] = arguments["v_cache"][:, :, :4].contiguous()


def too_long(arguments: dict) -> None:
    arguments["seq_lens"][1] = 10_000


def no_such_block(arguments: dict) -> None:
    arguments["block_tables"][3, 2] = 10_000


def on_meta(arguments: dict) -> None:
    arguments["q"] = arguments["q"].to("meta")


def infinite_slope(arguments: dict) -> None:
    arguments["alibi_slopes"][1] = torch.inf


def no_shares(arguments: dict) -> None:
    arguments["num_shares"] = 0


REFUSED = {
    vllm_layout: r"k_cache.shape is \[.*\]; it must be of 4 dimensions: the plain layout",
    of_double: "q.dtype is torch.float64; it must be one of torch.float32, torch.float16",
    q_of_another_dtype: "q.dtype is torch.float16; it must be torch.float32, as the cache",
    with_gaps: r"k_cache.stride\(\)\[-4:\] is .*; it must be .*without gaps",
    blocks_of_four: r"k_cache.shape\[2\] is 4; it must be one of \(8, 16, 32\)",
    too_long: r"seq_lens\[1\] is 10000; it must be 1 to",
    no_such_block: r"block_tables\[3\] names block 10000; it must be 0 to",
    on_meta: "q.device is meta; it must be cpu or cuda",
    infinite_slope: r"alibi_slopes\[1\] is inf; it must be finite",
    no_shares: "num_shares is 0; it must be at least 1",
}


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_what_the_kernel_cannot_take_is_refused(change: Callable) -> None:
    inputs = arguments(MIXED)
    change(inputs)
    with pytest.raises(ValueError, match=REFUSED[change]):
        paged_attention_cpu(**inputs)


def test_the_probe_holds_the_merged_maximum_and_sum() -> None:
    problem = CASES["decode/drifting_scores"]
    probe: dict[str, torch.Tensor] = {}
    paged_attention_cpu(**arguments(problem), probe=probe, num_shares=4)
    for name in ("qk_max", "exp_sum"):
        expected = problem.expected()[name]
        assert np.allclose(probe[name].numpy(), expected, rtol=1e-4), name
