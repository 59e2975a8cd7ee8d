"""Submissions are found however a platform, a browser or a student has packed them."""

import io
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from pa_tutorial.coursework.assignment import ANSWERS, SLIDING_WINDOW, assignment
from pa_tutorial.coursework.handed_in import MOST_BYTES
from pa_tutorial.coursework.submissions import Submission, find_submissions

NAME = "05_online_softmax"
ONE = assignment(NAME)
BOOK = nbformat.writes(new_notebook(cells=[new_code_cell("x = 1")]))
EMPTY = nbformat.writes(new_notebook(cells=[new_markdown_cell("x = 1"), new_code_cell(" ")]))
Files = Mapping[str, str | bytes]


def zipped(files: Files) -> bytes:
    data = io.BytesIO()
    with ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return data.getvalue()


def written(folder: Path, files: Files) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def found(*paths: Path, name: str = NAME) -> dict[str, Submission]:
    return {one.student: one for one in find_submissions(paths, assignment(name))}


# A class as Moodle (with folders and without), Canvas, Blackboard, a Mac and a lecturer pack it.
CLASS = {
    "Ada Lovelace_12_assignsubmission_file/answers.py": "x",
    "Ada Lovelace_12_assignsubmission_onlinetext/onlinetext.html": "see file",
    "Bob_13_assignsubmission_file_my work.ipynb": BOOK,
    "lovelaceada_12_345_answers-1.py": "x",
    "lovelaceada_12_346_own.py": "y",
    "bob_LATE_13_347_mine.ipynb": BOOK,
    "week5_ada_attempt_2026-11-29-10-00-00_mine.ipynb": BOOK,
    "week5_ada_attempt_2026-11-29-10-00-00.txt": "a receipt",
    "ada.ipynb": BOOK,
    "bob/answers.py": "x",
    "eve.zip": zipped({"a/week 5/e.ipynb": BOOK}),
    "__MACOSX/._ada.ipynb": "",
    ".DS_Store": "",
}
GRADED = {  # the students, and which of their files is graded
    "Ada Lovelace_12": "answers.py",
    "Bob_13": "my work.ipynb",
    "lovelaceada_12": "answers-1.py",
    "bob_LATE_13": "mine.ipynb",
    "week5_ada": "mine.ipynb",
    "ada": "ada.ipynb",
    "bob": "answers.py",
    "eve": "a/week 5/e.ipynb",
}


@pytest.mark.parametrize("inside", [None, "", "class/"], ids=["folder", "zip", "zip of a folder"])
def test_every_student_is_found(inside: str | None, tmp_path: Path) -> None:
    path = tmp_path / "class.zip"
    if inside is None:
        written(path, CLASS)
    else:
        path.write_bytes(zipped({inside + name: text for name, text in CLASS.items()}))
    submissions = found(path)
    assert {name: one.file for name, one in submissions.items()} == GRADED
    assert not [one.problem for one in submissions.values() if one.problem]


def test_a_class_of_one_keeps_the_students_name(tmp_path: Path) -> None:
    written(tmp_path, {"Ada_12_assignsubmission_file_mine.ipynb": BOOK})
    assert {name: one.file for name, one in found(tmp_path).items()} == {"Ada_12": "mine.ipynb"}


