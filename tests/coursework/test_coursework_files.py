"""What is handed out comes from the source of each exercise; solving fills marked places."""

import re
from itertools import count
from pathlib import Path

import nbformat
import pytest

from pa_tutorial.checks.running import judge
from pa_tutorial.coursework.__main__ import main
from pa_tutorial.coursework.assignment import ANSWERS, adapters_file, assignment, exercises_of
from pa_tutorial.coursework.assignment import notebook_names as names
from pa_tutorial.coursework.guard import objection
from pa_tutorial.coursework.notebooks import (
    files_of_notebook,
    instructor_notebook,
    student_notebook,
)
from pa_tutorial.coursework.plain import files
from pa_tutorial.coursework.window import NAME as WINDOW
from pa_tutorial.exercises.exercise import BEGIN, END, PLACEHOLDER
from pa_tutorial.text_changes import compiled
from tests import absent

NUMBERS = count(1)
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
each_notebook = pytest.mark.parametrize("name", names())


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
        before, after = map(re.escape, stub.split(PLACEHOLDER))
        assert re.fullmatch(f"{before}{BEGIN}.*{END}\\s*{after}", solution, re.DOTALL)
    assert BEGIN not in nbformat.writes(student), "students get no solution"
    assert all(cell.cell_type == "markdown" for cell in cells.values()), "only text is added"


@each_notebook
def test_answers_of_folders_and_notebooks_have_all_that_they_need(name: str, tmp_path) -> None:
    if name == "14_triton":
        absent.require("Triton")
    one = assignment(name)
    nbformat.write(instructor_notebook(name), tmp_path / "solved.ipynb")
    paths = tmp_path / "solved.ipynb", NOTEBOOKS / f"{name}.ipynb"
    read = [files_of_notebook(path) for path in paths]
    assert [found.name for found, _ in read] == [name, name]
    texts = [one.solution, read[0][1], one.starter, read[1][1]]
    objections = {objection(text, frozenset({"answers"})) for of in texts for text in of.values()}
    assert objections == {""}
    *solved, starter, walk = (run(of[ANSWERS]) for of in texts)
    for task in one.tasks:
        assert task.name in starter.keys() & walk.keys()
        for answers in solved:
            case, _ = judge(task.trials(0)[0], answers[task.name])
            assert case.passed, case.report()


NO_CELL = '{"nbformat": 4, "nbformat_minor": 5, "cells": [{}]}'
NO_NOTEBOOKS = dict.fromkeys(("", "{}", "[]", NO_CELL, "\0\1", "no json"), "is not a notebook")
NO_NOTEBOOKS[nbformat.writes(nbformat.v4.new_notebook())] = "has no task of an assignment"


@pytest.mark.parametrize(("text", "message"), NO_NOTEBOOKS.items())
def test_what_is_no_submission_is_refused(text: str, message: str, tmp_path) -> None:
    (tmp_path / "mine.ipynb").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"mine.ipynb.* {message}"):
        files_of_notebook(tmp_path / "mine.ipynb")


@pytest.mark.parametrize("name", [*names(), WINDOW])
def test_starter_and_solution_are_the_same_files_as_adapters_and_readme_say(name: str) -> None:
    one = assignment(name)
    assert one.starter.keys() == one.solution.keys()
    readme, adapters = files(one)["README.md"], adapters_file(one)
    assert all(f"`{file}`" in readme for file in one.starter)
    assert not any(BEGIN in text for text in one.starter.values())
    for task in one.tasks:
        assert re.search(rf"(?m)^## .*`{task.name}`.* \({task.points:g} points\)", readme)
        assert f"def {task.name}():" in adapters
        for file, function in task.places:
            assert f"def {function}(" in one.starter[file]
            assert f"from {file.removesuffix('.py')} import {function}" in adapters


def test_make_writes_every_form_and_grade_the_points_of_all_it_can(tmp_path, capsys) -> None:
    out = tmp_path / "course"
    assert main(["make", "02_memory_waste", WINDOW, "--out", str(out), "--draw", "5"]) == 0
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {
        "student/02_memory_waste.ipynb",
        "instructor/02_memory_waste.ipynb",
        "instructor/plain/sliding_window/reduce_window.py",
        "plain/02_memory_waste/adapters.py",
        "plain/sliding_window/test_tasks.py",
        "nbgrader/nbgrader_config.py",
        "nbgrader/source/02_memory_waste/02_memory_waste.ipynb",
    } <= found
    secrets = [path for path in found if '"draw": 5' in (out / path).read_text(encoding="utf-8")]
    assert secrets == ["instructor/key.json"]

    notebook = nbformat.read(out / "student" / "02_memory_waste.ipynb", as_version=4)
    first, *rest = exercises_of("02_memory_waste")
    (cell,) = (cell for cell in notebook.cells if cell.source == first.stub)
    cell.source = first.source
    ada, points = tmp_path / "ada.ipynb", tmp_path / "points.csv"
    nbformat.write(notebook, ada)
    words = ["--key", str(out / "instructor" / "key.json"), "--csv", str(points)]
    assert main(["grade", *words, "nobody", str(ada)]) == 2
    printed = capsys.readouterr()
    assert f"ada.ipynb: 10 of {10 + 10 * len(rest)} points" in printed.out
    assert "nobody: not graded" in printed.err
    rows = points.read_text(encoding="utf-8").splitlines()
    assert rows[1] == f"{ada},02_memory_waste,{first.name},10.0,10.0,,"
    assert rows[2 + len(rest)].startswith("nobody,,,,,,")


BAD = {
    "make 19_none --out new": "name is '19_none'; it must be one of: 01_kv_cache",
    "make 02_memory_waste --out .": "out is .; it must be a new or empty folder",
    "make 02_memory_waste --out new --draw 0": "draw is 0; it must be 1",
    "make 02_memory_waste --out new --seconds 0": "seconds is 0",
    "make 02_memory_waste --out new --megabytes 0": "megabytes is 0",
    "grade --key none.json x.ipynb": "none.json",
    "grade --key nothing x.ipynb": "key is nothing; it must be the key.json",
    "grade --key list x.ipynb": "key is list",
    "grade --key no_draw x.ipynb": "key is no_draw",
    "grade --key limit x.ipynb": "key is limit",
}
KEYS = {"nothing": "", "list": "[]", "no_draw": "{}", "limit": '{"draw": 1, "limits": {"h": 1}}'}


@pytest.mark.parametrize(("words", "message"), BAD.items())
def test_bad_arguments_and_keys_are_named_and_nothing_is_written(
    words: str, message: str, tmp_path, capsys, monkeypatch
) -> None:
    for name, text in KEYS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {*KEYS}
