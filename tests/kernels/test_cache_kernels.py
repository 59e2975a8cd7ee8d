"""reshape_and_cache and copy_blocks as kernels: the same bits as the torch versions, everywhere."""

import pytest
import torch
from torch import Tensor

from pa_tutorial.kernels.launch import copy_blocks, reshape_and_cache_by_kernel
from pa_tutorial.kernels.prepare_cache import (
    prepare_copy_blocks,
    prepare_reshape_and_cache,
    rounds,
)
from pa_tutorial.paging import layouts
from pa_tutorial.paging.kv_cache import PagedKVCache
from pa_tutorial.paging.layouts import VllmLayout

hypothesis = pytest.importorskip(
    "hypothesis", reason="hypothesis draws the tests: an extra for tests"
)
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
by_sizes = pytest.mark.parametrize(
    ("dtype", "num_kv_heads", "head_size", "block_size"),
    [(F32, 8, 80, 8), (F16, 1, 120, 16), (BF16, 2, 64, 32), (F32, 3, 128, 16), (BF16, 1, 256, 8)],
)


def require_same(ours: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """NaN are equal to nothing; their bits are."""
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# New tokens -----------------------------------------------------------------------------------

# 7 tokens for 5 blocks: two are not written, the others lie in four blocks, in no order
OFFSETS = ((3, 1), None, (4, -1), (0, 0), (3, 2), (1, 0), None)  # (block, offset in it)


def new_tokens(layout: VllmLayout) -> tuple[Tensor, Tensor, Tensor]:
    """key, value, slot_mapping; key and value are views of tensors that hold more, as in vLLM."""
    heads, tokens, size = layout.num_kv_heads, len(OFFSETS), layout.block_size
    qkv = random(tokens, 4 * heads, layout.head_size, dtype=layout.dtype)
    wide = random(tokens, heads + 1, layout.head_size, dtype=layout.dtype, seed=1)
    slots = [-1 if place is None else place[0] * size + place[1] % size for place in OFFSETS]
    return qkv[:, 2 * heads : 3 * heads], wide[:, 1:], torch.tensor(slots)


@by_sizes
def test_tokens_lie_where_the_torch_version_puts_them(
    dtype: torch.dtype, num_kv_heads: int, head_size: int, block_size: int
) -> None:
    """And every other place keeps its NaN."""
    layout = VllmLayout(5, num_kv_heads, head_size, block_size, dtype)
    ours, expected = layout.empty(), layout.empty()
    key, value, slots = new_tokens(layout)
    layouts.reshape_and_cache(key, value, *expected, slots)
    reshape_and_cache_by_kernel(key, value, *ours, slots)
    require_same(ours, expected)


def test_every_bit_of_a_token_arrives() -> None:
    """NaN of many kinds, infinities and numbers below the smallest normal one."""
    layout = VllmLayout(8192 // 16, 1, 32, 16, BF16)
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(BF16).view(-1, 1, 32)
    k_cache, v_cache = layout.empty()
    slots = torch.arange(len(patterns))
    reshape_and_cache_by_kernel(patterns, patterns.flip(0), k_cache, v_cache, slots)
    ours = layouts.gather(k_cache, v_cache, torch.arange(layout.num_blocks), len(patterns))
    require_same(ours, (patterns, patterns.flip(0)))
    none = patterns[:0]
    assert prepare_reshape_and_cache(none, none, k_cache, v_cache, slots[:0]) == []


# Blocks ---------------------------------------------------------------------------------------


def pool(layout: VllmLayout, num_layers: int = 2) -> PagedKVCache:
    """Random numbers in all blocks of all layers but the first: there are NaN."""
    made = PagedKVCache(layout, num_layers)
    for seed, tensor in enumerate((*made.k, *made.v)):
        tensor[1:] = random(*tensor[1:].shape, dtype=layout.dtype, seed=seed)
    return made


def check_copies(layout: VllmLayout, pairs: list, num_layers: int = 2) -> None:
    ours, expected = pool(layout, num_layers), pool(layout, num_layers)
    expected.copy_blocks(pairs)
    copy_blocks(ours.k, ours.v, pairs)
    require_same((*ours.k, *ours.v), (*expected.k, *expected.v))


@by_sizes
def test_blocks_are_copied_as_by_the_torch_version(
    dtype: torch.dtype, num_kv_heads: int, head_size: int, block_size: int
) -> None:
    layout = VllmLayout(6, num_kv_heads, head_size, block_size, dtype)
    check_copies(layout, [(1, 4), (3, 2), (1, 5), (0, 3)])


TINY = VllmLayout(6, num_kv_heads=1, head_size=8, block_size=2, dtype=F16)
any_pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8)


@settings(max_examples=40, deadline=None)
@given(pairs=any_pairs)
def test_any_pairs_are_copied_in_order_and_without_a_race(pairs: list) -> None:
    check_copies(TINY, pairs, num_layers=3)


@settings(max_examples=200, deadline=None)
@given(pairs=any_pairs)
def test_rounds_are_as_many_as_the_longest_chain_of_conflicts(pairs: list) -> None:
    """That they keep the order and race nowhere, the test above sees."""
    longest: list[int] = []
    for i, (source, destination) in enumerate(pairs):
        before = [
            longest[j]
            for j, other in enumerate(pairs[:i])
            if destination in other or other[1] in (source, destination)
        ]
        longest.append(1 + max(before, default=0))
    assert len(rounds(pairs)) == max(longest, default=0)
    assert sorted(pair for one in rounds(pairs) for pair in one) == sorted(pairs)


def test_a_layer_and_a_round_is_a_launch_of_a_thread_block_for_each_pair() -> None:
    made = pool(TINY, num_layers=3)
    for pairs in ([(1, 2), (2, 3), (4, 5)], torch.tensor([(1, 2), (2, 3), (4, 5)])):
        prepared = prepare_copy_blocks(made.k, made.v, pairs)
        assert [one.grid for one in prepared] == [(2, 1, 1)] * 3 + [(1, 1, 1)] * 3
        assert all(one.out is cache for one, cache in zip(prepared, made.k * 2, strict=True))


# A large pool ---------------------------------------------------------------------------------

# 2**11 elements a block: the last block begins at 2**31
LARGE = VllmLayout(2**20 + 1, num_kv_heads=1, head_size=128, block_size=16, dtype=F16)


def reaches_the_last_block(kernel: str) -> bool:
    """4 GiB are reserved, and a few pages are used. V lies in the same memory, one block later."""
    block = 2**11
    memory = torch.empty(2**31 + 2 * block, dtype=F16)
    memory[: 2 * block] = memory[-2 * block :] = float("nan")
    k_cache, v_cache = memory[:-block].view(LARGE.k_shape), memory[block:].view(LARGE.v_shape)
    if kernel == "copy_blocks_kernel":
        k_cache[0] = 1
        v_cache[0] = 2
        (prepared,) = prepare_copy_blocks([k_cache], [v_cache], [(0, LARGE.num_blocks - 1)])
    else:
        key, value = torch.full((1, 1, 128), 1.0).half(), torch.full((1, 1, 128), 2.0).half()
        slots = torch.tensor([LARGE.num_blocks * LARGE.block_size - 1])
        (prepared,) = prepare_reshape_and_cache(key, value, k_cache, v_cache, slots)
    prepared.simulate(checks=("memory", "init", "sync"))  # race remembers 8 bytes an element
    return bool((k_cache[-1, 0, :, -1] == 1).all() and (v_cache[-1, 0, :, -1] == 2).all())


@pytest.mark.parametrize("name", ["reshape_and_cache_kernel", "copy_blocks_kernel"])
def test_blocks_behind_two_billion_elements_need_64_bits(name: str) -> None:
    assert reaches_the_last_block(name)
