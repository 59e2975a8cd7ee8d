"""rest.toml, and the line that says how far the tests are."""

import pytest
from profiles import UNUSED


def test_every_entry_begins_the_id_of_a_test(request: pytest.FixtureRequest) -> None:
    """Else a test that was renamed would be run, or a new one left out, in silence."""
    assert request.config.stash[UNUSED] == []
