"""reshape_and_cache and copy_blocks as kernels: the same bits as the torch versions, everywhere."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from pa_tutorial.kernels import cache as kernels
from pa_tutorial.kernels import prepare_cache
from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.launch import copy_blocks, reshape_and_cache_by_kernel
from pa_tutorial.kernels.prepare_cache import (
    prepare_copy_blocks,
    prepare_reshape_and_cache,
    rounds,
)
from pa_tutorial.paging import layouts
from pa_tutorial.paging.kv_cache import PagedKVCache
from pa_tutorial.paging.layouts import VllmLayout
from pa_tutorial.simt import SimtError

hypothesis = pytest.importorskip(
    "hypothesis", reason="hypothesis draws the tests: an extra for tests"
)
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
by_dtype = pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
by_sizes = pytest.mark.parametrize(
    ("num_kv_heads", "head_size", "block_size"),
    [(8, 80, 8), (1, 120, 16), (2, 64, 32), (3, 128, 16), (1, 256, 8), (4, 32, 16)],
)
Caches = tuple[Tensor, ...]


def bits(tensor: Tensor) -> Tensor:
    """NaN are equal to nothing; their bits are."""
    return tensor.contiguous().view(torch.uint8)


def require_same(ours: Caches, expected: Caches) -> None:
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(bits(one), bits(other))


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def found(by: str) -> AbstractContextManager:
    """Inside, a wrong kernel must be found: by its result, or by this check of the simulator."""
    if by == "result":
        return pytest.raises(AssertionError)
    return pytest.raises(SimtError, match=f"^{by}: ")


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


def check_new_tokens(layout: VllmLayout, write: Callable = reshape_and_cache_by_kernel) -> None:
    """The kernel writes what the torch version writes; every other place keeps its NaN."""
    ours, expected = layout.empty(), layout.empty()
    key, value, slots = new_tokens(layout)
    layouts.reshape_and_cache(key, value, *expected, slots)
    write(key, value, *ours, slots)
    require_same(ours, expected)
    written = (slots >= 0).sum() * layout.num_kv_heads * layout.head_size
    assert all((~cache.isnan()).sum() == written for cache in ours)


@by_dtype
@by_sizes
def test_tokens_lie_where_the_torch_version_puts_them(
    dtype: torch.dtype, num_kv_heads: int, head_size: int, block_size: int
) -> None:
    check_new_tokens(VllmLayout(5, num_kv_heads, head_size, block_size, dtype))


REFERENCE = VllmLayout(5, num_kv_heads=8, head_size=80, block_size=8, dtype=F16)


@pytest.mark.parametrize("order", ["forward", "reverse", 3])
def test_tokens_may_be_written_in_any_order(order: str | int) -> None:
    def write(*tensors: Tensor) -> None:
        (prepared,) = prepare_reshape_and_cache(*tensors)
        assert prepared.simulate(order=order).clean

    check_new_tokens(REFERENCE, write)


def test_every_bit_of_a_token_arrives() -> None:
    """NaN of many kinds, infinities and numbers below the smallest normal one."""
    layout = VllmLayout(8192 // 16, 1, 32, 16, BF16)
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(BF16).view(-1, 1, 32)
    k_cache, v_cache = layout.empty()
    slots = torch.arange(len(patterns))
    reshape_and_cache_by_kernel(patterns, patterns.flip(0), k_cache, v_cache, slots)
    ours = layouts.gather(k_cache, v_cache, torch.arange(layout.num_blocks), len(patterns))
    require_same(ours, (patterns, patterns.flip(0)))


@pytest.mark.parametrize("count", [0, 3])
def test_padding_alone_leaves_the_cache_untouched(count: int) -> None:
    ours, before = REFERENCE.empty(), REFERENCE.empty()
    key, value, _ = new_tokens(REFERENCE)
    slots = torch.full((count,), -1)
    reshape_and_cache_by_kernel(key[:count], value[:count], *ours, slots)
    require_same(ours, before)


def test_one_token_for_all_slots_has_a_stride_of_0() -> None:
    ours, expected = REFERENCE.empty(), REFERENCE.empty()
    key, value = (t[:1].expand(40, -1, -1) for t in new_tokens(REFERENCE)[:2])
    reshape_and_cache_by_kernel(key, value, *ours, torch.arange(40))
    layouts.reshape_and_cache(key, value, *expected, torch.arange(40))
    require_same(ours, expected)


PLACES = """\
            head_ptr = block_ptr + head_idx * (HEAD_SIZE * BLOCK_SIZE)
            k_place = head_ptr + d // X * (BLOCK_SIZE * X) + offset * X + d % X
            v_place = head_ptr + d * BLOCK_SIZE + offset
