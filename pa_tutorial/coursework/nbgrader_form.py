"""The same notebooks for nbgrader: its metadata on the cells, and a cell that gives the points.

Source: nbgrader's documentation, "Creating and grading assignments" and "Advanced topics".
"""

from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from pa_tutorial.coursework.assignment import Task, assignment
from pa_tutorial.coursework.limits import Limits
from pa_tutorial.coursework.notebooks import exercise_of, instructor_notebook, write
from pa_tutorial.exercises.exercise import PLACEHOLDER

SCHEMA_VERSION = 3
SPARE_SECONDS = 60  # more than our own limit: nbgrader's is for what hangs elsewhere

CONFIG = '''\
"""nbgrader's settings for this course."""

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "paged_attention"
c.ClearSolutions.code_stub = {{"python": "{placeholder}"}}
c.Execute.timeout = {seconds:.0f}
c.Execute.interrupt_on_timeout = True
'''

GRADE = """\
# The points for `{task}` are given in this cell.
### BEGIN HIDDEN TESTS
from pa_tutorial.coursework.cells import points

points("{task}", In, out_of={points:g}, draw={draw}, seconds={seconds:g}, megabytes={megabytes})
### END HIDDEN TESTS
"""


def source_notebook(
    name: str, draw: int, limits: Limits, exercises_only: bool = False
) -> NotebookNode:
    """The instructor's notebook, from which nbgrader makes the students' one."""
    notebook, cells = instructor_notebook(name, exercises_only), []
    for cell in notebook.cells:
        if cell.id.startswith("mistakes-"):
            continue
        cells.append(cell)
        exercise = exercise_of(cell)
        if exercise is None:
            continue
        task, part = assignment(name).task(exercise.name), cell.metadata["part"]
        cell.metadata["nbgrader"] = {
            "stub": mark(task.name, solution=True),
            "text": mark(f"{task.name}-text"),
            "attempt": mark(f"{task.name}-attempt"),
        }[part]
        if part == "attempt":
            cells.append(grade_cell(task, draw, limits))
    notebook.cells = cells
    return notebook


def grade_cell(task: Task, draw: int, limits: Limits) -> NotebookNode:
    seconds, megabytes = limits.seconds, limits.megabytes
    source = GRADE.format(
        task=task.name, points=task.points, draw=draw, seconds=seconds, megabytes=megabytes
    )
    metadata = {"nbgrader": mark(f"{task.name}-grade", points=task.points)}
    return new_code_cell(source.strip(), id=f"grade-{task.name}"[:64], metadata=metadata)


def mark(grade_id: str, solution: bool = False, points: float | None = None) -> dict:
    """nbgrader's metadata of a cell: a solution may be changed, everything else is locked."""
    words = {
        "grade": points is not None,
        "grade_id": grade_id,
        "locked": not solution,
        "schema_version": SCHEMA_VERSION,
        "solution": solution,
        "task": False,
    }
    return words if points is None else {**words, "points": points}


def write_course(
    names: list[str], folder: Path, draw: int, limits: Limits, exercises_only: bool = False
) -> None:
    """A course folder of nbgrader, with one assignment for each notebook."""
    for name in names:
        notebook = source_notebook(name, draw, limits, exercises_only)
        write(notebook, folder / "source" / name / f"{name}.ipynb")
    seconds = limits.seconds + SPARE_SECONDS
    config = CONFIG.format(placeholder=PLACEHOLDER, seconds=seconds)
    (folder / "nbgrader_config.py").write_text(config, encoding="utf-8")
