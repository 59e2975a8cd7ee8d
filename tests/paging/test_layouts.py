"""Cache layouts: every number has one place, and writing, reading and kernels agree on it."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial.paging.layouts import (
    LAYOUTS,
    CacheLayout,
    by_token,
    gather,
    reshape_and_cache,
    slot_mapping,
    split_kv_cache,
)
from pa_tutorial.walk import oracle
from pa_tutorial.walk.problem import DTYPES

EACH_LAYOUT = pytest.mark.parametrize("name", LAYOUTS)
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SIZES = {"num_blocks": 5, "num_kv_heads": 2, "head_size": 16, "block_size": 4}


def make(name: str, dtype: torch.dtype = torch.float32, **changes: int) -> CacheLayout:
    return LAYOUTS[name](**(SIZES | changes), dtype=dtype)


def places(layout: CacheLayout) -> product:
    """Every (block, head, token, dim)."""
    return product(
        range(layout.num_blocks),
        range(layout.num_kv_heads),
        range(layout.block_size),
        range(layout.head_size),
    )


def tokens_for(layout: CacheLayout, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """key and value [count, num_kv_heads, head_size]."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, count, layout.num_kv_heads, layout.head_size)
    key, value = torch.randn(shape, generator=generator).to(layout.dtype)
    return key, value


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
def test_element_formula_is_the_place_in_memory(name, dtype, side) -> None:
    layout = make(name, dtype)
    cache = dict(zip("kv", layout.empty(), strict=True))[side]
    place_of, element_of = getattr(layout, f"{side}_place"), getattr(layout, f"{side}_element")
    for where in places(layout):
        place, element = place_of(*where), element_of(*where)
        assert cache[place].data_ptr() - cache.data_ptr() == element * dtype.itemsize, where
        assert sum(i * s for i, s in zip(place, cache.stride(), strict=True)) == element, where


@EACH_LAYOUT
@EACH_DTYPE
def test_no_two_numbers_share_an_element_and_none_is_left_out(name, dtype) -> None:
    layout = make(name, dtype)
    k_cache, v_cache = layout.empty()
    for cache, element_of in ((k_cache, layout.k_element), (v_cache, layout.v_element)):
        elements = sorted(element_of(*where) for where in places(layout))
        assert elements == list(range(cache.numel()))


@pytest.mark.parametrize(
    ("dtype", "k_shape"),
    [
        (torch.float32, (5, 2, 4, 4, 4)),
        (torch.float16, (5, 2, 2, 4, 8)),
        (torch.bfloat16, (5, 2, 2, 4, 8)),
    ],
    ids=str,
)
def test_x_is_as_many_numbers_as_fit_16_bytes(dtype, k_shape) -> None:
    layout = make("vllm", dtype)
    assert layout.x * dtype.itemsize == 16
    assert layout.k_shape == k_shape
    assert layout.v_shape == (5, 2, 16, 4)


@EACH_LAYOUT
@EACH_DTYPE
def test_bytes_per_block_count_k_and_v_of_all_heads(name, dtype) -> None:
    layout = make(name, dtype)
    in_memory = sum(cache.numel() * cache.element_size() for cache in layout.empty())
    assert layout.bytes_per_block * layout.num_blocks == in_memory


@EACH_LAYOUT
@pytest.mark.parametrize("size", SIZES)
def test_a_size_of_zero_is_refused(name, size) -> None:
    with pytest.raises(ValueError, match=f"{size} is 0; it must be at least 1"):
        make(name, **{size: 0})


@EACH_LAYOUT
@pytest.mark.parametrize(("dtype", "head_size"), [(torch.float32, 18), (torch.float16, 12)])
def test_a_head_that_does_not_fill_whole_chunks_of_x_is_refused(name, dtype, head_size) -> None:
    message = f"head_size is {head_size}; it must be a multiple of x .*{16 // dtype.itemsize} for"
    with pytest.raises(ValueError, match=message):
        make(name, dtype, head_size=head_size)


@EACH_LAYOUT
def test_a_fresh_cache_is_nan_everywhere(name) -> None:
    assert all(cache.isnan().all() for cache in make(name).empty())


@EACH_LAYOUT
@EACH_DTYPE
@pytest.mark.parametrize("slots", [[13, 2, -1, 7, 0], [19], [-1, -1], [*range(19, -1, -1)]])
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


@EACH_LAYOUT
def test_keys_that_are_a_strided_view_are_written_right(name) -> None:
    layout = make(name)
    key, value = tokens_for(layout, 3)
    fused = torch.cat([key, value], dim=1)  # as after one projection for both
    k_cache, v_cache = layout.empty()
    reshape_and_cache(fused[:, :2], fused[:, 2:], k_cache, v_cache, torch.tensor([9, 3, 4]))
    k, v = gather(k_cache, v_cache, torch.tensor([2]), 2)
    assert torch.equal(k[1], key[0])
    assert torch.equal(v[1], value[0])


