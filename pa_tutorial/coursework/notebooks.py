"""The notebooks of a course: for students, for instructors, and as they come back."""

from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from pa_tutorial.coursework.assignment import (
    ANSWERS,
    Assignment,
    adapters_file,
    assignment,
    imports_of,
)
from pa_tutorial.coursework.excerpts import definitions, joined, needed_by, needed_everywhere
from pa_tutorial.coursework.grading import ROOT
from pa_tutorial.coursework.guard import objection
from pa_tutorial.exercises import EXERCISES, Exercise

NOTEBOOKS = ROOT / "notebooks"
RULES = (
    "**An assignment.** Write your answers into the cells of the exercises, in place of the line "
    "that says so. `attempt` shows what it would be worth, on the numbers of this notebook; the "
    "grade is given on other numbers. What your answer needs (imports, functions, constants) may "
    "stand in its cell or in any other. It may not read files, run text as code, or reach for the "
    "checks and the exercises of the package: the grade says which line does."
)


def student_notebook(name: str, exercises_only: bool = False) -> NotebookNode:
    """A notebook with stubs, and without outputs; with the walk around them or without."""
    notebook = _plain(name, exercises_only)
    for cell in notebook.cells:
        exercise = exercise_of(cell)
        if exercise is not None and cell.metadata["part"] == "stub":
            cell.source = exercise.stub
    return notebook


def instructor_notebook(name: str, exercises_only: bool = False) -> NotebookNode:
    """A notebook with solutions, the marks around them, and what goes wrong under each."""
    notebook, cells = _plain(name, exercises_only), []
    for cell in notebook.cells:
        exercise = exercise_of(cell)
        cells.append(cell)
        if exercise is None:
            continue
        if cell.metadata["part"] == "stub":
            cell.source = exercise.source.strip()
        if cell.metadata["part"] == "attempt":
            cells.append(_mistakes(exercise))
    notebook.cells = cells
    return notebook


def exercise_of(cell: NotebookNode) -> Exercise | None:
    return EXERCISES.get(cell.metadata.get("exercise", ""))


def files_of_notebook(path: Path) -> tuple[Assignment, dict[str, str]]:
    """The assignment that a notebook belongs to, and what it answers, as files to be graded.

    The functions of the exercises are looked for in all cells; the last definition counts.
    Raises ValueError for a file that is no notebook of an assignment.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
        sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        exercises = [exercise_of(cell) for cell in notebook.cells]
    except OSError:
        raise
    except Exception as error:  # nbformat raises many kinds
        raise ValueError(f"{path} is not a notebook: {error!r:.200}") from None
    if not any(exercises):  # some programs drop the metadata of cells
        exercises = [EXERCISES.get(name) for name in definitions(sources)]
    names = {exercise.notebook for exercise in exercises if exercise is not None}
    if len(names) != 1:
        found = ", ".join(sorted(names)) or "none"
        raise ValueError(f"{path} has exercises of {found}; it must have those of one notebook")
    found = assignment(names.pop())
    return found, answers_in(found, sources)


def answers_in(one: Assignment, cells: list[str]) -> dict[str, str]:
    """answers.py and adapters.py of the cells of a notebook: each answer with what it needs.

    An import that an answer may not have is left out where another cell than the answer has it.
    """
    known = definitions(cells)
    tasks = [task.name for task in one.tasks if task.name in known]
    known = {name: found for name, found in known.items() if not _is_forbidden(found.text)}
    parts = needed_by([*tasks, *needed_everywhere(known)], known)
    return {ANSWERS: joined(parts) + "\n", "adapters.py": adapters_file(one)}


def _is_forbidden(text: str) -> bool:
    return text.startswith(("import ", "from ")) and bool(objection(text))


def _plain(name: str, exercises_only: bool) -> NotebookNode:
    """The committed notebook without its outputs, with the rules at its head."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    title, *cells = notebook.cells
    if exercises_only:
        title = new_markdown_cell(f"# Exercises of notebook {name[:2]}", id=f"{name[:2]}-title")
        imports = f"{imports_of(name)}\n\nfrom pa_tutorial.checks import attempt"
        needed = new_code_cell(imports, id=f"{name[:2]}-imports")
        cells = [needed, *(cell for cell in cells if exercise_of(cell) is not None)]
    notebook.cells = [title, new_markdown_cell(RULES, id=f"{name[:2]}-rules"), *cells]
    return notebook


def _mistakes(exercise: Exercise) -> NotebookNode:
    """What people get wrong, for the instructor: the wrong answers, and what each case is for."""
    lines = ["**What goes wrong here** (each of these answers loses points):", ""]
    lines += [f"- {wrong.why}" for wrong in exercise.wrong]
    lines += ["", "**What each case is for:**", ""]
    lines += [
        f"- `{trial.name}`: {trial.isolates}. {trial.meaning}" for trial in exercise.trials(0)
    ]
    return new_markdown_cell("\n".join(lines), id=f"mistakes-{exercise.name}"[:64])


def write(notebook: NotebookNode, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
