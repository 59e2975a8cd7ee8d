"""Everything is within its limit, and only code counts as code."""

from tests.house_size import TOO_LARGE, rows


def test_everything_is_within_a_tenth_of_its_limit() -> None:
    assert not [one for one in rows() if TOO_LARGE in one]
