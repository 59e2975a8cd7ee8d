"""The pictures of pool, slot write and physical cache show what is in the pool and the tensors."""

from dataclasses import replace

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pa_tutorial.viz import block_stories, slots


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
