"""The pictures of pool, slot write and physical cache show what is in the pool and the tensors."""

from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.paging.layouts import VllmLayout
from pa_tutorial.viz import block_stories, physical, slots


def places_of(figure: Figure, text: str) -> list[tuple[float, float]]:
    """Where a text stands in the only axes of a figure."""
    (axes,) = figure.axes
    return sorted(item.get_position() for item in axes.texts if item.get_text() == text)


# The slot write ------------------------------------------------------------------------------


def test_slot_write_finds_every_token_at_its_slot_and_nothing_elsewhere() -> None:
    write = block_stories.small_slot_write()
    layout, slot_of = write.layout, dict(enumerate((20, 21, 22, 23, 8, 9)))
    expected = {
        side: {
            place(slot // 4, 0, slot % 4, dim): (side, token, dim)
            for token, slot in slot_of.items()
            for dim in range(8)
        }
        for side, place in (("K", layout.k_place), ("V", layout.v_place))
    }
    for side, cache in (("K", write.k_cache), ("V", write.v_cache)):
        written = (~cache.isnan()).nonzero().tolist()
        assert {tuple(at): slots.found(cache[tuple(at)].item()) for at in written} == expected[side]
    assert write.slots == (22, 23, 8, 9, -1)


def outlined(figure: Figure) -> set[tuple[float, float]]:
    """The cells with a strong outline, without those of the new tokens in the upper half."""
    (axes,) = figure.axes
    boxes = [box for box in axes.patches if isinstance(box, Rectangle) and not box.get_fill()]
    return {box.get_xy() for box in boxes if box.get_y() > 8}


def test_slot_write_shows_the_followed_token_where_it_is_in_memory() -> None:
    write = block_stories.small_slot_write()
    cells = outlined(slots.draw_slot_write(write, followed=4))
    assert sorted({x for x, _ in cells}) == [0, 1, 2, 3, 24], "4 numbers of K, 1 column of V"
    assert len(cells) == 2 * 4 + 8

    k_cache = write.k_cache.clone()
    k_cache[2, 0, :, 3] = k_cache[2, 0, :, 0]  # the K of token 4 at offset 3, by mistake
    k_cache[2, 0, :, 0] = float("nan")
    moved = outlined(slots.draw_slot_write(replace(write, k_cache=k_cache), followed=4))
    assert sorted({x for x, _ in moved}) == [12, 13, 14, 15, 24]


def test_slot_write_shows_each_number_as_often_as_it_is_there() -> None:
    figure = block_stories.draw_small_slot_write()
    for token in range(6):
        for dim in range(8):
            new = token >= 2  # once more in the rows of new tokens, as K and as V
            assert len(places_of(figure, f"{token}.{dim}")) == (4 if new else 2)


# The physical cache --------------------------------------------------------------------------


def test_physical_cache_holds_the_same_blocks_in_every_layer_of_k_and_v() -> None:
    cache = block_stories.worked_physical_cache()
    held = {5: [*range(8)], 2: [8, 9, 10]}
    for layer in range(3):
        for side in (0, 1):
            for block in range(7):
                assert cache.tokens(layer, side, block) == held.get(block, [])
                at = cache.first_byte(layer, side, block)
                assert at == side * 7168 + block * 1024 == (side * 7 + block) * 512 * 2


def test_physical_cache_is_drawn_from_the_tensors_of_each_layer() -> None:
    cache = block_stories.worked_physical_cache()
    layers = [layer.clone() for layer in cache.layers]
    layers[1][0, [2, 3]] = layers[1][0, [3, 2]]  # block 2 of K in layer 1 stands in block 3
    right = places_of(physical.draw_physical(cache, 2), "8–10")
    wrong = places_of(physical.draw_physical(replace(cache, layers=tuple(layers)), 2), "8–10")
    assert len(right) == 2 * 3
    (gone,), (new,) = {*right} - {*wrong}, {*wrong} - {*right}
    assert new == (gone[0] + 1, gone[1])


def test_inside_of_a_block_shows_each_piece_of_its_three_tokens() -> None:
    """2 heads, 4 pieces: 64 cells, of which those of slots 0, 1, 2 are filled, by address."""
    figure = block_stories.draw_worked_physical_cache()
    (axes,) = figure.axes
    cells = [patch for patch in axes.patches if patch.get_width() < 1]
    layout = block_stories.worked_physical_cache().layout
    filled = {
        (layout.k_element(0, head, token, dim) // layout.x)
        for head in range(2)
        for token in range(3)
        for dim in range(32)
    }
    assert len(cells) == 64
    assert {i for i, cell in enumerate(cells) if cell.get_hatch() is None} == filled


def test_numbers_of_another_layer_or_side_are_refused() -> None:
    cache = block_stories.worked_physical_cache()
    for layer, side in ((1, 0), (0, 1)):
        with pytest.raises(ValueError, match="of this layer and side"):
            physical.tokens_in(cache.layers[0][0, 2], layer, side)
    layout = VllmLayout(7, 1, 8, 4, torch.float32)
    with pytest.raises(ValueError, match="seq_len is 17; it must be at most 16"):
        physical.fill_layers(layout, 1, [1, 2, 3, 4, 5], 17)
    with pytest.raises(ValueError, match="num_layers is 9; it must be at most 8"):
        physical.fill_layers(layout, 9, [1], 1)
