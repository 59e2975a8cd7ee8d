"""What is handed out comes from the source of each exercise; solving fills marked places."""

import ast
from itertools import count
from pathlib import Path

import absent
import nbformat
import pytest

from pa_tutorial.checks.running import judge
from pa_tutorial.coursework.__main__ import main
from pa_tutorial.coursework.assignment import (
    ANSWERS,
    adapters_file,
    assignment,
    assignment_names,
    exercises_of,
    notebook_names,
)
from pa_tutorial.coursework.guard import objection
from pa_tutorial.coursework.notebooks import (
    answers_in,
    files_of_notebook,
    instructor_notebook,
    student_notebook,
)
from pa_tutorial.coursework.plain import files
from pa_tutorial.coursework.window import NAME as WINDOW
from pa_tutorial.exercises.exercise import BEGIN, END, PLACEHOLDER
from pa_tutorial.text_changes import compiled

NUMBERS = count(1)
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
each_notebook = pytest.mark.parametrize("name", notebook_names())
each_assignment = pytest.mark.parametrize("name", assignment_names())


def runs(files: dict[str, str], name: str) -> dict:
    """The names that one of the files defines; what it needs is all there."""
    names: dict = {"__name__": "answers"}
    exec(compiled(files[name], f"<{next(NUMBERS)} {name}>"), names)
    return names


# Notebooks ---------------------------------------------------------------------------------------


@each_notebook
def test_solving_fills_only_the_marked_places(name: str) -> None:
    student, solved = student_notebook(name), instructor_notebook(name)
    cells = {cell.id: cell for cell in solved.cells}
    changed = 0
    for cell in student.cells:
        other = cells.pop(cell.id)
        if cell.source == other.source:
            continue
        before, after = cell.source.split(PLACEHOLDER)
        inside = other.source.removeprefix(before).removesuffix(after)
        assert before + inside + after == other.source
        assert inside.startswith(BEGIN)
        assert inside.rstrip().endswith(END)
        changed += 1
    assert changed == len(exercises_of(name))
    assert all(cell.cell_type == "markdown" for cell in cells.values()), "only text is added"


@each_notebook
def test_students_get_no_solution(name: str) -> None:
    notebook = student_notebook(name)
    nbformat.validate(notebook)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert text.count(PLACEHOLDER) == len(exercises_of(name))
    assert BEGIN not in text
    assert "### END" not in text


@each_notebook
def test_the_solved_notebook_is_read_back_as_the_solution(name: str, tmp_path) -> None:
    path = tmp_path / "solved.ipynb"
    nbformat.write(instructor_notebook(name), path)
    one, found = files_of_notebook(path)
    assert one.name == name
    for text in found.values():
        assert objection(text, frozenset({"answers"})) == ""
    if name != "14_triton":
        for exercise in exercises_of(name):
            assert exercise.name in runs(found, ANSWERS)


def test_an_answer_in_the_notebook_of_the_walk_is_found() -> None:
    for name in notebook_names():
        one, found = files_of_notebook(NOTEBOOKS / f"{name}.ipynb")
        assert one.name == name
        assert all(f"def {e.name}(" in found[ANSWERS] for e in exercises_of(name))


def test_what_an_answer_needs_may_stand_in_any_cell() -> None:
    cells = [
        "import math\nimport os\n%matplotlib inline",
        "this is not Python",
        "scale = 2",
        "def running_max_and_sum(scores):\n    return helper(scores)",
        "def helper(scores):\n    return math.sqrt(scale)",
        "os.system('true')\nscale = 3",
    ]
    found = answers_in(assignment("05_online_softmax"), cells)[ANSWERS]
    assert "import math" in found
    assert "scale = 3" in found
    assert "os" not in found.replace("scores", "")
    assert runs({ANSWERS: found}, ANSWERS)["running_max_and_sum"](None) == 3**0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "is not a notebook"),
        (nbformat.writes(nbformat.v4.new_notebook()), "has no task of an assignment"),
    ],
    ids=["no notebook", "no exercises"],
)
def test_what_is_no_submission_is_refused(text: str, message: str, tmp_path) -> None:
    path = tmp_path / "mine.ipynb"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"mine.ipynb.* {message}"):
        files_of_notebook(path)


# The plain form ----------------------------------------------------------------------------------


