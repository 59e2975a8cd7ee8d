"""Ways to points without an answer, and ways to stop the grading: none of them works."""

import pytest
from coursework_students import DRAW, FIRST, LIMITS, NAME, RIGHT, SECOND, THIRD, files

from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.coursework.child import require_functions
from pa_tutorial.coursework.grading import Grade, grade
from pa_tutorial.ladder import AnswerError


def graded(given: dict[str, str]) -> Grade:
    return grade("student", given, assignment(NAME), DRAW, LIMITS)


def test_an_adapter_that_returns_no_function_gets_no_points() -> None:
    """Trials run our own solution in the place of None."""
    adapters = f"""
def {FIRST}():
    return None


def {SECOND}():
    return (None, None)


def {THIRD}():
    from answers import {THIRD}

    return {THIRD}
"""
    result = graded({**files(RIGHT), "answers.py": f"{THIRD} = None\n", "adapters.py": adapters})
    assert result.points == 0, result
    for task in result.tasks:
        assert "it must return the function" in task.note


@pytest.mark.parametrize("given", [None, (), (len,), (len, None), (None, len)])
def test_a_task_of_two_functions_needs_both(given: object) -> None:
    task = assignment("sliding_window").task("v2")
    require_functions((len, len), task)
    with pytest.raises(AnswerError, match="it must return"):
        require_functions(given, task)