# what one student hands in -> the file that is graded, or a piece of the problem
STUDENTS: dict[str, tuple[Files, str]] = {
    "answers": ({ANSWERS: "x", "own.py": "y", "test_tasks.py": "z"}, ANSWERS),
    "a copy": ({"Answers (1).py": "x"}, "Answers (1).py"),
    "a folder too deep": ({"a/b/answers.py": "x"}, "a/b/answers.py"),
    "a starter beside a notebook": ({ANSWERS: ONE.starter[ANSWERS], "a.ipynb": BOOK}, "a.ipynb"),
    "answers beside a notebook": ({ANSWERS: "x", "a.ipynb": BOOK}, ANSWERS),
    "all notebooks": ({"01_kv_cache.ipynb": BOOK, f"{NAME}.ipynb": BOOK}, f"{NAME}.ipynb"),
    "two notebooks": ({"a.ipynb": BOOK, "b.ipynb": BOOK}, "it has 2 notebooks"),
    "nothing": ({}, "nothing was handed in"),
    "no bytes": ({"a.ipynb": ""}, "a.ipynb is empty"),
    "no notebook": ({"a.ipynb": b"\0\1"}, "a.ipynb is not a notebook"),
    "no code": ({"a.ipynb": EMPTY}, "a.ipynb has no code"),
    "a large file": ({"a.ipynb": " " * (MOST_BYTES + 1)}, "more than 8,388,608 bytes"),
    "a name that is too long": ({"a" * 151 + ".txt": "x"}, "too long a name"),
    "a zip of old Windows": ({"a.zip": zipped({"hw\\answers.py": "x"})}, "hw/answers.py"),
    "a zip that leads outside": ({"a.zip": zipped({"/../answers.py": "x"})}, ANSWERS),
    "a zip with an empty name": ({"a.zip": zipped({"//x": "", "b/a.ipynb": BOOK})}, "b/a.ipynb"),
    "a zip in a zip": ({"a.zip": zipped({"b.zip": zipped({ANSWERS: "x"})})}, "b.zip/answers.py"),
    "a broken zip": ({"a.zip": b"PK but not really"}, "it has a.zip"),
}


@pytest.mark.parametrize("what", STUDENTS)
def test_what_a_student_hands_in_is_read_or_named(what: str, tmp_path: Path) -> None:
    files, wanted = STUDENTS[what]
    written(tmp_path / "ada", files).mkdir(exist_ok=True)
    written(tmp_path / "bob", {ANSWERS: "x"})
    one = found(tmp_path)["ada"]
    assert wanted in (one.problem or one.file)
    assert bool(one.problem) != one.file.endswith(wanted)


def test_the_window_takes_no_notebook_and_needs_no_file_twice(tmp_path: Path) -> None:
    written(tmp_path / "ada", {"a.ipynb": BOOK})
    written(tmp_path / "bob", {"v1_window.py": "x", "window-2.py": "y"})
    ada, bob = found(tmp_path, name=SLIDING_WINDOW).values()
    assert "needs v1_window.py or v2_window.py or window.py" in ada.problem
    assert bob.files == {"v1_window.py": b"x", "window.py": b"y"}


def test_two_students_of_one_name_are_two(tmp_path: Path) -> None:
    written(tmp_path, {"a/ada.ipynb": BOOK, "b/ada.ipynb": BOOK})
    assert [*found(tmp_path / "a/ada.ipynb", tmp_path / "b/ada.ipynb")] == ["ada", "ada (2)"]


def test_all_of_a_folder_is_read_but_tests_settings_and_cells_for_one_machine(tmp_path) -> None:
    text = b"\xef\xbb\xbfx = 1\r\n"  # as some editors write it
    beside = {"mylib/__init__.py": b"", "mylib/util.py": text, "zero.json": b"0"}
    cells = [new_code_cell("x = 1", metadata={"tags": ["live"]}), new_code_cell("y = 2")]
    book = nbformat.writes(new_notebook(cells=cells))
    written(tmp_path / "ada" / "work", {"a.ipynb": book, **beside})
    written(tmp_path / "bob", dict.fromkeys((ANSWERS, "test_tasks.py", "conftest.py"), text))
    (tmp_path / "bob" / "folder.py").mkdir()
    ada, bob = find_submissions([tmp_path], ONE)
    assert (ada.files, ada.cells) == (beside, (None, "y = 2"))  # that cell counts
    assert bob.files == {ANSWERS: text}


def test_the_walks_own_notebooks_have_nothing_to_look_at() -> None:
    for path in sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9]*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        one = Submission("ada", cells=tuple(c.source for c in cells if c.cell_type == "code"))
        assert one.odd == "", path
