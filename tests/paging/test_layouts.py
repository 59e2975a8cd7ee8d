"""Cache layouts: every number has one place, and writing, reading and kernels agree on it."""

import re
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from pa_tutorial.paging.layouts import (
    DTYPES,
    LAYOUTS,
    CacheLayout,
    by_token,
    gather,
    reshape_and_cache,
    slot_mapping,
)

EACH_LAYOUT = pytest.mark.parametrize("name", LAYOUTS)
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SIZES = {"num_blocks": 5, "num_kv_heads": 2, "head_size": 16, "block_size": 4}


def make(name: str, dtype: torch.dtype = torch.float32, **changes: int) -> CacheLayout:
    return LAYOUTS[name](**(SIZES | changes), dtype=dtype)


def tokens_for(layout: CacheLayout, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """key and value [count, num_kv_heads, head_size]: views, as after one projection for both."""
    generator = torch.Generator().manual_seed(seed)
    heads = layout.num_kv_heads
    fused = torch.randn(count, 2 * heads, layout.head_size, generator=generator).to(layout.dtype)
    return fused[:, :heads], fused[:, heads:]


def used_caches(layout: CacheLayout) -> tuple[Tensor, Tensor]:
    """Caches in which some slots hold tokens and the others NaN."""
    k_cache, v_cache = layout.empty()
    reshape_and_cache(*tokens_for(layout, 3, seed=9), k_cache, v_cache, torch.tensor([1, 6, 18]))
    return k_cache, v_cache


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Also where they are NaN."""
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@EACH_LAYOUT
@EACH_DTYPE
@pytest.mark.parametrize("side", ["k", "v"])
def test_each_number_has_the_element_of_the_formula_to_itself(name, dtype, side) -> None:
    layout = make(name, dtype)
    cache = dict(zip("kv", layout.empty(), strict=True))[side]
    place_of, element_of = getattr(layout, f"{side}_place"), getattr(layout, f"{side}_element")
    elements = []
    for where in product(range(5), range(2), range(4), range(16)):  # block, head, token, dim
        place, element = place_of(*where), element_of(*where)
        assert cache[place].data_ptr() - cache.data_ptr() == element * dtype.itemsize, where
        elements.append(element)
    assert sorted(elements) == list(range(cache.numel()))


@EACH_DTYPE
def test_x_is_as_many_numbers_as_fit_16_bytes(dtype) -> None:
    layout = make("vllm", dtype)
    x = {torch.float32: 4}.get(dtype, 8)
    assert layout.x == x
    assert layout.k_shape == (5, 2, 16 // x, 4, x)
    assert layout.v_shape == (5, 2, 16, 4)
    assert layout.bytes_per_block == 2 * 2 * 16 * 4 * dtype.itemsize


@EACH_LAYOUT
@EACH_DTYPE
@pytest.mark.parametrize("slots", [[13, 2, -1, 7, 0], [-1, -1], [*range(19, -1, -1)]])
def test_each_number_is_written_to_its_place_and_nothing_else_is_touched(
    name, dtype, slots
) -> None:
    layout = make(name, dtype)
    k_cache, v_cache = used_caches(layout)
    k_expected, v_expected = k_cache.clone(), v_cache.clone()
    key, value = tokens_for(layout, len(slots))
    for token, slot in enumerate(slots):
        if slot == -1:
            continue
        for head, dim in product(range(layout.num_kv_heads), range(layout.head_size)):
            where = (slot // layout.block_size, head, slot % layout.block_size, dim)
            k_expected[layout.k_place(*where)] = key[token, head, dim]
            v_expected[layout.v_place(*where)] = value[token, head, dim]
    reshape_and_cache(key, value, k_cache, v_cache, torch.tensor(slots))
    assert same_bits(k_cache, k_expected)
    assert same_bits(v_cache, v_expected)


@pytest.mark.parametrize("table", [[5, 2], torch.tensor([5, 2], dtype=torch.int32)], ids=str)
def test_slots_follow_the_table_at_prefill_and_at_decode(table) -> None:
    assert slot_mapping(table, range(11), 8).tolist() == [*range(40, 48), 16, 17, 18]
    assert slot_mapping(table, [8, 7], 8).tolist() == [16, 47]
    assert slot_mapping(table, [], 8).dtype == torch.int64


@pytest.mark.parametrize(
    ("table", "block_size", "message"),
    [
        ([5, 2], 0, "block_size is 0; it must be 1 to"),
        ([], 8, "block_table is []; it must be a row with a block for each token"),
    ],
)
def test_what_leaves_no_slot_is_named(table: list[int], block_size: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        slot_mapping(table, [3], block_size)


# Refusals


@EACH_LAYOUT
@pytest.mark.parametrize(
    ("slots", "changes", "message"),
    [
        ([3, -2, -1], {}, "slot_mapping holds -2; it must be -1, or 0 to 19"),
        ([3, 20, -1], {}, "slot_mapping holds 20; it must be -1, or 0 to 19"),
        ([3, -1, -1, 7, 3], {}, "slot_mapping holds a slot twice"),
        *(
            ([1, 2, 3], {argument: torch.zeros(shape)}, f"{argument} has shape .* be .3, 2, 16.")
            for argument in ("key", "value")
            for shape in [(2, 2, 16), (3, 1, 16), (3, 32)]
        ),
        ([1], {"key": torch.zeros(1, 2, 16).half()}, "key is torch.float16; it must"),
        ([1], {"value": torch.zeros(1, 2, 16).half()}, "value is torch.float16; it must"),
        ([1], {"value": torch.zeros(1, 2, 16).to_sparse()}, "value.layout is torch.sparse_coo"),
    ],
)
def test_a_refused_write_changes_no_bit(name, slots, changes, message) -> None:
    layout = make(name)
    k_cache, v_cache = used_caches(layout)
    before = k_cache.clone(), v_cache.clone()
    key, value = tokens_for(layout, len(slots))
    tokens = {"key": key, "value": value} | changes
    slots = torch.tensor(slots)
    with pytest.raises(ValueError, match=message):
        reshape_and_cache(**tokens, k_cache=k_cache, v_cache=v_cache, slot_mapping=slots)
    assert same_bits(k_cache, before[0])
    assert same_bits(v_cache, before[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda cache: cache.requires_grad_(), ".requires_grad is True"),
        (lambda cache: cache[:1].expand(cache.shape), r".stride\(\) is \(0, "),
        (lambda cache: of_inference_mode(cache), " is of torch.inference_mode"),
    ],
    ids=["gradient", "expanded", "inference"],
)
@pytest.mark.parametrize(("name", "other"), [("k_cache", "v_cache"), ("v_cache", "k_cache")])
def test_a_cache_that_cannot_be_written_is_refused_before_the_other_is(
    name: str, other: str, change: Callable, message: str
) -> None:
    caches = dict(zip(("k_cache", "v_cache"), used_caches(make("plain")), strict=True))
    before, tokens = caches[other].clone(), tokens_for(make("plain"), 2)
    caches[name] = change(caches[name])
    with pytest.raises(ValueError, match=name + message):
        reshape_and_cache(*tokens, **caches, slot_mapping=torch.tensor([1, 2]))
    assert same_bits(caches[other], before)


@EACH_LAYOUT
@pytest.mark.parametrize("find", ["k_place", "v_place", "k_element", "v_element"])
def test_a_place_outside_the_cache_is_refused_on_each_axis(name: str, find: str) -> None:
    layout, ends = make(name), {"block": 5, "head": 2, "token": 4, "dim": 16}
    last = {axis: end - 1 for axis, end in ends.items()}
    getattr(layout, find)(**last)
    for axis, end in ends.items():
        for outside in (-1, end):
            message = f"{axis} is {outside}; it must be 0 to {end - 1}"
            with pytest.raises(ValueError, match=message):
                getattr(layout, find)(**last | {axis: outside})


def of_inference_mode(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.clone()


def test_a_cache_does_not_keep_the_graph_of_its_keys() -> None:
    k_cache, v_cache = used_caches(make("plain"))
    key, value = tokens_for(make("plain"), 2)
    reshape_and_cache(key.requires_grad_(), value, k_cache, v_cache, torch.tensor([1, 2]))
    assert not k_cache.requires_grad


def cached(k_shape: tuple[int, ...], v_shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return by_token(torch.zeros(k_shape), torch.zeros(v_shape))


def gathered(table: list[int], seq_len: int, k_dtype: torch.dtype = torch.float32) -> list[Tensor]:
    k_cache, v_cache = LAYOUTS["vllm"](3, 1, 8, 4).empty()
    return [*gather(k_cache.to(k_dtype), v_cache, torch.tensor(table), seq_len)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda size=size: make("plain", **{size: 0}), f"{size} is 0; it must be at least 1")
            for size in SIZES
        ),
        (lambda: make("vllm", head_size=18), "head_size is 18; it must be a multiple of x .*4 for"),
        (lambda: make("plain", torch.float16, head_size=12), "head_size is 12; .* of x .*8 for"),
        (lambda: cached((5, 2, 4, 4, 4), (5, 2, 4, 16)), r"v_cache is .*must be \[5, 2, 16, 4\]"),
        (lambda: cached((5, 2, 4, 16), (5, 2, 16, 4)), r"v_cache is .*must be \[5, 2, 4, 16\]"),
        (lambda: cached((5, 2, 64), (5, 2, 16, 4)), r"k_cache has shape \[5, 2, 64\].* or 4"),
        (lambda: slot_mapping([5, 2], [3, -1], 8), "positions holds -1; .* must be 0 to 15"),
        (lambda: slot_mapping([5, 2], [3, 16], 8), "positions holds 16; .* must be 0 to 15"),
        (lambda: slot_mapping([-1], [3], 4), "block_table names block -1"),
        (lambda: slot_mapping({5, 2}, [3], 8), "block_table is of type set; .* one row of whole"),
        (lambda: gathered([1, 3], 5), "block_table names block 3; it must be 0 to 2"),
        (lambda: gathered([1, -1], 5), "block_table names block -1; it must be 0 to 2"),
        (lambda: gathered([1], 4, torch.half), "v_cache is .*float32; .* be .*float16"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_padding_behind_the_last_block_is_ignored() -> None:
    assert slot_mapping([5, -1], [3], 4).tolist() == [23]
    assert slot_mapping([], [], 4).tolist() == []
    assert len(gathered([1, 3], 4)[0]) == 4
