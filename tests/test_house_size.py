"""Nothing in the house has outgrown its limit."""

from house_size import Size, sizes


def test_something_has_outgrown_its_limit() -> None:
    assert not [str(size) for size in sizes() if size.is_too_large]


def test_a_new_room_has_no_limit() -> None:
    size = Size("lines", "new_room", 1)
    assert size.is_too_large
    assert str(size).endswith("TOO LARGE")
