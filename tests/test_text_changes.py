"""Changes of our own code: the format, and that all of them have their place."""

import pytest

from pa_tutorial.text_changes import Change, changed_texts
from tests.lost_changes import lost_changes

KERNEL = """
def prepare(a):
    wait()
    return a + 1  # a + 2

def kernel(a):
    for i in range(3):
        a += i
    wait()
    # mark: sum
    # (a comment between)
    wait()  # for the others
    return min(
        a,  # the sum
        1 + 2,
    )
"""


def test_every_change_has_its_place() -> None:
    """A change of our code may take it away; most are tried in `make test-all` only."""
    assert lost_changes() == []


@pytest.mark.parametrize(
    ("place", "name", "count"),
    [
        ({"old": "wait()"}, "old", 3),
        ({"old": "wait()", "function": "kernel"}, "old", 2),
        ({"old": "wait()", "function": "other"}, "function", 0),
        ({"old": "wait()", "mark": "other"}, "mark", 0),
        ({"old": "", "mark": "sum", "function": "prepare"}, "mark", 0),
        ({"old": "a + 2"}, "old", 0),  # in a comment
        ({"old": "ait()"}, "old", 0),  # part of a word
    ],
)
def test_a_place_that_is_not_there_once_is_refused(place: dict, name: str, count: int) -> None:
    message = f"`{name}` must be there once, it is there {count} times; file: mine"
    with pytest.raises(ValueError, match=message):
        Change("mine", new="x", **place).made_in(KERNEL)


@pytest.mark.parametrize(
    ("place", "before", "after"),
    [
        ({"old": "wait()", "function": "prepare"}, "wait()\n    return a", "x\n    return a"),
        ({"old": "", "mark": "sum"}, "wait()  # for", "x  # for"),
        ({"old": "i in range(3)"}, "i in range(3)", "x"),
        ({"old": "a, 1+2"}, "a,  # the sum\n        1 + 2", "x"),
        ({"old": "    wait()\n    # mark"}, "    wait()\n    # mark", "x"),
    ],
)
def test_a_place_is_found(place: dict, before: str, after: str) -> None:
    assert KERNEL.count(before) == 1
    assert Change("mine", new="x", **place).made_in(KERNEL) == KERNEL.replace(before, after)


def test_one_change_builds_on_the_other() -> None:
    changes = Change("one", "a", "b"), Change("one", "b", "c"), Change("two", "a", "")
    assert changed_texts(changes, lambda file: "a") == {"one": "c", "two": ""}
