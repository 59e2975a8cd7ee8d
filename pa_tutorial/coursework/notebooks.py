"""The exercises of a notebook as notebooks: for students, for instructors, for nbgrader; and back.

Source: nbgrader's documentation, "Creating and grading assignments" and "Advanced topics".
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from pa_tutorial.coursework.assignment import (
    ANSWERS,
    POINTS,
    adapters_file,
    assignment,
    assignment_of,
    exercises_of,
    needs_of,
)
from pa_tutorial.coursework.excerpts import definitions, excerpt
from pa_tutorial.coursework.grading import grade
from pa_tutorial.coursework.guard import objection
from pa_tutorial.coursework.limits import Limits
from pa_tutorial.coursework.tasks import Assignment
from pa_tutorial.exercises import EXERCISES, Exercise
from pa_tutorial.exercises.cells import cell_sources
from pa_tutorial.exercises.exercise import PLACEHOLDER

SCHEMA_VERSION = 3
SPARE_SECONDS = 60  # more than our own limit: nbgrader's is for what hangs elsewhere
RULES = """\
# Exercises of notebook {number}

**An assignment.** Write your answers into the cells of the exercises, in place of the line that \
says so. `attempt` shows what it would be worth, on the numbers of this notebook; the grade is \
given on other numbers. What your answer needs (imports, functions, constants) may stand in its \
cell or in any other. It may not read files, run text as code, or reach for the checks and the \
exercises of the package: the grade says which line does."""
GRADE = """\
# The points for `{task}` are given in this cell.
### BEGIN HIDDEN TESTS
from pa_tutorial.coursework.notebooks import points

cells = get_ipython().history_manager.input_hist_raw
points("{task}", cells, draw={draw}, seconds={seconds:g}, megabytes={megabytes})
### END HIDDEN TESTS"""
CONFIG = '''\
"""nbgrader's settings for this course."""

c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "paged_attention"
c.ClearSolutions.code_stub = {{"python": "{placeholder}"}}
c.Execute.timeout = {seconds:.0f}
c.Execute.interrupt_on_timeout = True
'''


def student_notebook(name: str) -> NotebookNode:
    """Text, stub and attempt of every exercise."""
    return _notebook(name, [[*cells_of(e, e.stub)] for e in exercises_of(name)])


def instructor_notebook(name: str) -> NotebookNode:
    """With solutions, the marks around them, and what goes wrong under each."""
    exercises = exercises_of(name)
    return _notebook(name, [[*cells_of(e, e.source.strip()), mistakes(e)] for e in exercises])


def nbgrader_notebook(name: str, draw: int, limits: Limits) -> NotebookNode:
    """From which nbgrader makes the students' one: solutions, and under each a cell that grades."""
    groups = []
    for exercise in exercises_of(name):
        text, stub, attempt = cells_of(exercise, exercise.source.strip())
        text.metadata["nbgrader"] = mark(f"{exercise.name}-text")
        stub.metadata["nbgrader"] = mark(exercise.name, solution=True)
        attempt.metadata["nbgrader"] = mark(f"{exercise.name}-attempt")
        groups.append([text, stub, attempt, grade_cell(exercise.name, draw, limits)])
    return _notebook(name, groups)


def cells_of(exercise: Exercise, answer: str) -> tuple[NotebookNode, NotebookNode, NotebookNode]:
    sources = cell_sources(exercise, 0) | {"text": f"### `{exercise.name}`\n\n{exercise.text}"}
    ids = {part: f"{part}-{exercise.name}"[:64] for part in sources}
    return (
        new_markdown_cell(sources["text"], id=ids["text"]),
        new_code_cell(answer, id=ids["stub"]),
        new_code_cell(sources["attempt"], id=ids["attempt"]),
    )


def mistakes(exercise: Exercise) -> NotebookNode:
    """What people get wrong, for the instructor: the wrong answers, and what each case is for."""
    lines = ["**What goes wrong here** (each of these answers loses points):", ""]
    lines += [f"- {wrong.why}" for wrong in exercise.wrong]
    lines += ["", "**What each case is for:**", ""]
    lines += [f"- `{t.name}`: {t.isolates}. {t.meaning}" for t in exercise.trials(0)]
    return new_markdown_cell("\n".join(lines), id=f"mistakes-{exercise.name}"[:64])


def grade_cell(task: str, draw: int, limits: Limits) -> NotebookNode:
    source = GRADE.format(task=task, draw=draw, **vars(limits))
    metadata = {"nbgrader": mark(f"{task}-grade", points=POINTS)}
    return new_code_cell(source, id=f"grade-{task}"[:64], metadata=metadata)


def mark(grade_id: str, solution: bool = False, points: float | None = None) -> dict:
    """nbgrader's metadata of a cell: a solution may be changed, everything else is locked."""
    words = {"grade_id": grade_id, "solution": solution, "locked": not solution, "task": False}
    words |= {"grade": points is not None, "schema_version": SCHEMA_VERSION}
    return words if points is None else {**words, "points": points}


def _notebook(name: str, groups: list[list[NotebookNode]]) -> NotebookNode:
    needed = f"{needs_of(exercises_of(name))}\n\nfrom pa_tutorial.checks import attempt"
    rules = new_markdown_cell(RULES.format(number=name[:2]), id="rules")
    cells = [rules, new_code_cell(needed, id="imports"), *chain(*groups)]
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def write(notebook: NotebookNode, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


def write_nbgrader(names: list[str], folder: Path, draw: int, limits: Limits) -> None:
    """A course folder of nbgrader, with one assignment for each notebook."""
    for name in names:
        notebook = nbgrader_notebook(name, draw, limits)
        write(notebook, folder / "source" / name / f"{name}.ipynb")
    config = CONFIG.format(placeholder=PLACEHOLDER, seconds=limits.seconds + SPARE_SECONDS)
    (folder / "nbgrader_config.py").write_text(config, encoding="utf-8")


def points(task: str, cells: Iterable[str], draw: int, seconds: float, megabytes: int) -> float:
    """What nbgrader's grading cells call: grade one task of the notebook that runs, print what
    fails, and return the points, which nbgrader takes as a partial credit.

    cells  the texts of all cells that ran
    """
    one = assignment(EXERCISES[task].notebook)
    files = answers_in(one, cells)
    one = replace(one, tasks=(one.task(task),))
    result = grade("this notebook", files, one, draw, Limits(seconds, megabytes))
    print(result)
    return result.points


def files_of_notebook(path: Path) -> tuple[Assignment, dict[str, str]]:
    """The assignment that a notebook belongs to, and what it answers, as files to be graded.

    The functions of the exercises are looked for in all cells; the last definition counts.
    Raises ValueError for a file that is no notebook of an assignment.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
        sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    except OSError:
        raise
    except Exception as error:  # nbformat raises many kinds
        raise ValueError(f"{path} is not a notebook: {error!r:.200}") from None
    try:
        one = assignment_of(definitions(sources))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return one, answers_in(one, sources)


def answers_in(one: Assignment, cells: Iterable[str]) -> dict[str, str]:
    """answers.py and adapters.py of the cells of a notebook: each answer with what it needs.

    An import that an answer may not have is left out where another cell than the answer has it.
    """
    known = definitions(cells)
    tasks = [task.name for task in one.tasks if task.name in known]
    known = {name: found for name, found in known.items() if not _is_forbidden(found.text)}
    return {ANSWERS: excerpt(tasks, known) + "\n", "adapters.py": adapters_file(one)}


def _is_forbidden(text: str) -> bool:
    return text.startswith(("import ", "from ")) and bool(objection(text))
