"""The plain form, as students run it: pytest in its folder prints the points."""

import os
import subprocess
import sys
from pathlib import Path

from coursework_students import EMPTY, FIRST, NAME, RIGHT, SECOND, THIRD, files, wrong

from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.coursework.grading import ROOT
from pa_tutorial.coursework.plain import write_folder


def pytest_in(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
    )
    return done.stdout


def points(output: str) -> list[str]:
    lines = output.splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip("= ") == "points")
    return [" ".join(line.split()) for line in lines[first + 1 : first + 5]]


def test_pytest_prints_the_points_of_each_task(tmp_path) -> None:
    write_folder(assignment(NAME), tmp_path)
    answers = {FIRST: RIGHT[FIRST], SECOND: wrong(SECOND), THIRD: EMPTY[THIRD]}
    for name, text in files(answers).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    output = pytest_in(tmp_path)
    first, second, third, total = points(output)
    assert first == f"10.00 of 10 {FIRST}"
    assert third == f"0.00 of 10 {THIRD}"
    passed = float(second.split()[0])
    assert 0 < passed < 10
    assert total == f"{10 + passed:.2f} of 30 in all"
    assert "this case usually fails because" in output
    assert "not written yet" in output


def test_an_import_that_the_grader_refuses_is_told_here_too(tmp_path) -> None:
    write_folder(assignment(NAME), tmp_path, solved=True)
    path = tmp_path / "answers.py"
    path.write_text("import os\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    output = pytest_in(tmp_path)
    assert "would not run your files: answers.py: line 1 imports os" in output
    assert points(output)[3] == "30.00 of 30 in all"  # it carries none
    path.write_text(path.read_text(encoding="utf-8").removeprefix("import os\n"), encoding="utf-8")
    assert "failed" not in pytest_in(tmp_path, "-k", "grader_would_run")


def test_a_part_of_the_tests_gives_the_points_of_that_part(tmp_path) -> None:
    write_folder(assignment(NAME), tmp_path, solved=True)
    output = pytest_in(tmp_path, "-k", FIRST)
    assert points(output)[:2] == [f"10.00 of 10 {FIRST}", "10.00 of 10 in all"]


def test_every_solved_folder_gets_all_points(tmp_path) -> None:
    from pa_tutorial.coursework.assignment import assignment_names

    for name in assignment_names():
        write_folder(assignment(name), tmp_path / name, solved=True)
        output = pytest_in(tmp_path / name)
        assert "failed" not in output.splitlines()[-1], output
