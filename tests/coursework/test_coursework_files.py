"""What is handed out comes from the source of each exercise; solving fills marked places."""

import re
import subprocess
import sys
from itertools import count
from pathlib import Path

import nbformat
import pytest

from pa_tutorial.checks.running import judge
from pa_tutorial.coursework.__main__ import main
from pa_tutorial.coursework.assignment import ANSWERS, SLIDING_WINDOW, assignment
from pa_tutorial.coursework.notebooks import instructor_notebook, student_notebook
from pa_tutorial.coursework.plain import write_folder
from pa_tutorial.coursework.submissions import MOST_BYTES, read_submission
from pa_tutorial.exercises import exercises_of
from pa_tutorial.exercises.exercise import PLACEHOLDER, compiled
from pa_tutorial.exercises.texts import BEGIN, END, notebook_names
from tests import absent

NUMBERS = count(1)
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
WASTE = assignment("02_memory_waste")
each_notebook = pytest.mark.parametrize("name", notebook_names())


def run(text: str) -> dict:
    """The names that a file defines; what it needs is all there."""
    names: dict = {"__name__": "answers"}
    exec(compiled(text, f"<{next(NUMBERS)} answers>"), names)
    return names


@each_notebook
def test_solving_fills_only_the_marked_places(name: str) -> None:
    student, solved = student_notebook(name), instructor_notebook(name)
    nbformat.validate(student)
    cells = {cell.id: cell for cell in solved.cells}
    changed = [(one.source, cells.pop(one.id).source) for one in student.cells]
    changed = [(stub, solution) for stub, solution in changed if stub != solution]
    assert len(changed) == len(exercises_of(name))
    for stub, solution in changed:
        if PLACEHOLDER not in stub:  # a blank: tests/exercises/test_blanks.py
            continue
        before, after = map(re.escape, stub.split(PLACEHOLDER))
        assert re.fullmatch(f"{before}{BEGIN}.*{END}\\s*{after}", solution, re.DOTALL)
    assert BEGIN not in nbformat.writes(student), "students get no solution"
    assert "<details>" not in nbformat.writes(student), "nor hints and answers"
    assert all(cell.cell_type == "markdown" for cell in cells.values()), "only text is added"


@pytest.mark.rest("a notebook with one kernel", keep=["08_first_paged_kernel"])
@each_notebook
def test_answers_of_folders_and_notebooks_have_all_that_they_need(name: str, tmp_path) -> None:
    if name == "24_triton":
        absent.require("Triton")
    one = assignment(name)
    nbformat.write(instructor_notebook(name), tmp_path / "solved.ipynb")
    paths = tmp_path / "solved.ipynb", NOTEBOOKS / f"{name}.ipynb"
    read = [read_submission(path, one)[ANSWERS] for path in paths]
    *solved, starter, walk = map(
        run, (one.solution[ANSWERS], read[0], one.starter[ANSWERS], read[1])
    )
    for task in one.tasks:
        ((_, function),) = task.places
        assert function in starter.keys() & walk.keys()
        for answers in solved:
            case, _ = judge(task.trials(0)[0], answers[function])
            assert case.passed, case.report()


NO_CELL = '{"nbformat": 4, "nbformat_minor": 5, "cells": [{}]}'
NO_SUBMISSIONS = dict.fromkeys(("", "{}", "[]", NO_CELL, "\0\1"), "it is not a notebook")
NO_SUBMISSIONS[nbformat.writes(nbformat.v4.new_notebook())] = "it has no answers.py of 02_memory"
NO_SUBMISSIONS[" " * (MOST_BYTES + 1)] = "mine.ipynb has 8,388,609 bytes"


@pytest.mark.parametrize(("text", "message"), NO_SUBMISSIONS.items(), ids=range(7))
def test_what_is_no_submission_is_refused(text: str, message: str, tmp_path) -> None:
    (tmp_path / "mine.ipynb").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_submission(tmp_path / "mine.ipynb", WASTE)
    with pytest.raises(ValueError, match=r"it has no answers\.py of 02_memory_waste"):
        read_submission(tmp_path, WASTE)


def test_a_folder_is_read_as_editors_write_it_without_tests_and_settings(tmp_path) -> None:
    for name in ("test_tasks.py", "conftest.py", ANSWERS):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbfx = 1\r\n")
    (tmp_path / "folder.py").mkdir()
    assert read_submission(tmp_path, WASTE) == {ANSWERS: "x = 1\n"}


def test_pytest_finds_a_plain_folders_files_inside_another_project(tmp_path) -> None:
    """The walk's own options have another import mode, and make every warning an error."""
    options = '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n'
    (tmp_path / "pyproject.toml").write_text(options, encoding="utf-8")
    write_folder(assignment(SLIDING_WINDOW), tmp_path / "plain", solved=True)
    command = [sys.executable, "-m", "pytest", "-q", "-k", "v1-one_token"]
    done = subprocess.run(command, cwd=tmp_path / "plain", capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.rest("test_coursework_grades.py makes and grades the plain form")
def test_make_writes_every_form_and_grade_the_points_of_all_it_can(tmp_path, capsys) -> None:
    out = tmp_path / "course"
    assert main(["make", WASTE.name, SLIDING_WINDOW, "--out", str(out)]) == 0
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {
        "student/02_memory_waste.ipynb",
        "instructor/02_memory_waste.ipynb",
        "instructor/plain/sliding_window/v2_window.py",
        "plain/02_memory_waste/answers.py",
        "plain/sliding_window/test_tasks.py",
    } <= found
    notebook = nbformat.read(out / "student" / "02_memory_waste.ipynb", as_version=4)
    first, second, *others = exercises_of(WASTE.name)
    (cell,) = (c for c in notebook.cells if c.source.strip() == first.stub.strip())
    cell.source = first.source
    ada, points = tmp_path / "ada.ipynb", tmp_path / "points.csv"
    nbformat.write(notebook, ada)
    words = ["--csv", str(points), "--draw", "5"]
    assert main(["grade", WASTE.name, "nobody", str(ada), *words]) == 2
    printed = capsys.readouterr()
    assert f"ada.ipynb: 10 of {20 + 10 * len(others)} points" in printed.out
    assert "--draw 5" in printed.out
    assert printed.err.count("nobody: not graded") == 1
    rows = points.read_text(encoding="utf-8").splitlines()
    assert rows[1].startswith("nobody,02_memory_waste,,,,,")
    assert rows[2] == f"{ada},02_memory_waste,{first.name},10.0,10.0,,"
    assert rows[3].startswith(f"{ada},02_memory_waste,{second.name},0.0,10.0,")
    assert "not written yet" in rows[3]


BAD = {
    "make 19_none --out new": "the assignment is '19_none'; it must be one of: 01_kv_cache",
    "make 02_memory_waste --out .": "out is .; it must be a new or empty folder",
    "grade 02_memory_waste x.ipynb --draw 0": "draw is 0; it must be 1",
    "grade 02_memory_waste x.ipynb --seconds 0": "seconds is 0",
}


@pytest.mark.parametrize(("words", "message"), BAD.items())
def test_bad_arguments_are_named_and_nothing_is_written(
    words: str, message: str, tmp_path, capsys, monkeypatch
) -> None:
    (tmp_path / "x.ipynb").touch()
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"x.ipynb"}
