"""Changes of our own code: the format, and that all of them have their place."""

from pathlib import Path

import pytest

from pa_tutorial.exercises import EXERCISES
from pa_tutorial.text_changes import Change, changed_texts, load_versions
from tests.lost_changes import lost_changes

TWO_FORMS = """
file = "usual.py"

[[task]]
why = "one change"
function = "f"
old = "a"
new = "b"
fails = "here"

[[task]]
why = "two changes"
[[task.change]]
old = "a"
new = "b"
[[task.change]]
file = "other.py"
mark = "m"
old = ""
new = "d"
"""
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


def test_a_change_that_has_lost_its_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    exercise = EXERCISES["find_slots"]
    shorter = exercise.source.replace("range(first, last)", "range(first, last + 1)")
    monkeypatch.setattr(type(exercise), "source", property(lambda self: shorter))
    (lost,) = (text for text in lost_changes() if "exercise find_slots: positions" in text)
    assert "`old` must be there once, it is there 0 times" in lost
    assert lost.endswith("old: range(first, last)")


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


@pytest.mark.parametrize("spaces", ["", " " * 12])
def test_new_lines_are_indented_as_the_place_is(spaces: str) -> None:
    change = Change("mine", spaces + "a += i", f"{spaces}if i:\n{spaces}    a += 2")
    assert "\n        if i:\n            a += 2\n    wait()" in change.made_in(KERNEL)


def test_one_change_builds_on_the_other() -> None:
    changes = Change("one", "a", "b"), Change("one", "b", "c"), Change("two", "a", "")
    assert changed_texts(changes, lambda file: "a") == {"one": "c", "two": ""}


def test_a_version_names_its_file_once_or_for_each_change(tmp_path: Path) -> None:
    path = tmp_path / "versions.toml"
    path.write_text(TWO_FORMS, encoding="utf-8")
    one, two = load_versions(path)
    assert (one.name, one.why, one.more) == ("task", "one change", {"fails": "here"})
    assert one.changes == (Change("usual.py", "a", "b", function="f"),)
    assert two.changes == (
        Change("usual.py", "a", "b"),
        Change("other.py", "", "d", mark="m"),
    )
