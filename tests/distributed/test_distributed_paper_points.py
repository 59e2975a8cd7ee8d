"""Decode time and users on paper: against blocks that are given out, and what was measured."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from pa_tutorial.distributed.paper import (
    attention_time,
    decode_time,
    kv_bytes_per_token,
    num_users,
    weight_bytes,
)
from pa_tutorial.distributed.sizes import (
    A100,
    H100,
    LLAMA_2_7B,
    LLAMA_2_70B,
    LLAMA_3_1_70B,
    NVLINK_3,
    Device,
    ModelSizes,
)
from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator

RESULTS = Path(__file__).parents[2] / "benchmarks" / "amd-epyc-2-cores.json"
SMALL = ModelSizes("small", 3, 8, 4, 5, 24, 56, 80, bytes_per_number=2)
ODD_DEVICE = Device("odd", bandwidth=7.0, memory=1e9, flops=11.0)


# Users: blocks that are given out ---------------------------------------------------------------


def with_pool(model: ModelSizes, num_blocks: int, heads: int, block_size: int) -> Device:
    """A device with room for so many blocks, and almost one more."""
    block = block_size * kv_bytes_per_token(model, heads)
    return replace(ODD_DEVICE, memory=weight_bytes(model, heads) + (num_blocks + 1) * block - 1)


@pytest.mark.parametrize("heads", [1, 4, 8])
@pytest.mark.parametrize(
    ("context", "shared"), [(1, 0), (16, 0), (17, 0), (17, 16), (40, 7), (40, 8), (40, 39)]
)
def test_as_many_users_fit_as_block_tables_can_be_filled(
    context: int, shared: int, heads: int
) -> None:
    device = with_pool(SMALL, 53, heads, block_size=8)
    allocator = PrefixCachingAllocator(num_blocks=53 + 1)  # and the null block
    users = []
    for first_own in range(1000, 100_000, 1000):
        user = BlockTable(allocator, block_size=8)
        prompt = [*range(shared), *range(first_own, first_own + context - shared)]
        if user.look_up(prompt).num_blocks > allocator.num_free:
            break
        user.append(prompt)
        users.append(user)
    found = num_users(SMALL, device, context, shared, heads, block_size=8, usable=1)
    assert found == len(users)


@pytest.mark.parametrize("contexts", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("num_blocks", "num_shared"), [(1, 0), (5, 0), (5, 4), (12, 7), (13, 3), (99, 98), (250, 240)]
)
def test_as_many_users_fit_as_blocks_can_be_dealt_out_to_ranks(
    contexts: int, num_blocks: int, num_shared: int
) -> None:
    """Block i goes to rank i % contexts; shared ones are taken by the first user only."""
    pool, block_size = 29, 4
    device = with_pool(SMALL, pool, 2, block_size)
    ranks = [BlockAllocator(pool + 1) for _ in range(contexts)]
    places = range(num_blocks)
    users = 0
    while users < 100:
        needed = [sum(place % contexts == rank for place in places) for rank in range(contexts)]
        if any(n > allocator.num_free for n, allocator in zip(needed, ranks, strict=True)):
            break
        for place in places:
            ranks[place % contexts].allocate()
        places = range(num_shared, num_blocks)  # of every other user
        users += 1
    context, shared = num_blocks * block_size, num_shared * block_size
    found = num_users(SMALL, device, context, shared, 2, contexts, block_size, usable=1)
    assert found == users


def test_more_devices_than_kv_heads_hold_hardly_more_users() -> None:
    of_8, of_64 = (num_users(LLAMA_3_1_70B, H100, 8192, heads=n) for n in (8, 64))
    dealt = num_users(LLAMA_3_1_70B, H100, 8192, heads=8, contexts=8)
    assert of_64 < 1.5 * of_8
    assert dealt > 7.9 * of_8


def test_weights_that_do_not_fit_leave_room_for_nobody() -> None:
    assert num_users(LLAMA_3_1_70B, H100, 16) == 0
    assert num_users(LLAMA_3_1_70B, H100, 16, heads=2) > 0
    assert num_users(LLAMA_3_1_70B, H100, 16, heads=2, usable=0.8) == 0


# Measured points --------------------------------------------------------------------------------

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
FROM_MEMORY = 2**26  # bytes of K and V: twice the last cache of the machine that measured


def measured_over_predicted() -> list[tuple[int, int, float]]:
    """(query heads a KV head, bytes of K and V, measured / predicted time) of the CPU kernel."""
    decode = json.loads(RESULTS.read_text(encoding="utf-8"))["decode"]
    large = [row["read_gb_per_s"] for row in decode["rows"] if row["kv_bytes"] >= FROM_MEMORY]
    machine = Device("this machine", 1e9 * median(large), 0, 1e9 * decode["peak_gflop_per_s"])
    found = []
    for row in decode["rows"]:
        shape = row["shape"]
        heads, kv_heads = shape["num_heads"], shape["num_kv_heads"]
        model = ModelSizes("attention", 1, heads, kv_heads, shape["head_size"], 1, 1, 1,
                           ITEMSIZE[shape["dtype"]])  # fmt: skip
        predicted = attention_time(model, machine, shape["num_seqs"], shape["seq_len"]).total
        measured = row["times"]["cpu"]["median_ms"] / 1e3
        found.append((heads // kv_heads, row["kv_bytes"], measured / predicted))
    return found


def test_measured_attention_takes_one_to_one_point_seven_times_the_prediction() -> None:
    """With a KV head for each query head, and K and V too large for the caches."""
    ratios = [r for group, size, r in measured_over_predicted() if group == 1 and size >= 2**26]
    assert len(ratios) >= 20
    assert min(ratios) >= 1
    assert max(ratios) <= 1.7


def test_measured_attention_of_grouped_heads_takes_up_to_three_and_a_half_times_as_long() -> None:
    """The cores compute for 4 to 32 query heads what they read once: no longer only reading."""
    ratios = [r for group, size, r in measured_over_predicted() if group > 1 and size >= 2**26]
    assert len(ratios) >= 20
    assert min(ratios) >= 1
    assert max(ratios) <= 3.5


def test_no_measured_step_is_faster_than_the_prediction_and_small_ones_are_far_slower() -> None:
    ratios = [(size, r) for _, size, r in measured_over_predicted()]
    assert min(r for _, r in ratios) >= 1
    assert min(r for size, r in ratios if size < 2**22) > 2  # starting threads is not counted


def test_users_on_paper_are_those_that_the_engine_served() -> None:
    """In fixed memory, 856 + 16 tokens each; with 512 of them shared, some end before others."""
    memory = json.loads(RESULTS.read_text(encoding="utf-8"))["engine"]["memory"]
    rows = {(row["requests"], row["way"]): row for row in memory["rows"]}
    model = ModelSizes("cache only", 1, 1, 1, 1, 1, 1, 1, 4)
    device = replace(ODD_DEVICE, memory=weight_bytes(model) + 8 * memory["slots"])
    alone = num_users(model, device, 872, usable=1)
    shared = num_users(model, device, 872, 512, usable=1)
    assert alone == rows["856 + 16 tokens each", "paged"]["mean_running"]
    served = rows["the same, 512 of them shared", "paged, prefix caching"]
    assert shared <= served["mean_running"] <= 1.05 * shared


@pytest.mark.parametrize(
    ("model", "heads", "batch", "prompt", "new_tokens", "published", "most"),
    [
        (LLAMA_2_7B, 1, 60, 128, 2048, 1928, 1.5),
        (LLAMA_2_7B, 2, 64, 2048, 2048, 782, 1.5),
        (LLAMA_2_70B, 4, 240, 128, 2048, 525, 3.7),  # there the model is far too good
        (LLAMA_2_70B, 4, 1280, 128, 128, 670, 3.1),  # half of the tokens are computed in prefill
    ],
)
def test_published_throughput_of_a100_is_below_the_prediction(
    model: ModelSizes,
    heads: int,
    batch: int,
    prompt: int,
    new_tokens: int,
    published: float,
    most: float,
) -> None:
    """NVIDIA, Performance of TensorRT-LLM (0.6.1): A100, float16, tokens a second and GPU.

    The published figures include the prefill, so they are slower by that too.
    """
    measured = batch / (heads * published)
    context = prompt + new_tokens // 2  # on average
    predicted = decode_time(model, A100, NVLINK_3, batch, context, heads).total
    assert 1 <= measured / predicted <= most