def refused_write(name: str, message: str, slots: list[int], **arguments: Tensor) -> None:
    """The write is refused, and both caches are as before, bit for bit."""
    layout = make(name)
    k_cache, v_cache = used_caches(layout)
    before = k_cache.clone(), v_cache.clone()
    key, value = tokens_for(layout, len(slots))
    call = {"key": key, "value": value, "k_cache": k_cache, "v_cache": v_cache} | arguments
    with pytest.raises(ValueError, match=message):
        reshape_and_cache(**call, slot_mapping=torch.tensor(slots))
    assert same_bits(k_cache, before[0])
    assert same_bits(v_cache, before[1])


@EACH_LAYOUT
@pytest.mark.parametrize("slot", [-2, -20, 20, 21, 2**40])
def test_a_slot_outside_the_pool_is_refused_before_anything_is_written(name, slot) -> None:
    message = f"slot_mapping holds {slot}; it must be -1, or 0 to 19"
    refused_write(name, message, [3, slot, -1])


@EACH_LAYOUT
def test_two_tokens_for_one_slot_are_refused(name) -> None:
    refused_write(name, "slot_mapping holds a slot twice", [3, -1, -1, 7, 3])


@EACH_LAYOUT
@pytest.mark.parametrize("argument", ["key", "value"])
@pytest.mark.parametrize("shape", [(2, 2, 16), (3, 1, 16), (3, 2, 12), (3, 32), (3, 2, 4, 4)])
def test_tokens_of_another_shape_are_refused(name, argument, shape) -> None:
    wrong = {argument: torch.zeros(shape)}
    shown = list(shape)
    message = rf"{argument} has shape \[{str(shown)[1:-1]}\]; .* must be \[3, 2, 16\]"
    refused_write(name, message, [1, 2, 3], **wrong)


@EACH_LAYOUT
@pytest.mark.parametrize("argument", ["key", "value"])
def test_tokens_of_another_dtype_are_not_converted_silently(name, argument) -> None:
    wrong = {argument: torch.zeros(3, 2, 16, dtype=torch.float16)}
    message = f"{argument} is torch.float16; it must be torch.float32"
    refused_write(name, message, [1, 2, 3], **wrong)


@pytest.mark.parametrize(
    ("k_shape", "v_shape", "message"),
    [
        ((5, 2, 4, 4, 4), (5, 2, 4, 16), r"v_cache is .*must be \[5, 2, 16, 4\]"),
        ((5, 2, 4, 16), (5, 2, 16, 4), r"v_cache is .*must be \[5, 2, 4, 16\]"),
        ((5, 2, 4, 16), (6, 2, 4, 16), r"v_cache is .*must be \[5, 2, 4, 16\]"),
        ((5, 2, 64), (5, 2, 16, 4), r"k_cache has shape \[5, 2, 64\].* 5 dimensions .* or 4"),
    ],
)
def test_caches_of_different_layouts_are_refused(k_shape, v_shape, message) -> None:
    with pytest.raises(ValueError, match=message):
        by_token(torch.zeros(k_shape), torch.zeros(v_shape))


@EACH_LAYOUT
@EACH_DTYPE
@pytest.mark.parametrize("seed", range(4))
def test_what_is_written_through_a_shuffled_table_is_read_back(name, dtype, seed) -> None:
    rng = np.random.default_rng(seed)
    layout = make(name, dtype, block_size=int(rng.choice([1, 3, 4, 8])), num_blocks=7)
    seq_len = int(rng.integers(1, 6 * layout.block_size))
    table = torch.from_numpy(rng.permutation(7))  # longer than needed
    key, value = tokens_for(layout, seq_len, seed)
    k_cache, v_cache = layout.empty()
    order = torch.from_numpy(rng.permutation(seq_len))  # tokens may come in any order
    slots = slot_mapping(table, order, layout.block_size)
    reshape_and_cache(key[order], value[order], k_cache, v_cache, slots)
    k, v = gather(k_cache, v_cache, table, seq_len)
    assert torch.equal(k, key)
    assert torch.equal(v, value)