@each_assignment
def test_starter_and_solution_are_the_same_files(name: str) -> None:
    one = assignment(name)
    assert one.starter.keys() == one.solution.keys()
    for file in one.starter:
        if file.endswith(".py"):
            assert BEGIN not in one.starter[file]
            assert objection(one.solution[file]) == ""
    assert files(one).keys() == files(one, solved=True).keys()


@each_notebook
def test_answers_have_all_that_they_need(name: str) -> None:
    one = assignment(name)
    if name == "14_triton":
        absent.require("Triton")
    starter, solution = (runs(text, ANSWERS) for text in (one.starter, one.solution))
    for task in one.tasks:
        assert task.name in starter
        case, _ = judge(task.trials(0)[0], solution[task.name])
        assert case.passed, case.report()


@each_assignment
def test_adapters_name_what_the_files_define(name: str) -> None:
    one = assignment(name)
    functions = {node.name: node for node in ast.parse(adapters_file(one)).body[1:]}
    assert functions.keys() == {task.name for task in one.tasks}
    for task in one.tasks:
        for file, function in task.places:
            assert f"def {function}(" in one.starter[file]
            assert f"from {file.removesuffix('.py')} import {function}" in ast.unparse(
                functions[task.name]
            )


@each_assignment
def test_the_readme_says_what_to_do_and_for_how_much(name: str) -> None:
    one = assignment(name)
    text = files(one)["README.md"]
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    for task in one.tasks:
        assert any(f"`{task.name}`" in h and f"({task.points:g} points)" in h for h in headings)
    assert all(f"`{file}`" in text for file in one.starter)


# The command line --------------------------------------------------------------------------------


def test_make_writes_every_form(tmp_path, capsys) -> None:
    out = tmp_path / "course"
    assert main(["make", "02_memory_waste", WINDOW, "--out", str(out), "--draw", "5"]) == 0
    assert "written" in capsys.readouterr().out
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {
        "student/02_memory_waste.ipynb",
        "instructor/02_memory_waste.ipynb",
        "instructor/key.json",
        "instructor/plain/sliding_window/reduce_window.py",
        "plain/02_memory_waste/adapters.py",
        "plain/sliding_window/test_tasks.py",
        "nbgrader/nbgrader_config.py",
        "nbgrader/source/02_memory_waste/02_memory_waste.ipynb",
    } <= found
    secrets = [path for path in found if '"draw": 5' in (out / path).read_text(encoding="utf-8")]
    assert secrets == ["instructor/key.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["make", "19_none", "--out", "new"], "name is '19_none'; it must be one of: 01_kv_cache"),
        (["make", "02_memory_waste", "--out", "."], "out is .; it must be a new or empty folder"),
        (["make", "02_memory_waste", "--out", "new", "--draw", "0"], "draw is 0; it must be 1"),
        (["make", "02_memory_waste", "--out", "new", "--seconds", "0"], "seconds is 0"),
        (["grade", "--key", "none.json", "x.ipynb"], "none.json"),
    ],
)
def test_bad_arguments_are_named_and_nothing_is_written(
    words: list[str], message: str, tmp_path, capsys, monkeypatch
) -> None:
    (tmp_path / "mine.txt").write_text("here first", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_grade_prints_and_writes_the_points(tmp_path, capsys) -> None:
    out = tmp_path / "course"
    main(["make", "02_memory_waste", "--out", str(out), "--draw", "5"])
    notebook = nbformat.read(out / "student" / "02_memory_waste.ipynb", as_version=4)
    first, *rest = exercises_of("02_memory_waste")
    (cell,) = (cell for cell in notebook.cells if cell.source == first.stub)
    cell.source = first.source
    nbformat.write(notebook, tmp_path / "ada.ipynb")
    key, points = str(out / "instructor" / "key.json"), tmp_path / "points.csv"
    words = ["grade", "--key", key, "--csv", str(points), str(tmp_path / "ada.ipynb")]
    assert main(words) == 0
    assert f"ada.ipynb: 10 of {10 + 10 * len(rest)} points" in capsys.readouterr().out
    rows = points.read_text(encoding="utf-8").splitlines()
    assert len(rows) == 2 + len(rest)
    assert rows[1] == f"{tmp_path / 'ada.ipynb'},02_memory_waste,{first.name},10.0,10.0,,"
