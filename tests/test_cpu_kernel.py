"""The kernel for the CPU: what the cases of the ladder do not ask."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numba import njit

from pa_tutorial.kernels import cpu
from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.cpu_launch import paged_attention_cpu, prepare_cpu, sizes_of
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.problem import DecodeProblem

pytestmark = pytest.mark.cpu
# All of one head size, block size and dtype: they are compiled once.
MIXED = DecodeProblem("mixed", "", "", seq_lens=(1, 300, 16, 45, 129), alibi=True)


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


def test_without_a_number_there_is_a_share_for_each_thread() -> None:
    assert error(paged_attention_cpu(**arguments(MIXED)), MIXED) < 1e-6


@pytest.mark.parametrize("group", [2, 3, 4, 5, 7])
def test_heads_of_a_group_go_in_pairs_and_the_odd_one_by_itself(group: int) -> None:
    problem = replace(MIXED, num_heads=2 * group, num_kv_heads=2)
    assert error(paged_attention_cpu(**arguments(problem), num_shares=3), problem) < 1e-6


def test_the_last_steps_of_the_walk_can_be_turned_off() -> None:
    problem = replace(MIXED, num_heads=6, num_kv_heads=2)
    prepared = prepare_cpu(**arguments(problem), tiles=False, ahead=0)
    assert error(prepared.run(), problem) < 1e-6


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "block_tables", "seq_lens"])
def test_a_prepared_step_follows_its_tensors(name: str) -> None:
    """A decode loop writes the next token, its block and its length in place, and runs again."""
    inputs = arguments(MIXED)
    prepared = prepare_cpu(**inputs)
    before = prepared.run()
    if name == "block_tables":
        inputs[name][1, :2] = inputs[name][1, :2].flip(0)
    elif name == "seq_lens":
        inputs[name][4] = 3
    else:
        inputs[name].mul_(2)
    after = prepared.run()
    assert torch.equal(after, prepare_cpu(**inputs).run())
    assert not torch.equal(before, after)


def test_a_result_is_not_overwritten_by_the_next_run() -> None:
    prepared = prepare_cpu(**arguments(MIXED))
    first = prepared.run()
    kept = first.clone()
    prepared.q.zero_()
    prepared.run()
    assert torch.equal(first, kept)


def test_there_is_no_backward_pass() -> None:
    inputs = arguments(MIXED)
    for name in ("q", "k_cache", "v_cache"):
        inputs[name].requires_grad_()
    out = paged_attention_cpu(**inputs)
    assert not out.requires_grad
    assert error(out, MIXED) < 1e-6


def test_memory_beside_the_cache_is_a_few_kilobytes_a_partition() -> None:
    prepared = prepare_cpu(**arguments(MIXED), num_shares=4)
    num_partitions = 4 + len(MIXED.seq_lens)
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
def widened(stored: np.ndarray) -> np.ndarray:
    out = np.empty(len(stored), np.float32)
    for i in range(len(stored)):
        out[i] = cpu.widen(stored[i])
    return out


@pytest.mark.parametrize(
    ("dtype", "kept_as"), [(torch.bfloat16, torch.uint16), (torch.float16, torch.int16)]
)
def test_every_16_bit_float_is_widened_exactly(dtype: torch.dtype, kept_as: torch.dtype) -> None:
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    got = torch.from_numpy(widened(numbers.view(kept_as).numpy()))
    assert torch.allclose(got, numbers.float(), rtol=0, atol=0, equal_nan=True)


def test_the_compiled_kernel_is_kept_on_disk() -> None:
    inputs = arguments(MIXED)
    prepare_cpu(**inputs).run()
    again = cpu.cpu_kernel.__wrapped__(sizes_of(inputs["v_cache"]))
    prepared = replace(prepare_cpu(**inputs), kernel=again)
    prepared.run()
    assert sum(again.stats.cache_hits.values()) == 1
    assert not again.stats.cache_misses


def test_a_changed_text_of_the_kernel_is_not_kept() -> None:
    """Numba knows a file by its time: a changed copy in memory would be taken for the file."""
    same = changed(
        cpu.cpu_kernel,
        "of_data = number(0), number(2), number(1)\n",
        "of_data = number(0), number(3), number(1)\n",
    )
    inputs = arguments(MIXED)
    kernel = same(sizes_of(inputs["v_cache"]))
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
