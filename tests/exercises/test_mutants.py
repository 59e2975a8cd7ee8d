"""Each small mistake in a solution fails a case: on the notebook's numbers and on another draw."""

import tomllib
from pathlib import Path

import pytest

from pa_tutorial.exercises import Exercise
from tests.exercises.mutants import accepted
from tests.exercises.test_exercises import each

DRAWS = 0, 1
EQUIVALENT = tomllib.loads(Path(__file__).with_name("equivalent_mutants.toml").read_text("utf-8"))


@each
@pytest.mark.needs("POSIX")
# The time limit may raise while an object is finalized; it does so again SECONDS later.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_only_equivalent_mutants_pass(exercise: Exercise) -> None:
    """A mutant that only one draw accepts gives the same answer different grades."""
    known = {
        (one["old"].strip(), new.strip()): [*DRAWS]
        for one in EQUIVALENT.get(exercise.name, ())
        for new in one["new"]
    }
    assert accepted(exercise, DRAWS) == known
