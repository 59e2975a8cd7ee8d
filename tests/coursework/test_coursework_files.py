"""What is handed out comes from the source of each exercise; solving fills marked places."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from pa_tutorial.checks.running import judge, run_trials
from pa_tutorial.coursework.__main__ import main
from pa_tutorial.coursework.apart import ROOT
from pa_tutorial.coursework.assignment import ANSWERS, SLIDING_WINDOW, assignment
from pa_tutorial.coursework.notebooks import instructor_notebook, student_notebook
from pa_tutorial.coursework.plain import write_folder
from pa_tutorial.exercises import EXERCISES, exercises_of
from pa_tutorial.exercises.exercise import PLACEHOLDER, compiled
from pa_tutorial.exercises.texts import BEGIN, END, notebook_names
from tests import absent
from tests.coursework.thirty import NAME, WRONG

each_notebook = pytest.mark.parametrize("name", notebook_names())


def run(text: str) -> dict:
    """The names that a file defines; what it needs is all there."""
    names: dict = {"__name__": "answers"}
    exec(compiled(text, f"<answers {hash(text)}>"), names)
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
def test_answers_of_plain_folders_have_all_that_they_need(name: str) -> None:
    if name == "24_triton":
        absent.require("Triton")
    one = assignment(name)
    solved, starter = map(run, (one.solution[ANSWERS], one.starter[ANSWERS]))
    for task in one.tasks:
        ((_, function),) = task.places
        assert function in starter
        case, _ = judge(task.trials(0)[0], solved[function])
        assert case.passed, case.report()


@pytest.mark.rest("test_coursework_grades.py has a notebook of five tasks")
@each_notebook
def test_a_solved_notebook_gets_full_points(name: str, tmp_path: Path, capsys) -> None:
    if name == "24_triton":
        absent.require("Triton")
    nbformat.write(instructor_notebook(name), tmp_path / "solved.ipynb")
    assert main(["grade", name, str(tmp_path / "solved.ipynb")]) == 0
    printed = capsys.readouterr().out
    points = 10 * len(assignment(name).tasks)
    assert f"# solved: {points} of {points} points" in printed, printed


def test_pytest_says_what_is_wrong_in_a_plain_folder(tmp_path: Path) -> None:
    """Inside another project, whose options have another import mode."""
    options = '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n'
    (tmp_path / "pyproject.toml").write_text(options, encoding="utf-8")
    folder, merge = tmp_path / "plain", EXERCISES["merge_outputs"]
    write_folder(assignment(NAME), folder)
    starter = (folder / ANSWERS).read_text(encoding="utf-8")
    (folder / ANSWERS).write_text(starter.replace(merge.stub, WRONG), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "merge"]
    own = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    output = subprocess.run(command, **own, capture_output=True, encoding="utf-8").stdout
    assert "check this first: " in output
    passed = run_trials("merge_outputs", merge.trials(0), merge.answer(WRONG)).passed
    assert re.search(rf"\d+ failed, {passed} passed", output)


def test_make_writes_every_form(tmp_path: Path) -> None:
    out = tmp_path / "course"
    assert main(["make", "02_memory_waste", SLIDING_WINDOW, "--out", str(out)]) == 0
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    notebooks = {"student/02_memory_waste.ipynb", "instructor/02_memory_waste.ipynb"}
    solved = {"instructor/plain/sliding_window/v2_window.py"}
    assert found >= notebooks | solved | {"plain/02_memory_waste/answers.py"}


BAD = {
    "make 19_none --out new": "assignment is '19_none'; .*: 01_kv_cache",
    "make 02_memory_waste --out .": "out is .; .* empty",
    "grade 02_memory_waste x.ipynb --draw 0": "draw is 0",
    "grade 02_memory_waste x.ipynb --out .": "out is .; .* interrupted",
    "grade 02_memory_waste y.ipynb": "no such .* y.ipynb",
}


@pytest.mark.parametrize(("words", "message"), BAD.items())
def test_bad_arguments_are_named_and_nothing_is_written(
    words: str, message: str, tmp_path, capsys, monkeypatch
) -> None:
    (tmp_path / "x.ipynb").touch()
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert re.search(message, capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == ["x.ipynb"]
