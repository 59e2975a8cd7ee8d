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
old = "c"
new = "d"
"""


def test_every_change_has_its_place() -> None:
    """A change of our code may take it away; most are tried in `make test-all` only."""
    assert lost_changes() == []


def test_a_change_that_has_lost_its_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    exercise = EXERCISES["find_slots"]
    shorter = exercise.source.replace("range(first, last)", "range(first, last + 1)")
    monkeypatch.setattr(type(exercise), "source", property(lambda self: shorter))
    (lost,) = (text for text in lost_changes() if "exercise find_slots: positions" in text)
    assert "it stands there 0 times:\nrange(first, last)" in lost
    with pytest.raises(ValueError, match="in mine once, it stands there 2 times:\na"):
        Change("mine", "a", "b").made_in("aa")


def test_one_change_builds_on_the_other() -> None:
    changes = Change("one", "a", "b"), Change("one", "b", "c"), Change("two", "a", "")
    assert changed_texts(changes, lambda file: "a") == {"one": "c", "two": ""}


def test_a_version_names_its_file_once_or_for_each_change(tmp_path: Path) -> None:
    path = tmp_path / "versions.toml"
    path.write_text(TWO_FORMS, encoding="utf-8")
    one, two = load_versions(path)
    assert (one.name, one.why, one.more) == ("task", "one change", {"fails": "here"})
    assert one.changes == (Change("usual.py", "a", "b"),)
    assert two.changes == (Change("usual.py", "a", "b"), Change("other.py", "c", "d"))
