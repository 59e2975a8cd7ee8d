"""What `pytest` runs and leaves, and the line that says how far it is."""

import pytest
from profiles import UNUSED, Entry, load
from progress import line


def test_every_entry_begins_the_id_of_a_test(request: pytest.FixtureRequest) -> None:
    """Else what was renamed would run in `make test`, in silence."""
    assert request.config.stash[UNUSED] == []


def test_every_entry_says_its_seconds_and_what_sees_its_mistakes() -> None:
    assert all(entry.seconds > 0 and entry.seen_by for entry in load())


@pytest.mark.parametrize(
    ("name", "waits"),
    [("test_a.py::test_b[1]", True), ("test_a.py::test_b[2-x]", False), ("test_c.py::f", False)],
)
def test_what_is_kept_of_an_entry_runs(name: str, waits: bool) -> None:
    entry = Entry("test_a.py", 1.0, "nothing", keep=("test_a.py::test_b[2",))
    assert entry.has(name) == waits


@pytest.mark.parametrize(
    ("seconds", "share", "said"),
    [
        (0, 0.0, "0:00 of about 4:10, 0 % (test_ladder.py)"),
        (100, 0.4, "1:40 of about 4:10, 40 % (test_ladder.py)"),
        (200, 0.4, "3:20 of about 5:50, 40 % (test_ladder.py)"),  # a slower machine
    ],
)
def test_the_estimate_follows_the_machine(seconds: float, share: float, said: str) -> None:
    assert line(seconds, 250.0, share, "test_ladder.py") == said
