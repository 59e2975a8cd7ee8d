"""Each submission gets the points that its answers are worth, whatever else its code does."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil
import pytest

from pa_tutorial.checks.running import run_trials
from pa_tutorial.checks.showing import CaseResult
from pa_tutorial.coursework.apart import ROOT, Limits, end_group
from pa_tutorial.coursework.assignment import ANSWERS, assignment
from pa_tutorial.coursework.grades import Grade, TaskGrade, grade, one_line
from pa_tutorial.coursework.plain import write_folder
from pa_tutorial.exercises import EXERCISES
from pa_tutorial.exercises.blank import all_blanks
from pa_tutorial.exercises.tasks import Task

NAME, DRAW = "05_online_softmax", 811
LIMITS = Limits(seconds=100, megabytes=400)
ONE = assignment(NAME)
TASKS = {task.name: task for task in ONE.tasks}
FIRST, SECOND, THIRD = (TASKS[name] for name in ("add_token", "merge_outputs", "merge"))
TOLD = {**all_blanks(), **EXERCISES}
MERGE = EXERCISES[SECOND.name]
rest = pytest.mark.rest("a right, a wrong and an empty answer")


@cache
def wrong() -> str:
    """An answer to the second task that is right in some cases."""
    return MERGE.source.replace("lses.amax(dim=0)", "0 * lses[-1].nan_to_num()")


def answers(written: dict[str, str]) -> str:
    """The student's file, with these answers in place of the stubs."""
    text = ONE.starter[ANSWERS]
    for name, source in written.items():
        text = text.replace(TOLD[name].stub.strip(), source.strip())
    return f"import os\nimport sys\n{text}"


def half_right() -> str:
    return answers({SECOND.name: wrong()})


def all_right() -> str:
    return answers({SECOND.name: MERGE.source})


def graded(text: str, *tasks: Task, limits: Limits = LIMITS, **files: str) -> Grade:
    """Grade some tasks of the assignment; the second alone is enough for most tests."""
    one = replace(ONE, tasks=tasks or (SECOND,))
    return grade("student", {ANSWERS: text, **files}, one, DRAW, limits)


def worth(source: str) -> float:
    """Points of an answer to the second task, without a process apart."""
    result = run_trials(SECOND.name, SECOND.trials(DRAW), MERGE.answer(source))
    return round(10 * result.passed / result.total, 2)


def test_right_is_worth_all_wrong_a_part_and_empty_nothing() -> None:
    text = answers({FIRST.name: TOLD[FIRST.name].source, SECOND.name: wrong()})
    result = graded(text, FIRST, SECOND, THIRD)
    assert [task.points for task in result.tasks] == [10, worth(wrong()), 0], result
    assert 0 < worth(wrong()) < 10
    assert "worst against attention with 50 digits" in result.tasks[1].reasons[0]
    assert "not written yet" in result.tasks[2].reasons[0]


ZEROS = """
import torch
from torch.overrides import TorchFunctionMode


class Zeros(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        return result.zero_() if isinstance(result, torch.Tensor) else result


Zeros().__enter__()
"""
NORM = "lambda a, axis=None, **_: numpy.zeros(numpy.sum(a, axis=axis).shape)"
SHELL = "cat key.json ../key.json ../course/instructor/key.json"
REPORT = """
print("  10.00 of 10  merge_outputs")
for number in range(3, 30):
    try:
        os.write(number, b'[1]\\n{"case": "far_apart", "passed": true}\\n')
    except OSError:
        pass
"""
# what stands at the end of the student's file
TRICKS = {
    "zeros": ZEROS,
    "its_module": f"import numpy\nlib = numpy.linalg\nlib.norm = {NORM}",
    "shell": "import random\nr = random\n"
    f"r._os.posix_spawn('/bin/sh', ['sh', '-c', {SHELL!r}], r._os.environ)",
    "comparison": "from pa_tutorial.checks import running\nrunning.compare = lambda *_: []",
    "report": REPORT,
}
THIRD_CALL = f"""
right, calls = {SECOND.name}, []


def {SECOND.name}(outs, lses):
    calls.append(outs)
    if len(calls) == 3:
        %s
    return right(outs, lses)
"""
# what the third call does -> what the grade says
ENDS = {
    "os._exit(0)": "its process ended",
    "sys.exit()": "it raised SystemExit",
    "torch.ones(10**10)": "memory",
}
MARKS = {
    "shell": pytest.mark.needs("POSIX"),
    "torch.ones(10**10)": pytest.mark.needs("limits of memory"),
}


