"""Nothing in the house has outgrown its limit."""

from tests.house_size import TOO_LARGE, row, rows


def test_something_has_outgrown_its_limit() -> None:
    assert not [one for one in rows() if TOO_LARGE in one]


def test_a_new_room_has_no_limit() -> None:
    assert row("lines", "new_room", 1).endswith(TOO_LARGE)