@EACH_LAYOUT
@EACH_DTYPE
@pytest.mark.parametrize("seed", range(2))
def test_the_oracle_builds_the_same_cache_by_another_program(name, dtype, seed) -> None:
    layout = make(name, dtype, num_blocks=9)
    numbers = np.random.default_rng(seed).permutation(9).tolist()
    seq_lens, tables = (9, 4, 6), [numbers[:3], numbers[3:4], numbers[4:6]]
    keys, values = zip(*(tokens_for(layout, n, seed + n) for n in seq_lens), strict=True)
    k_cache, v_cache = layout.empty()
    for table, key, value in zip(tables, keys, values, strict=True):
        slots = slot_mapping(table, range(len(key)), layout.block_size)
        reshape_and_cache(key, value, k_cache, v_cache, slots)
    in_float64 = ([t.double().numpy() for t in tensors] for tensors in (keys, values))
    theirs = oracle.paged_cache(*in_float64, tables, 9, layout.block_size, name, layout.x)
    for ours, other in zip((k_cache, v_cache), theirs, strict=True):
        other = torch.from_numpy(other).to(dtype)
        assert ours.shape == other.shape
        assert torch.equal(ours.isnan(), other.isnan())
        assert torch.equal(ours.nan_to_num(), other.nan_to_num())


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        (range(11), [*range(40, 48), 16, 17, 18]),  # prefill: the prompt
        ([10], [18]),  # decode: the last token
        ([8, 7], [16, 47]),  # across the border of two blocks
        ([], []),
    ],
)
def test_slots_follow_the_table_at_prefill_and_at_decode(positions, expected) -> None:
    for table in ([5, 2], torch.tensor([5, 2], dtype=torch.int32)):
        slots = slot_mapping(table, positions, 8)
        assert slots.dtype == torch.int64
        assert slots.tolist() == expected


@pytest.mark.parametrize("position", [-1, 16, 100])
def test_a_position_outside_the_table_is_refused(position) -> None:
    with pytest.raises(ValueError, match=f"positions holds {position}; .* must be 0 to 15"):
        slot_mapping([5, 2], [3, position], 8)


@EACH_DTYPE
def test_split_kv_cache_gives_views_and_not_copies(dtype) -> None:
    layout = make("vllm", dtype)
    kv_cache = torch.zeros(2, layout.num_blocks, 2 * 16 * 4, dtype=dtype)
    k_cache, v_cache = split_kv_cache(kv_cache, num_kv_heads=2, head_size=16)
    assert (k_cache.shape, v_cache.shape) == (layout.k_shape, layout.v_shape)
    where = (3, 1, 2, 9)
    k_cache[layout.k_place(*where)] = 5
    v_cache[layout.v_place(*where)] = 7
    assert kv_cache[0].flatten()[layout.k_element(*where)] == 5
    assert kv_cache[1].flatten()[layout.v_element(*where)] == 7
    assert kv_cache.count_nonzero() == 2
    kv_cache.fill_(3)
    assert (k_cache == 3).all()
    assert (v_cache == 3).all()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 5, 130), "130 numbers a block; it must be a multiple of .* 32"),
        ((2, 5, 31), "31 numbers a block"),
        ((2, 5, 0), "0 numbers a block"),
        ((3, 5, 128), r"kv_cache has shape \[3, 5, 128\]"),
        ((2, 640), r"kv_cache has shape \[2, 640\]"),
    ],
)
def test_split_kv_cache_refuses_sizes_that_do_not_divide(shape, message) -> None:
    with pytest.raises(ValueError, match=message):
        split_kv_cache(torch.zeros(shape), num_kv_heads=2, head_size=16)


def test_a_negative_block_number_does_not_become_the_slot_that_is_skipped() -> None:
    with pytest.raises(ValueError, match="block_table names block -1"):
        slot_mapping([-1], [3], 4)
    assert slot_mapping([5, -1], [3], 4).tolist() == [23]  # padding behind is not looked at
    assert slot_mapping([], [], 4).tolist() == []


@pytest.mark.parametrize("table", [[1.0], [[1, 2]]])
def test_a_table_that_is_no_row_of_whole_numbers_is_refused(table: list) -> None:
    with pytest.raises(ValueError, match="must be one row of whole numbers"):
        slot_mapping(table, [0], 4)


def test_a_block_outside_the_pool_is_not_read() -> None:
    caches = LAYOUTS["vllm"](3, 1, 4, 4).empty()
    with pytest.raises(ValueError, match="block_table names block 3; it must be 0 to 2"):
        gather(*caches, torch.tensor([1, 3]), 5)
    gather(*caches, torch.tensor([1, 3]), 4)  # padding behind is not looked at


def test_k_and_v_of_different_types_are_refused() -> None:
    k_cache, v_cache = LAYOUTS["vllm"](3, 1, 8, 4, torch.float16).empty()
    with pytest.raises(ValueError, match=r"v_cache is .*float32; .* it must be .*float16"):
        gather(k_cache, v_cache.float(), torch.tensor([1]), 4)


@pytest.mark.parametrize("sizes", [(0, 8), (2, 0)])
def test_a_cache_is_not_split_into_no_heads(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="both must be at least 1"):
        split_kv_cache(torch.zeros(2, 3, 64), *sizes)
