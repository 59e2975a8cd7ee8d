"""The cache tensors of all layers: blocks are copied, swapped, written and read."""

import pytest
import torch

from pa_tutorial.paging.errors import UnknownBlock
from pa_tutorial.paging.kv_cache import PagedKVCache, swap_blocks
from pa_tutorial.paging.layouts import LAYOUTS


def make_cache(layout: str = "vllm", num_layers: int = 2, **changes: object) -> PagedKVCache:
    sizes = {"num_blocks": 6, "num_kv_heads": 1, "head_size": 8, "block_size": 4}
    return PagedKVCache(LAYOUTS[layout](**(sizes | changes)), num_layers)


def numbered_cache() -> PagedKVCache:
    """Block b holds 10 b in K, with the layer added; minus that in V."""
    cache = make_cache()
    for layer in range(2):
        for block in range(6):
            cache.k[layer][block], cache.v[layer][block] = 10 * block + layer, -10 * block - layer
    return cache


def contents(cache: PagedKVCache) -> list[float]:
    """The number of each block; all layers, K and V, must say the same."""
    k = torch.stack([k.flatten(1) - layer for layer, k in enumerate(cache.k)], dim=1)
    v = torch.stack([-v.flatten(1) - layer for layer, v in enumerate(cache.v)], dim=1)
    (number,) = torch.cat([k, v], dim=1).flatten(1).T.unique(dim=0)
    return (number / 10).tolist()


def test_blocks_are_copied_in_every_layer_and_in_order() -> None:
    cache = numbered_cache()
    cache.copy_blocks(pair for pair in [(1, 2), (2, 3), (5, 0)])
    assert contents(cache) == [5, 1, 1, 1, 4, 5]
    for bad in ((1.0, 3), (1, True), (1, 2, 3), "12", 7):
        with pytest.raises((TypeError, ValueError), match=r"pairs\[1\]"):
            cache.copy_blocks([(1, 4), bad])
        assert contents(cache) == [5, 1, 1, 1, 4, 5]


def test_each_block_of_a_swap_is_looked_up_in_its_own_pool_before_anything_is_copied() -> None:
    """One pool has blocks 0 to 5, the other 0 to 3."""
    large, small = numbered_cache(), make_cache(num_blocks=4)
    for pools, pair, side in (
        ((small, large), (4, 1), "source block is 4; .* 0 to 3"),
        ((large, small), (1, 4), "destination block is 4; .* 0 to 3"),
    ):
        with pytest.raises(UnknownBlock, match=side):
            swap_blocks(*pools, [(1, 2), pair])
        assert contents(large) == [0, 1, 2, 3, 4, 5]
        assert all(cache.isnan().all() for cache in (*small.k, *small.v))
    swap_blocks(large, small, [(5, 3)])
    swap_blocks(small, large, [(3, 4)])
    assert contents(large) == [0, 1, 2, 3, 5, 5]


@pytest.mark.parametrize(
    "changes",
    [{"head_size": 16}, {"num_layers": 3}, {"layout": "plain"}, {"dtype": torch.float16}],
    ids=str,
)
def test_a_swap_between_pools_with_other_blocks_is_refused(changes: dict) -> None:
    destination = make_cache(**changes)
    with pytest.raises(ValueError, match="destination has blocks of"):
        swap_blocks(numbered_cache(), destination, [(1, 2)])
    assert all(cache.isnan().all() for cache in (*destination.k, *destination.v))


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_a_swap_between_pools_with_other_scales_is_refused(name: str) -> None:
    """The same bytes would be other numbers there."""
    layout = LAYOUTS["plain"](2, 1, 16, 4, torch.float8_e4m3fn)
    source, same, other = (PagedKVCache(layout, 1, **{name: scale}) for scale in (0.5, 0.5, 1.0))
    swap_blocks(source, same, [(0, 1)])
    with pytest.raises(ValueError, match=r"destination.scales"):
        swap_blocks(source, other, [(0, 1)])
