"""Each small mistake in a solution fails a case, or is none: the answer still computes our numbers,
at our costs, from other numbers and sizes."""

import pytest

from pa_tutorial.exercises import Exercise
from pa_tutorial.exercises.blank import Blank, all_blanks
from tests.exercises.mutants import accepted, accepted_in_kernel
from tests.exercises.test_exercises import each

pytestmark = pytest.mark.rest("test_exercises.py: the wrong answers that people give")


@each
@pytest.mark.needs("POSIX")
# The time limit may raise while an object is finalized; it does so again SECONDS later.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_only_right_mutants_pass(exercise: Exercise) -> None:
    """A mutant that only one draw accepts gives the same answer different grades."""
    assert not [change for change, is_right in accepted(exercise).items() if not is_right]


@pytest.mark.parametrize("blank", all_blanks().values(), ids=lambda blank: blank.name)
def test_only_right_mutants_of_a_blank_are_called_right(blank: Blank) -> None:
    assert not [change for change, is_right in accepted_in_kernel(blank).items() if not is_right]
