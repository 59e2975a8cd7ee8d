"""The exercises of a notebook as separate notebooks for students and for instructors."""

from itertools import chain
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from pa_tutorial.exercises import Exercise, exercises_of
from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.needs import needs_of

RULES = """\
# Exercises of notebook {number}

**An assignment.** Write your answers into the exercises' cells, where a line says so. `attempt` \
shows whether an answer is right with this notebook's numbers, and uses our functions in place of \
those that you haven't written. Where a text mentions a section, it means one of notebook {number}.

The grader runs the whole notebook from top to bottom, in a folder of its own, and tries what you \
give to `attempt` with other numbers. So keep the lines with `attempt`, and before you hand in, \
run all once more: *Kernel, Restart Kernel and Run All Cells*."""

# What JupyterLab itself writes when the kernel starts. If it finds anything else, it marks the
# notebook as unsaved as soon as it is open.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
        "version": "3",  # etc/ipython/ipython_kernel_config.py
    },
}


def student_notebook(name: str) -> NotebookNode:
    """Text, stub and attempt of every exercise."""
    return _notebook(name, [cells_of(e, e.stub) for e in exercises_of(name)])


def instructor_notebook(name: str) -> NotebookNode:
    """With solutions, the marks around them, and below each its common mistakes."""
    groups = [[*cells_of(e, e.source.strip()), mistakes(e)] for e in exercises_of(name)]
    return _notebook(name, groups)


def cells_of(exercise: Exercise | Blank, answer: str) -> list[NotebookNode]:
    name = exercise.name
    attempt = f'{exercise.function} = attempt("{name}", {exercise.function})'
    return [
        new_markdown_cell(f"### `{name}`\n\n{exercise.text.strip()}", id=f"text-{name}"[:64]),
        new_code_cell(answer.strip(), id=f"stub-{name}"[:64]),
        new_code_cell(attempt, id=f"attempt-{name}"[:64]),
    ]


def mistakes(exercise: Exercise | Blank) -> NotebookNode:
    """For the instructor: common wrong answers, and what each case is for."""
    lines = ["**Common mistakes** (each of these answers loses points):", ""]
    lines += [f"- {wrong.why.strip()}" for wrong in exercise.wrong]
    lines += ["", "**What each case is for:**", ""]
    lines += [f"- `{t.name}`: {t.isolates}. {t.meaning}".strip() for t in exercise.trials(0)]
    return new_markdown_cell("\n".join(lines), id=f"mistakes-{exercise.name}"[:64])


def _notebook(name: str, groups: list[list[NotebookNode]]) -> NotebookNode:
    needed = f"{needs_of(exercises_of(name))}\n\nfrom pa_tutorial.exercises import attempt"
    rules = new_markdown_cell(RULES.format(number=name[:2]), id="rules")
    cells = [rules, new_code_cell(needed, id="imports"), *chain(*groups)]
    return new_notebook(cells=cells, metadata=nbformat.from_dict(METADATA))


def write_notebooks(name: str, students: Path, instructors: Path) -> None:
    for folder, make in ((students, student_notebook), (instructors, instructor_notebook)):
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(make(name), folder / f"{name}.ipynb")
