"""Each submission gets the points that it is worth, whatever its code does to get more."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pa_tutorial.coursework import grading
from pa_tutorial.coursework.__main__ import main
from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.coursework.child import require_functions
from pa_tutorial.coursework.grading import ROOT, Grade, grade, grade_task, one_line
from pa_tutorial.coursework.plain import MOST_BYTES, files_of_folder, write_folder
from pa_tutorial.walk.calls import AnswerError
from tests.coursework import coursework_students as students
from tests.coursework.coursework_students import (
    DRAW,
    EMPTY,
    FIRST,
    LIMITS,
    NAME,
    RIGHT,
    SECOND,
    THIRD,
    files,
)


def graded(texts: dict[str, str]) -> Grade:
    return grade("student", texts, assignment(NAME), DRAW, LIMITS)


@pytest.mark.parametrize("student", students.STUDENTS)
def test_students_get_what_they_are_worth(student: str) -> None:
    answers, wanted = students.STUDENTS[student]
    result = graded(files(answers))
    for task in result.tasks:
        assert students.is_worth(task.points, wanted[task.task]), result
        assert task.points == task.out_of or task.reasons, "it must say why"
    assert result.points == sum(task.points for task in result.tasks)
    if student == "empty":
        assert "not written yet" in result.tasks[0].reasons[0]
    if student == "never_ending":
        stopped = f"stopped after {LIMITS.seconds:g} s: it does not end, or is much too slow"
        assert result.tasks[1].note == stopped


def second(text: str) -> dict[str, str]:
    """Files that are right, but for the second task."""
    return files({**RIGHT, SECOND: text})


# Trials run our own solution in the place of None.
NO_FUNCTIONS = f"{FIRST} = {THIRD} = lambda: None\n{SECOND} = lambda: (None, None)\n"
FORGED = "    raise ValueError('\\n  10.00 of 10  \\ud800 \\x1b[31m' + 'x' * 10**7)"
OWN = "import math\n\n" + RIGHT[FIRST].replace("Iterator[float]", "object")
MOVED = files(EMPTY)["adapters.py"].replace(f"answers import {FIRST}", f"own import {FIRST}")
HELPING = "import math\nfrom collections.abc import Sequence\n\n\n" + RIGHT[SECOND]
NOT_TORCH = "raise RuntimeError('this is not torch')\n"
HUGE = {
    FIRST: f"def {FIRST}(scores):\n    return [0.0] * 10**9",
    SECOND: f"def {SECOND}(parts):\n    return torch.ones(10**10)",
    THIRD: f"def {THIRD}(outs, lses):\n    return {THIRD}(outs, lses)",
}
FLOOD = "def merge_parts(parts):\n    print('10 of 10 points ' * 10**5)"
ENDS = f"def {SECOND}(parts):\n    import os, sys\n    "
# what is handed in -> its files, the points of its tasks, what the second task's grade says
ODD = {
    "no functions": (
        {**files(RIGHT), "adapters.py": NO_FUNCTIONS},
        [0, 0, 0],
        "it must return the function",
    ),
    # README says that code may be moved.
    "moved": (
        {**files(EMPTY), "adapters.py": MOVED, "own.py": OWN},
        [10, 0, 0],
        "not written",
    ),
    "forged": (second(f"def {SECOND}(parts):\n{FORGED}\n"), [10, 0, 10], "10.00 of 10"),
    "forbidden": (second("import sys\n\n\n" + RIGHT[SECOND]), [0, 0, 0], "answers.py: line ."),
    "helped": (
        {**second(f"from helping import {SECOND}\n"), "helping.py": HELPING, "torch.py": NOT_TORCH},
        [10, 10, 10],
        "",
    ),
    "memory": (files(HUGE), [0, 0, 0], ""),
    "flood": (second(FLOOD), [10, 0, 10], ""),
    # Nothing that the guard lets through does this; without it, the other tasks still count.
    "ends": (second(ENDS + "sys.exit()\n"), [10, 0, 10], ""),
    "ends at once": (second(ENDS + "os._exit(0)\n"), [10, 0, 10], "its process ended"),
    "kills": (second(ENDS + "os.kill(0, 9)\n"), [10, 0, 10], "its process ended"),
}
MARKS = {"memory": [pytest.mark.needs("limits of memory")], "kills": [pytest.mark.needs("POSIX")]}


@pytest.mark.parametrize("what", [pytest.param(one, marks=MARKS.get(one, ())) for one in ODD])
def test_what_an_answer_does_costs_its_own_points_only(what: str, monkeypatch) -> None:
    texts, points, said = ODD[what]
    if "import os, sys" in texts["answers.py"]:
        monkeypatch.setattr(grading, "objection_to", lambda files: "")
    result = graded(texts)
    assert [task.points for task in result.tasks] == points, result
    reasons = "\n".join(result.tasks[1].reasons)
    assert re.search(said, reasons)
    assert all(why.isprintable() and len(why) < 3000 for t in result.tasks for why in t.reasons)
    assert str(result).encode(), "no half of a character is left"


def test_points_are_the_part_of_the_cases_that_pass() -> None:
    """Whoever writes to the report cannot add cases, or count one twice."""
    task = assignment(NAME).tasks[1]
    names = [trial.name for trial in task.trials(DRAW)]
    said = [{"case": name, "passed": True} for name in names[:4]]
    said += [{"case": names[4], "passed": False, "diagnosis": "it is not right"}]
    said += [{"case": "made_up", "passed": True}, {"case": names[5], "passed": 1}]
    result = grade_task(task, DRAW, [*said, {"problem": "it ended"}])
    assert result.points == round(10 * 4 / len(names), 2)
    not_run = f"not run: {len(names) - 5} of its cases"
    assert result.reasons == ["it ended", f"{names[4]}: it is not right", not_run]
    assert one_line("a\nb\x1b\ud800é") == "a b  é"


@pytest.mark.parametrize("answer", [None, (), (len,), (len, None), (None, len)])
def test_a_task_of_two_functions_needs_both(answer: object) -> None:
    task = assignment("sliding_window").task("v2")
    require_functions((len, len), task)
    with pytest.raises(AnswerError, match="it must return"):
        require_functions(answer, task)


def test_files_are_read_as_editors_write_them_without_tests_and_settings(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"has no adapters\.py"):
        files_of_folder(tmp_path)
    for name in ("test_tasks.py", "conftest.py", "adapters.py"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbfdef v1(): ...\r\n")
    (tmp_path / "folder.py").mkdir()
    one, found = files_of_folder(tmp_path)
    assert one.name == "sliding_window"
    assert found == {"adapters.py": "def v1(): ...\n"}
    (tmp_path / "large.py").write_bytes(b" " * (MOST_BYTES + 1))
    with pytest.raises(ValueError, match=r"large\.py has 1,048,577 bytes"):
        files_of_folder(tmp_path)


def hand_in(folder: Path, answers: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files(answers).items():
        (folder / name).write_text(text, encoding="utf-8")


def test_pytest_says_in_a_folder_what_is_wrong_and_grade_what_it_is_worth(tmp_path, capsys) -> None:
    write_folder(assignment(NAME), tmp_path)
    hand_in(tmp_path, students.STUDENTS["wrong"][0])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    own = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    output = subprocess.run(command, **own, capture_output=True, encoding="utf-8").stdout
    assert f"test_task[{FIRST}-" not in output, "it passes"
    for said in (f"test_task[{SECOND}-", "this case usually fails because", "not written yet"):
        assert said in output
    assert main(["grade", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"10.00 of 10  {FIRST}" in printed
    assert f" 0.00 of 10  {THIRD}" in printed


@pytest.mark.needs("POSIX")
def test_files_that_an_answer_writes_stay_small(tmp_path) -> None:
    text = "from pa_tutorial.coursework.limits import FILE_MEGABYTES, limit_files\nlimit_files()\n"
    text += f"open({str(tmp_path / 'x')!r}, 'wb').write(bytes((FILE_MEGABYTES + 1) * 2**20))"
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    assert "File too large" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.needs("POSIX")
def test_no_process_stays_when_grading_is_stopped(number: int, tmp_path) -> None:
    hand_in(tmp_path / NAME, {**RIGHT, FIRST: f"def {FIRST}(s):\n    while True: pass\n"})
    command = [sys.executable, "-m", "pa_tutorial.coursework", "grade", str(tmp_path / NAME)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        while not (child := [c for c in psutil.Process(process.pid).children() if is_checking(c)]):
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(0.5)  # the grader has noted that it started one
        process.send_signal(number)
        assert process.wait(30) in (130, 143)
        assert not any(one.is_running() for one in child)
        assert b"Traceback" not in process.stderr.read()


def is_checking(process: psutil.Process) -> bool:
    """Whether it checks answers; an import may have started another, for a moment."""
    with contextlib.suppress(psutil.Error):  # it has ended since
        return "pa_tutorial.coursework.child" in process.cmdline()
    return False
