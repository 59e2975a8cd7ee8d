"""Each small mistake in a solution fails a case: on the notebook's numbers and on another draw."""

import tomllib
from pathlib import Path

import pytest

from pa_tutorial.exercises import Exercise
from pa_tutorial.exercises.blank import Blank, all_blanks
from tests.exercises.mutants import accepted, accepted_in_kernel, mutants_of_blank
from tests.exercises.test_exercises import each

pytestmark = pytest.mark.rest("test_exercises.py: the wrong answers that people give")
DRAWS = 0, 1
EQUIVALENT = tomllib.loads(Path(__file__).with_name("equivalent_mutants.toml").read_text("utf-8"))


def equivalent(name: str) -> list[tuple[str, str]]:
    """The changes of an answer that leave it right."""
    return [
        (one["old"].strip(), new.strip()) for one in EQUIVALENT.get(name, ()) for new in one["new"]
    ]


@each
@pytest.mark.needs("POSIX")
# The time limit may raise while an object is finalized; it does so again SECONDS later.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_only_equivalent_mutants_pass(exercise: Exercise) -> None:
    """A mutant that only one draw accepts gives the same answer different grades."""
    found = accepted(exercise, DRAWS)
    assert found == {change: [*DRAWS] for change in equivalent(exercise.name)}


@pytest.mark.parametrize("blank", all_blanks().values(), ids=lambda blank: blank.name)
def test_only_equivalent_mutants_of_a_blank_are_called_right(blank: Blank) -> None:
    """Those aren't tried again: a right answer takes longest."""
    known = set(equivalent(blank.name))
    assert known <= {*mutants_of_blank(blank).values()}
    assert accepted_in_kernel(blank, known) == []
