"""A grade is given on numbers that nobody has seen: another draw of the same cases."""

import numpy as np
import pytest

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises import Exercise, grade
from tests.exercises.test_exercises import each

DRAW = 20261122
LUCK = 0.25  # of the cases, where two draws may want the same answer: "refused", 0, no slot


def expected(trial: Trial) -> np.ndarray:
    reference = next(iter(trial.references.values()))
    return np.asarray(reference()["out"], dtype=float)


@each
def test_another_draw_has_the_same_cases_and_wants_other_answers(exercise: Exercise) -> None:
    """So answers that somebody knows by heart are worth nothing."""
    old, new, again = exercise.trials(0), exercise.trials(DRAW), exercise.trials(DRAW)
    told = [[(trial.name, trial.meaning) for trial in trials] for trials in (old, new)]
    assert told[0] == told[1]
    wanted = [[*map(expected, trials)] for trials in (old, new, again)]
    pairs = zip(wanted[0], wanted[1], strict=True)
    assert sum(np.array_equal(one, other, True) for one, other in pairs) <= LUCK * len(old)
    for one, other in zip(wanted[1], wanted[2], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.rest("test_exercises.py on the draw of the notebooks")
@each
@pytest.mark.parametrize(
    "draw",
    [DRAW, *(pytest.param(draw, marks=pytest.mark.hours) for draw in (1, 2, 3, 4, 5, 2**31 - 1))],
)
def test_the_solution_passes_other_draws_and_no_wrong_answer_does(
    exercise: Exercise, draw: int
) -> None:
    assert grade(exercise.name, draw=draw).ok
    for wrong in exercise.wrong:
        answer = exercise.answer(wrong.made_in(exercise.source))
        assert not grade(exercise.name, answer, draw).ok, wrong.why


@pytest.mark.parametrize(("draw", "error"), [(-1, ValueError), ("1", TypeError), (True, TypeError)])
def test_a_draw_that_is_no_seed_is_no_verdict_on_the_answer(draw, error) -> None:
    with pytest.raises(error, match="draw is"):
        grade("attend_latent", draw=draw)


ROUNDED = 2, 629570694  # draws whose largest scores are near 0, and rounded badly


@pytest.mark.rest("the draw of the notebooks")
@pytest.mark.parametrize("draw", ROUNDED)
@pytest.mark.parametrize(
    "name", ["naive_kernel", "paged_attention_v1", "qk_dot_by_vec", "merged_output"]
)
def test_a_right_kernel_loses_nothing_by_rounding(name: str, draw: int) -> None:
    assert grade(name, draw=draw).ok
