"""The plain form, as students run it: pytest in its folder says what is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from coursework_students import EMPTY, FIRST, NAME, RIGHT, SECOND, THIRD, files, wrong

from pa_tutorial.coursework.__main__ import main
from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.coursework.grading import ROOT
from pa_tutorial.coursework.plain import write_folder
from pa_tutorial.coursework.window import NAME as WINDOW


def pytest_in(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
    )
    return done.stdout


def test_pytest_says_what_is_wrong_and_grade_what_it_is_worth(tmp_path, capsys) -> None:
    write_folder(assignment(NAME), tmp_path)
    answers = {FIRST: RIGHT[FIRST], SECOND: wrong(SECOND), THIRD: EMPTY[THIRD]}
    for name, text in files(answers).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    output = pytest_in(tmp_path)
    assert f"test_task[{FIRST}-" not in output, "it passes"
    for said in (f"test_task[{SECOND}-", "this case usually fails because", "not written yet"):
        assert said in output
    assert main(["grade", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"10.00 of 10  {FIRST}" in printed
    assert f" 0.00 of 10  {THIRD}" in printed


@pytest.mark.parametrize("name", [NAME, WINDOW])
def test_a_solved_folder_gets_all_points(name: str, tmp_path) -> None:
    write_folder(assignment(name), tmp_path / name, solved=True)
    output = pytest_in(tmp_path / name)
    assert "failed" not in output.splitlines()[-1], output
