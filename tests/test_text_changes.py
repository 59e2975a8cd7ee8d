"""Changes of our own code: the format, and that all of them have their place."""

import pytest

from pa_tutorial.text_changes import Change
from tests.lost_changes import lost_changes

KERNEL = """
def kernel(a):
    wait()
    wait()  # for a + 2
"""


def test_every_change_has_its_place() -> None:
    """A change of our code may take it away; most are tried in `make test-all` only."""
    assert lost_changes() == []


@pytest.mark.parametrize(
    ("place", "name", "count"),
    [
        ({"old": "wait()"}, "old", 2),
        ({"old": "wait()", "function": "other"}, "function", 0),
        ({"old": "wait()", "mark": "other"}, "mark", 0),
        ({"old": "a + 2"}, "old", 0),  # in a comment
        ({"old": "ait()"}, "old", 0),  # part of a word
    ],
)
def test_a_place_that_is_not_there_once_is_refused(place: dict, name: str, count: int) -> None:
    message = f"`{name}` must be there once, it is there {count} times; file: mine"
    with pytest.raises(ValueError, match=message):
        Change("mine", new="x", **place).made_in(KERNEL)
