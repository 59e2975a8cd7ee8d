"""What `pytest` runs and what it leaves to `pytest --rest`."""

import pytest

from tests.profiles import UNUSED, load, waits


def test_every_entry_begins_the_id_of_a_test(request: pytest.FixtureRequest) -> None:
    """Else what was renamed would run in `make test`, in silence."""
    assert request.config.stash[UNUSED] == []
    assert all(entry["seconds"] > 0 and entry["seen_by"] for entry in load().values())


def test_what_is_kept_of_an_entry_runs() -> None:
    entries = {"test_a.py": {"keep": ["test_a.py::test_b[2"]}}
    names = "test_a.py::test_b[1]", "test_a.py::test_b[2-x]", "test_c.py::f"
    assert [waits(name, entries) for name in names] == [True, False, False]
