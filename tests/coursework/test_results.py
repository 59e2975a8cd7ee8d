"""What a lecturer gets of a class: points, a summary, feedback, JUnit; and a run that goes on."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pa_tutorial.checks.showing import CaseResult
from pa_tutorial.coursework import __main__ as command
from pa_tutorial.coursework.__main__ import main
from pa_tutorial.coursework.apart import Apart, Ran
from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.coursework.grades import Grade, TaskGrade, from_data, graded
from pa_tutorial.coursework.results import JOURNAL, Results, feedback
from pa_tutorial.coursework.submissions import Submission

NAME = "05_online_softmax"
ONE = assignment(NAME)


def case(name: str, why: str = "") -> CaseResult:
    return CaseResult(name, "what it isolates", "the usual reason", not why, 0, 0, why)


def grade_of(student: str, *whys: str, **words: object) -> Grade:
    """Two tasks; each reason is that of a case of the second."""
    right = TaskGrade("add_token", 10, (case("one"), case("two")), 3, "add_token: right", True)
    cases = tuple(case(f"case_{number}", why) for number, why in enumerate(whys or ("", "")))
    wrong = "out" if any(whys) else ""
    verdict = "merge: not yet; ```" if wrong else "merge: right"
    task = TaskGrade("merge", 10, cases, 5, verdict, not wrong, wrong)
    return Grade(student, "mine.ipynb", (right, task), **words)


ADA, BOB = grade_of("a/b"), grade_of("a:b", "", "q is wrong", "q is wrong", "k\nis wrong")
KING = grade_of("=王\x01", "", "\ud800 <&", odd="_getframe", errors=("-x", "y"))
NOTHING = tuple(TaskGrade(name, 10, (case("one", "no file"),)) for name in ("add_token", "merge"))
EVE = Grade("..", "", NOTHING, "no file")
CLASS = (ADA, BOB, KING, EVE, replace(BOB, student="A b"))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a lecturer gets of the class."""
    results = Results(tmp_path_factory.mktemp("class") / "grades", NAME, 7)
    for grade in CLASS:
        results.add(grade.student, grade)
    assert results.finish([grade.student for grade in CLASS]) == [*CLASS]
    return results.out


def test_points_are_one_row_per_student_for_a_spreadsheet(out: Path) -> None:
    rows = (out / "points.csv").read_text(encoding="utf-8-sig").splitlines()
    assert rows[0] == "student,add_token,merge,total,out of,by hand,file,problem,look at"
    assert rows[2:5] == [
        "a:b,10.0,2.5,12.5,20,,mine.ipynb,,",
        "'=王\x01,10.0,5.0,15.0,20,,mine.ipynb,'-x; y,_getframe",
        "..,,,,20,,,no file,",
    ]


def test_feedback_has_the_notebooks_words_once_and_safe_and_two_names_are_two_files(out) -> None:
    texts = {path.name: path.read_text("utf-8") for path in (out / "feedback").iterdir()}
    assert texts.keys() == {"a_b.md", "a_b_2.md", "=王\x01.md", "._.md", "A_b_3.md"}
    text = texts["a_b_2.md"]
    assert text.startswith("# a:b: 12.5 of 20 points\n")
    assert "| `merge` | 2.5 of 10 | 1 of 4 |" in text
    assert "cell [5]" in text
    assert "\n\n````text\nmerge: not yet; ```\n````" in text
    assert "`case_1`, `case_2`, `case_3`" in text
    assert "q is wrong" not in text  # the notebook says what is wrong
    assert "## `add_token`" not in text
    assert "no file" in texts["._.md"]


def test_feedback_says_once_what_only_other_numbers_show() -> None:
    task = replace(BOB.tasks[1], said="right", right=True)
    text = feedback(Grade("Bob", "", (task,)), NAME, 7)
    assert "case_1, case_2: q is wrong\ncase_3: k\nis wrong" in text


def test_the_summary_has_the_distribution_and_the_most_frequent_mistakes(out: Path) -> None:
    text = (out / "summary.md").read_text(encoding="utf-8")
    assert "not graded: ..: no file" in text
    assert "to look at: =王\x01: _getframe" in text
    assert "4 graded, of 20 points: mean 15.0, median 13.75." in text
    assert "| 12 | 2 | ██ |" in text
    assert "| 18 | 1 | █ |" in text
    assert "| `merge` | 5.0 of 10 | 1 | 0 |" in text
    assert "| 3 | `merge` | out in case_1: the usual reason |" in text


def test_junit_has_a_test_per_case_and_only_what_xml_has(out: Path) -> None:
    ada, _, king, *_ = ElementTree.parse(out / "junit.xml").getroot()
    assert (ada.get("name"), ada.get("tests"), ada.get("failures")) == ("a/b", "4", "0")
    assert (king.get("name"), king.get("failures")) == ("=王?", "1")
    assert [failure.text for failure in king.iter("failure")] == ["? <&"]


def test_a_grade_comes_back_from_the_journal_as_it_was() -> None:
    assert from_data(json.loads(json.dumps(asdict(BOB)))) == BOB


def run_of(monkeypatch: pytest.MonkeyPatch, ends: str = "") -> list[str]:
    """Whom a run grades from now on; none really runs, at the one who `ends` it is over, and eve
    can't be graded."""
    seen: list[str] = []

    def run(self: Apart, one: Submission, *_: object) -> Ran:
        if one.student == ends:
            raise KeyboardInterrupt
        if one.student == "eve":
            raise OverflowError("too much")
        seen.append(one.student)
        return Ran(done=True)

    monkeypatch.setattr(Apart, "run", run)
    return seen


def test_an_interrupted_run_goes_on_and_a_finished_one_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for name in ("ada/answers.py", "bob/answers.py", "eve/answers.py"):
        (tmp_path / "class" / name).parent.mkdir(parents=True)
        (tmp_path / "class" / name).write_text("x = 1\n", encoding="utf-8")
    out = tmp_path / "grades"
    words = ["grade", NAME, str(tmp_path / "class"), "--out", str(out)]
    assert run_of(monkeypatch, ends="bob") == []
    assert main(words) == command.INTERRUPTED
    assert [path.name for path in out.iterdir()] == [JOURNAL]
    with (out / JOURNAL).open("a", encoding="utf-8") as file:
        file.write('\n{"digest": "cut o')
    assert main([*words, "--draw", "5"]) == command.WRONG_COMMAND
    assert "draw is 5" in capsys.readouterr().err
    seen = run_of(monkeypatch)
    assert main(words) == command.SOME_NOT
    assert seen == ["bob"]
    printed = capsys.readouterr()
    assert "1 of 3 were graded before." in printed.out
    assert re.search(r"Not graded:\n  eve: .*OverflowError\('too much'\)", printed.err)
    assert {path.name for path in (out / "feedback").iterdir()} == {"ada.md", "bob.md", "eve.md"}
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert main(words) == command.WRONG_COMMAND
    assert "finished run" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_what_points_to_our_answers_is_named_for_the_lecturer() -> None:
    cell = "from pa_tutorial.exercises.pages import merge\nimport sys\nsys._getframe(1)"
    one = Submission("ada", "a.ipynb", (cell, None))
    assert one.odd == "pa_tutorial.exercises.pages _getframe"
    assert graded(one, Ran(), ONE, 7).odd == one.odd
