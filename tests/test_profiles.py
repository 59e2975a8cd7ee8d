"""What `pytest` runs and what it leaves to `pytest --rest`."""

import pytest

from tests.profiles import NAMES, load, unused, waits


def test_every_entry_begins_the_id_of_a_test(request: pytest.FixtureRequest) -> None:
    """Else a renamed test would move into `make test` without anyone noticing."""
    assert unused(load(), request.config.stash[NAMES]) == []


def test_what_an_entry_keeps_runs() -> None:
    entries = {"test_a.py": {"keep": ["test_a.py::test_b[2"]}}
    names = "test_a.py::test_b[1]", "test_a.py::test_b[2-x]", "test_c.py::f"
    assert [waits(name, entries) for name in names] == [True, False, False]
