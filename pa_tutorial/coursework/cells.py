"""Points in a cell of a notebook: what nbgrader's grading cells call."""

from collections.abc import Sequence

from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.coursework.grading import Grade, grade
from pa_tutorial.coursework.limits import Limits
from pa_tutorial.coursework.notebooks import answers_in
from pa_tutorial.exercises import EXERCISES


def points(
    task: str, cells: Sequence[str], out_of: float, draw: int, seconds: float, megabytes: int
) -> float:
    """Grade one task of the notebook that runs, print what fails, and return the points.

    cells  the texts of all cells that ran; IPython's `In`

    The answer runs in a process of its own: what it does to this one does not count, and a
    function that does not end is stopped. nbgrader takes the number as a partial credit.
    """
    one = assignment(EXERCISES[task].notebook).only(task, out_of)
    files = answers_in(one, list(cells))
    result: Grade = grade("this notebook", files, one, draw, Limits(seconds, megabytes))
    print(result)
    return result.points