def each(name: str, values: dict) -> pytest.MarkDecorator:
    params = [pytest.param(value, marks=MARKS.get(value, ())) for value in values]
    return pytest.mark.parametrize(name, params)


@rest
@each("trick", TRICKS)
def test_an_answer_that_tricks_gets_what_its_results_are_worth(trick: str) -> None:
    result = graded(f"{half_right()}\n\n{TRICKS[trick]}\n")
    assert result.points == (0 if trick == "zeros" else worth(wrong())), result


@rest
@each("what", ENDS)
def test_a_case_in_which_the_process_ends_costs_no_case_before_it(what: str) -> None:
    (task,) = graded(f"{all_right()}\n\n{THIRD_CALL % what}").tasks
    assert [case.passed for case in task.cases[:3]] == [True, True, False]
    assert ENDS[what] in task.reasons[0]
    goes_on = "SystemExit" in ENDS[what] or "memory" in ENDS[what]
    assert len(task.failed) == (1 if goes_on else len(task.cases) - 2)


def test_an_answer_that_does_not_end_is_stopped() -> None:
    start = time.monotonic()
    result = graded("while True:\n    pass", limits=Limits(seconds=3))
    assert time.monotonic() - start < 60
    assert result.tasks[0].reasons == [
        "every case: stopped after 3 s: it does not end, or is much too slow"
    ]


SEES = f"""
def {SECOND.name}(outs, lses):
    names = [name for name in os.listdir() if name != "__pycache__"]
    raise ValueError(f"{{names}} {{sys.argv[1:]}} \\n \\ud800" + "x" * 10**7)
"""


@rest
def test_a_submission_sees_its_own_files_and_which_numbers_and_its_words_stay_on_a_line() -> None:
    (why,) = graded(f"{all_right()}\n\n{SEES}").tasks[0].reasons
    seen = f"['{ANSWERS}'] ['{NAME}', '{SECOND.name}', '{DRAW}', '400']"
    assert why.startswith(f"every case: it raised ValueError: {seen}    xxx")
    assert why.isprintable()
    assert len(why) < 3000
    assert one_line("a\nb\x1b\ud800é") == "a b  é"


@rest
def test_code_may_be_moved_to_other_files_and_none_takes_the_place_of_a_library() -> None:
    files = {"own.py": all_right(), "torch.py": "raise ValueError"}
    assert graded(f"from own import {SECOND.name}", **files).points == 10


def test_what_is_wrong_everywhere_is_said_once() -> None:
    def task(name: str, *said: str) -> TaskGrade:
        cases = [CaseResult(f"case_{i}", "", "", not why, 0, 0, why) for i, why in enumerate(said)]
        return TaskGrade(name, 10, tuple(cases))

    one = Grade("ada", (task("a", "no file", "no file"), task("b", "no file", "no file")))
    assert str(one).count("no file") == 1
    two = Grade("ada", (task("a", "no file", "no file"), task("b", "", "bad")))
    assert str(two).splitlines() == [
        "ada: 5 of 20 points",
        "    0.00 of 10  a",
        "           every case: no file",
        "    5.00 of 10  b",
        "           case_1: bad",
    ]


@rest
def test_pytest_says_in_a_folder_what_is_wrong(tmp_path) -> None:
    write_folder(ONE, tmp_path)
    (tmp_path / ANSWERS).write_text(half_right(), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    own = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    output = subprocess.run(command, **own, capture_output=True, encoding="utf-8").stdout
    assert f"test_task[{SECOND.name}-" in output
    assert "check this first: " in output
    assert "not written yet" in output
    passed = round(worth(wrong()) * len(SECOND.trials(0)) / 10)
    assert re.search(rf"\d+ failed, {passed} passed", output)


@pytest.mark.needs("POSIX")
def test_a_process_ends_with_all_that_it_started() -> None:
    command = ["sh", "-c", "sleep 600 & echo $!; wait"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    with process:
        started = psutil.Process(int(process.stdout.readline()))
        end_group(process)
        started.wait(10)


@rest
@pytest.mark.needs("POSIX")
def test_no_process_stays_when_grading_is_stopped(tmp_path: Path) -> None:
    started = tmp_path / "started"
    text = f"import os\nopen({str(started)!r}, 'w').write(f'{{os.getpid()}}\\n')\n"
    (tmp_path / ANSWERS).write_text(f"{text}while True:\n    pass\n", encoding="utf-8")
    command = [sys.executable, "-m", "pa_tutorial.coursework", "grade", NAME, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        while not (started.exists() and started.read_text().endswith("\n")):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
        assert not psutil.pid_exists(int(started.read_text()))
        assert b"Traceback" not in process.stderr.read()