"""
TOKENS_FIRST = """\
            token_ptr = block_ptr + offset * (HEAD_SIZE * NUM_KV_HEADS)
            k_place = token_ptr + d // X * (NUM_KV_HEADS * X) + head_idx * X + d % X
            v_place = token_ptr + d * NUM_KV_HEADS + head_idx
"""
# (old, new, what finds it: the result, or a check of the simulator)
WRONG_TOKENS = {
    "slot_of_larger_blocks": ("slot // BLOCK_SIZE *", "slot // (2 * BLOCK_SIZE) *", "race"),
    "offset_of_larger_blocks": ("slot % BLOCK_SIZE", "slot % (2 * BLOCK_SIZE)", "result"),
    "x_of_float32": ("head_size, block_size, x\n", "head_size, block_size, 4\n", "result"),
    "stride_of_the_key_ignored": ("* key_stride", "* TOKEN_SIZE", "result"),
    "stride_of_the_value_ignored": ("* value_stride", "* TOKEN_SIZE", "result"),
    "stride_of_the_key_for_the_value": ("* value_stride", "* key_stride", "memory"),
    "padding_written": ("        if slot < 0:\n            return\n", "", "memory"),
    "head_and_offset_exchanged": (PLACES, TOKENS_FIRST, "result"),
    "v_laid_out_as_k": ("= head_ptr + d * BLOCK_SIZE + offset", "= k_place", "result"),
    "one_element_a_thread": ("(thread_idx, TOKEN_SIZE", "(thread_idx, NUM_THREADS", "result"),
    "all_elements_by_every_thread": ("(thread_idx, TOKEN_SIZE, NUM", "(0, TOKEN_SIZE, NUM", "race"),
}


@pytest.mark.parametrize("name", WRONG_TOKENS)
def test_a_wrong_kernel_for_tokens_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, found_by = WRONG_TOKENS[name]
    wrong = changed(kernels.reshape_and_cache_kernel, old, new)
    monkeypatch.setattr(prepare_cache, "reshape_and_cache_kernel", wrong)
    with found(found_by):
        check_new_tokens(REFERENCE)


# Blocks ---------------------------------------------------------------------------------------


def pool(layout: VllmLayout, num_layers: int = 2) -> PagedKVCache:
    """Random numbers in all blocks of all layers but the first: there are NaN."""
    made = PagedKVCache(layout, num_layers)
    for seed, tensor in enumerate((*made.k, *made.v)):
        tensor[1:] = random(*tensor[1:].shape, dtype=layout.dtype, seed=seed)
    return made


def check_copies(
    layout: VllmLayout, pairs: list, copy: Callable = copy_blocks, num_layers: int = 2
) -> None:
    ours, expected = pool(layout, num_layers), pool(layout, num_layers)
    expected.copy_blocks(pairs)
    copy(ours.k, ours.v, pairs)
    require_same((*ours.k, *ours.v), (*expected.k, *expected.v))


@by_dtype
@by_sizes
def test_blocks_are_copied_as_by_the_torch_version(
    dtype: torch.dtype, num_kv_heads: int, head_size: int, block_size: int
) -> None:
    layout = VllmLayout(6, num_kv_heads, head_size, block_size, dtype)
    check_copies(layout, [(1, 4), (3, 2), (1, 5), (0, 3)])


TINY = VllmLayout(6, num_kv_heads=1, head_size=8, block_size=2, dtype=F16)
ORDERED = {
    "chain": [(1, 2), (2, 3), (3, 4)],
    "chain_from_its_end": [(3, 4), (2, 3), (1, 2)],
    "swap_by_a_free_block": [(1, 5), (2, 1), (5, 2)],
    "one_destination_twice": [(1, 3), (2, 3)],
    "there_and_back": [(1, 2), (2, 1)],
    "onto_itself": [(1, 1), (2, 1)],
    "none": [],
}


@pytest.mark.parametrize("name", ORDERED)
def test_pairs_are_copied_one_after_the_other_in_every_layer(name: str) -> None:
    check_copies(TINY, ORDERED[name], num_layers=3)


@pytest.mark.parametrize("kind", ["tensor", "strided_tensor", "generator"])
def test_pairs_may_come_as(kind: str) -> None:
    table = torch.tensor(ORDERED["chain"])

    def copy(k_caches: list, v_caches: list, pairs: list) -> None:
        strided = torch.stack([table, -table], dim=2)[..., 0]
        kinds = {"tensor": table, "strided_tensor": strided, "generator": iter(pairs)}
        copy_blocks(k_caches, v_caches, kinds[kind])

    check_copies(TINY, ORDERED["chain"], copy)


blocks = st.integers(0, 5)
any_pairs = st.lists(st.tuples(blocks, blocks), max_size=8)


@settings(max_examples=40, deadline=None)
@given(pairs=any_pairs)
def test_any_pairs_are_copied_in_order_and_without_a_race(pairs: list) -> None:
    check_copies(TINY, pairs)


def conflict(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[1] in other or other[1] in one


@settings(max_examples=200, deadline=None)
@given(pairs=any_pairs)
def test_rounds_keep_the_order_and_have_no_conflict(pairs: list) -> None:
    cut = rounds(pairs)
    assert sorted(pair for one in cut for pair in one) == sorted(pairs)
    for one in cut:
        assert not any(conflict(a, b) for i, a in enumerate(one) for b in one[:i])
    state, in_order = list(range(6)), list(range(6))
    for one in cut:
        before = list(state)
        for source, destination in one:
            state[destination] = before[source]
    for source, destination in pairs:
        in_order[destination] = in_order[source]
    assert state == in_order


@settings(max_examples=200, deadline=None)
@given(pairs=any_pairs)
def test_there_are_as_many_rounds_as_the_longest_chain_of_conflicts(pairs: list) -> None:
    longest: list[int] = []
    for i, pair in enumerate(pairs):
        before = (longest[j] for j in range(i) if conflict(pairs[j], pair))
        longest.append(1 + max(before, default=0))
    assert len(rounds(pairs)) == max(longest, default=0)


def test_a_layer_and_a_round_is_a_launch_of_a_thread_block_for_each_pair() -> None:
    made = pool(TINY, num_layers=3)
    prepared = prepare_copy_blocks(made.k, made.v, [(1, 2), (2, 3), (4, 5)])
    assert [one.grid for one in prepared] == [(2, 1, 1)] * 3 + [(1, 1, 1)] * 3
    assert [one.out is cache for one, cache in zip(prepared, made.k * 2, strict=True)] == [True] * 6


@pytest.mark.parametrize("name", ["chain", "one_destination_twice", "there_and_back"])
def test_pairs_that_conflict_race_in_one_launch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why there are rounds. vLLM launches all pairs at once."""
    monkeypatch.setattr(prepare_cache, "rounds", lambda pairs: [pairs])
    made = pool(TINY)
    with pytest.raises(SimtError, match=r"^race: "):
        copy_blocks(made.k, made.v, ORDERED[name])


