"""What the wrong examples of many devices are tried on finds nothing in the right ones."""

import pytest

from tests.distributed_trials import TRIALS, run_on_ranks


@pytest.mark.parametrize("name", TRIALS)
def test_every_trial_finds_nothing_wrong(name: str) -> None:
    assert run_on_ranks(name) == ""
