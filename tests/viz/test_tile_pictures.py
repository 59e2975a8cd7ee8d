"""The figure of notebook 14 shows what it is given."""

import torch

from pa_tutorial.viz.tiles import draw_tile, place_of


def test_a_token_is_named_by_the_block_and_the_offset_that_the_kernel_found() -> None:
    k_cache = torch.zeros(6, 2, 8, 24)
    offset = torch.arange(32) + torch.tensor([5 * 384 + 3 * 24, 2 * 384, 0])[:, None]
    is_kv = (torch.arange(32) < 24) & torch.tensor([True, True, False])[:, None]
    places = [place_of(offset, is_kv, k_cache, token) for token in range(3)]
    assert places == ["block 5, offset 3", "block 2, offset 0", "no token"]
    title = draw_tile(offset, is_kv, k_cache).get_suptitle()
    assert title == "Of a tile of 3 × 32, 50% is loaded: 2 tokens with heads of 24"
