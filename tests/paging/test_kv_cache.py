"""The cache tensors of all layers: blocks are copied, swapped, written and read."""

import pytest
import torch
from torch import Tensor

from pa_tutorial.paging.errors import UnknownBlock
from pa_tutorial.paging.kv_cache import PagedKVCache, swap_blocks
from pa_tutorial.paging.layouts import LAYOUTS


def make_cache(layout: str = "vllm", num_layers: int = 2, **changes: object) -> PagedKVCache:
    sizes = {"num_blocks": 6, "num_kv_heads": 1, "head_size": 8, "block_size": 4}
    return PagedKVCache(LAYOUTS[layout](**(sizes | changes)), num_layers)


def tensors(cache: PagedKVCache) -> tuple[Tensor, ...]:
    return (*cache.k, *cache.v)


def filled_cache() -> tuple[PagedKVCache, list[Tensor]]:
    """Random numbers in blocks 0 to 5 of both layers, and a copy of them."""
    cache = make_cache()
    return cache, [tensor.uniform_().clone() for tensor in tensors(cache)]


def has_blocks(cache: PagedKVCache, before: list[Tensor], order: list[int]) -> bool:
    pairs = zip(tensors(cache), before, strict=True)
    return all(torch.equal(now, old[order]) for now, old in pairs)


def test_blocks_are_copied_in_every_layer_and_in_order() -> None:
    cache, before = filled_cache()
    cache.copy_blocks(pair for pair in [(1, 2), (2, 3), (5, 0)])
    for bad in ((1.0, 3), (1, True), (1, 2, 3), "12", 7):
        with pytest.raises((TypeError, ValueError), match=r"pairs\[1\]"):
            cache.copy_blocks([(1, 4), bad])
    assert has_blocks(cache, before, [5, 1, 1, 1, 4, 5])


def test_each_block_of_a_swap_is_looked_up_in_its_own_pool_before_anything_is_copied() -> None:
    """One pool has blocks 0 to 5, the other 0 to 3."""
    (large, before), small = filled_cache(), make_cache(num_blocks=4)
    for pools, pair, side in (
        ((small, large), (4, 1), "source block is 4; .* 0 to 3"),
        ((large, small), (1, 4), "destination block is 4; .* 0 to 3"),
    ):
        with pytest.raises(UnknownBlock, match=side):
            swap_blocks(*pools, [(1, 2), pair])
    assert all(tensor.isnan().all() for tensor in tensors(small))
    swap_blocks(large, small, [(5, 3)])
    swap_blocks(small, large, [(3, 4)])
    assert has_blocks(large, before, [0, 1, 2, 3, 5, 5])


@pytest.mark.parametrize(
    "changes",
    [{"head_size": 16}, {"num_layers": 3}, {"layout": "plain"}, {"dtype": torch.float16}],
    ids=str,
)
def test_a_swap_between_pools_with_other_blocks_is_refused(changes: dict) -> None:
    destination = make_cache(**changes)
    with pytest.raises(ValueError, match="destination has blocks of"):
        swap_blocks(make_cache(), destination, [(1, 2)])


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_a_swap_between_pools_with_other_scales_is_refused(name: str) -> None:
    """The same bytes would be other numbers there."""
    layout = LAYOUTS["plain"](2, 1, 16, 4, torch.float8_e4m3fn)
    source, same, other = (PagedKVCache(layout, 1, **{name: scale}) for scale in (0.5, 0.5, 1.0))
    swap_blocks(source, same, [(0, 1)])
    with pytest.raises(ValueError, match=r"destination.scales"):
        swap_blocks(source, other, [(0, 1)])