WRONG_COPIES = {
    "k_copied_onto_itself": ("load(k_cache, source)", "load(k_cache, destination)", "result"),
    "v_from_k": ("load(v_cache, source)", "load(k_cache, source)", "result"),
    "v_forgotten": ("store(v_cache, destination, load(v_cache, source))", "pass", "result"),
    "last_vec_forgotten": ("// VEC_SIZE\n", "// VEC_SIZE - 1\n", "result"),
    "one_vec_a_thread": ("(thread_idx, NUM_VECS", "(thread_idx, NUM_THREADS", "result"),
    "vecs_for_elements": ("0] * BLOCK_NUMEL", "0] * NUM_VECS", "result"),
    "elements_for_vecs": ("destination_ptr + i * VEC_SIZE", "destination_ptr + i", "memory"),
    "first_pair_for_all": ("pairs[pair_idx, 0]", "pairs[0, 0]", "result"),
}


@pytest.mark.parametrize("name", WRONG_COPIES)
def test_a_wrong_kernel_for_blocks_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, found_by = WRONG_COPIES[name]
    wrong = changed(kernels.copy_blocks_kernel, old, new)
    monkeypatch.setattr(prepare_cache, "copy_blocks_kernel", wrong)
    layout = VllmLayout(6, num_kv_heads=8, head_size=128, block_size=16, dtype=F16)  # 2048 vecs
    with found(found_by):
        check_copies(layout, [(1, 4), (3, 2), (0, 5)])
