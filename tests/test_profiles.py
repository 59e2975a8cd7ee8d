"""What `pytest` runs and what it leaves to `pytest --rest`."""

from collections.abc import Callable

import pytest

from tests.profiles import UNUSED, profile_of, unused


def test_what_a_mark_keeps_is_there(request: pytest.FixtureRequest) -> None:
    """Else parameters with new names would leave `make test` without anyone noticing."""
    assert request.config.stash.get(UNUSED, []) == []


@pytest.fixture
def marked(request: pytest.FixtureRequest) -> Callable[..., pytest.Item]:
    """marked("test_b[1]", keep=["1"]): a test of this name with this mark."""

    def make(name: str, **arguments: object) -> pytest.Item:
        item = pytest.Function.from_parent(request.node.parent, name=name, callobj=lambda: None)
        item.add_marker(pytest.mark.rest("why", **arguments))
        return item

    return make


def test_what_a_mark_keeps_runs_and_what_fits_nothing_is_noticed(marked: Callable) -> None:
    names = "test_b[1]", "test_b[2-x]", "test_b[2-y]", "test_b[21]"
    items = [marked("test_c"), *(marked(name, keep=["2-*", "gone"]) for name in names)]
    assert [profile_of(item) for item in items] == ["rest", "rest", "quick", "quick", "rest"]
    assert unused(items) == ["test_profiles.py::test_b[gone]"]


def test_an_argument_that_a_mark_does_not_have_is_refused(marked: Callable) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'keeps'"):
        profile_of(marked("test_b[1]", keeps=["1"]))
