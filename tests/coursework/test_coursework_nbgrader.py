"""The round trip with nbgrader: five students, each with the points that they are worth."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from pa_tutorial.coursework.__main__ import make
from pa_tutorial.coursework.grading import ROOT
from pa_tutorial.coursework.notebooks import nbgrader_notebook
from pa_tutorial.exercises import EXERCISES
from tests.coursework.coursework_students import (
    DRAW,
    EMPTY,
    LIMITS,
    NAME,
    SECOND,
    STUDENTS,
    is_worth,
)

pytestmark = pytest.mark.skipif(
    find_spec("nbgrader") is None, reason="needs nbgrader: pip install -e '.[coursework]'"
)

CELL_SECONDS = 30  # attempt() in the notebook of whoever never ends takes them all
FULL_MARKS = "10.0  # the points of this cell"


def by_id(notebook: NotebookNode) -> dict[str, NotebookNode]:
    cells = (cell for cell in notebook.cells if "nbgrader" in cell.metadata)
    return {cell.metadata.nbgrader.grade_id: cell for cell in cells}


def nbgrader(course: Path, *words: str) -> None:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # it calls alembic
    own = {"cwd": course, "env": {**os.environ, "PATH": programs, "PYTHONPATH": str(ROOT)}}
    command = [sys.executable, "-m", "nbgrader", *words]
    done = subprocess.run(command, **own, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course folder in which all have handed in and nbgrader has graded."""
    out = tmp_path_factory.mktemp("course") / "out"
    make([NAME], out, DRAW, LIMITS)
    folder = out / "nbgrader"
    with (folder / "nbgrader_config.py").open("a", encoding="utf-8") as file:
        file.write(f"c.Execute.timeout = {CELL_SECONDS}\n")
    nbgrader(folder, "generate_assignment", NAME)
    released = nbformat.read(folder / "release" / NAME / f"{NAME}.ipynb", as_version=4)
    for student, (answers, _) in STUDENTS.items():
        notebook = nbformat.from_dict(released)
        cells = by_id(notebook)
        for name, text in answers.items():
            cells[name].source = text
            if student == "cheating":  # the cells that give the points give them all
                cells[f"{name}-grade"].source = FULL_MARKS
                cells[f"{name}-grade"].metadata.nbgrader.locked = False
        target = folder / "submitted" / student / NAME
        target.mkdir(parents=True)
        nbformat.write(notebook, target / f"{NAME}.ipynb")
    nbgrader(folder, "autograde", NAME)
    return folder


@pytest.mark.parametrize("student", STUDENTS)
def test_students_get_what_they_are_worth(course: Path, student: str) -> None:
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as book:
        notebook = book.find_submission_notebook(NAME, NAME, student)
        found = {grade.name.removesuffix("-grade"): grade.score for grade in notebook.grades}
    wanted = STUDENTS[student][1]
    assert found.keys() == wanted.keys()
    assert all(is_worth(found[task], wanted[task]) for task in wanted), found


def test_the_release_has_no_secrets_and_the_feedback_says_what_is_wrong(course: Path) -> None:
    released, graded = (
        nbformat.read(course / folder / NAME / f"{NAME}.ipynb", as_version=4)
        for folder in ("release", "autograded/wrong")
    )
    cells = by_id(released)
    assert {name: cells[name].source for name in EMPTY} == EMPTY
    text = "\n".join(cell.source for cell in released.cells)
    assert "BEGIN" not in text
    assert str(DRAW) not in text, "the numbers of the grade are secret"
    shown = str(by_id(graded)[f"{SECOND}-grade"].outputs)
    assert SECOND in shown
    assert "of 10" in shown


def test_only_answers_may_be_changed() -> None:
    for cell in nbgrader_notebook(NAME, DRAW, LIMITS).cells:
        words = cell.metadata.get("nbgrader")
        if words:
            assert words["locked"] != words["solution"]
            assert words["solution"] == (words["grade_id"] in EXERCISES)
            assert words.get("points", 0) == (10 if words["grade"] else 0)
            assert (f"draw={DRAW}" in cell.source) == words["grade"]
