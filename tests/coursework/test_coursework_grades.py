"""Each submission gets the points that its answers are worth, whatever else its code does."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
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

NAME, DRAW = "05_online_softmax", 811
LIMITS = Limits(seconds=100, megabytes=400)
FIRST, SECOND, THIRD = assignment(NAME).tasks
MERGE = EXERCISES[SECOND.name]
WRONG = MERGE.wrong_source(MERGE.wrong[0])  # it is right in some cases
IMPORTS = "import math\nimport os\nimport sys\nimport torch\n"


def graded(text: str, *tasks: object, limits: Limits = LIMITS, **files: str) -> Grade:
    """Of some tasks of the assignment; a second is all that most tests need."""
    one = replace(assignment(NAME), tasks=tasks or (SECOND,))
    return grade("student", {ANSWERS: IMPORTS + text, **files}, one, DRAW, limits)


def worth(source: str) -> float:
    """Points of an answer to the second task, without a process apart."""
    result = run_trials(SECOND.name, SECOND.trials(DRAW), MERGE.answer(source))
    return round(10 * result.passed / result.total, 2)


def test_right_is_worth_all_wrong_a_part_and_empty_nothing() -> None:
    right, empty = EXERCISES[FIRST.name].source, EXERCISES[THIRD.name].stub
    texts = ["from typing import *\nfrom torch import Tensor", right, WRONG, empty]
    result = graded("\n\n".join(texts).replace("Sequence[", "Iterable["), FIRST, SECOND, THIRD)
    assert [task.points for task in result.tasks] == [10, worth(WRONG), 0], result
    assert 0 < worth(WRONG) < 10
    assert result.tasks[1].failed
    assert "worst against attention over all tokens" in result.tasks[1].reasons[0]
    assert "not written yet" in result.tasks[2].reasons[0]


ZEROS = """
from torch.overrides import TorchFunctionMode


class Zeros(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        return result.zero_() if isinstance(result, torch.Tensor) else result


Zeros().__enter__()
"""
NORM = "lambda a, axis=None, **_: numpy.zeros(numpy.sum(a, axis=axis).shape)"
SHELL = "cat key.json ../key.json ../course/instructor/key.json"
TRICKS = {
    "zeros": (ZEROS, 0),  # so are its results
    "norm": (f"import numpy\nn = numpy\nn.linalg.norm = {NORM}\n", worth(WRONG)),
    "its_module": (f"import numpy\nlib = numpy.linalg\nlib.norm = {NORM}\n", worth(WRONG)),
    "shell": (
        "import random\nr = random\n"
        f"r._os.posix_spawn('/bin/sh', ['sh', '-c', {SHELL!r}], r._os.environ)\n",
        worth(WRONG),
    ),
    "comparison": (
        "from pa_tutorial.checks import running\nrunning.compare = lambda *_: []\n",
        worth(WRONG),
    ),
    "points": (
        "print('  10.00 of 10  merge_parts')\n"
        "for number in range(3, 30):\n"
        "    try:\n"
        '        os.write(number, b\'[1]\\n{"case": "far_apart", "passed": true}\\n\')\n'
        "    except OSError:\n"
        "        pass\n",
        worth(WRONG),
    ),
    "torch": ("torch.set_default_dtype(torch.float16)\n", worth(WRONG)),
}
TWICE = "CALLS = []\n" + MERGE.source.replace("m = max(", "CALLS.append(1)\n    {}\n    m = max(")
ENDS = {
    "exits": TWICE.replace("{}", "len(CALLS) > 2 and os._exit(0)"),
    "exits_in_python": TWICE.replace("{}", "len(CALLS) > 2 and sys.exit()"),
    "kills": TWICE.replace("{}", "len(CALLS) > 2 and os.kill(0, 9)"),
    "memory": TWICE.replace("{}", "len(CALLS) > 2 and torch.ones(10**10)"),
}
SAID = {"exits": "its process ended", "kills": "its process ended", "memory": "memory"}


@pytest.mark.parametrize("trick", TRICKS)
def test_an_answer_that_tricks_gets_what_its_results_are_worth(trick: str) -> None:
    text, points = TRICKS[trick]
    result = graded(f"from collections.abc import Sequence\n{text}\n\n{WRONG}")
    assert result.points == points, result


@pytest.mark.needs("limits of memory")
@pytest.mark.parametrize("how", ENDS)
def test_what_ran_before_an_answer_ends_its_process_counts(how: str) -> None:
    result = graded(f"from collections.abc import Sequence\n{ENDS[how]}")
    assert result.points == round(10 * 2 / len(SECOND.trials(DRAW)), 2), result
    assert SAID.get(how, "it raised SystemExit") in result.tasks[0].reasons[0]


def test_an_answer_that_does_not_end_is_stopped() -> None:
    start = time.monotonic()
    result = graded("while True:\n    pass", limits=Limits(seconds=3))
    assert time.monotonic() - start < 60
    assert result.tasks[0].reasons == [
        "every case: stopped after 3 s: it does not end, or is much too slow"
    ]


SEES = f"""
def {SECOND.name}(parts):
    raise ValueError(f"{{[n for n in os.listdir() if n[0] != '_']}} {{sys.argv[1:]}} \\n \\ud800" + "x" * 10**7)
"""


def test_a_submission_sees_its_own_files_and_which_numbers_and_its_words_stay_on_a_line() -> None:
    (why,) = graded(SEES).tasks[0].reasons
    seen = f"['{ANSWERS}'] ['{NAME}', '{SECOND.name}', '{DRAW}', '400']"
    assert why.startswith(f"every case: it raised ValueError: {seen}    xxx")
    assert why.isprintable()
    assert len(why) < 3000
    assert one_line("a\nb\x1b\ud800é") == "a b  é"


def test_code_may_be_moved_to_other_files_and_none_takes_the_place_of_a_library() -> None:
    moved = {"own.py": f"import math\nfrom collections.abc import Sequence\n\n\n{MERGE.source}"}
    own = graded(f"from own import {SECOND.name}", **moved, **{"torch.py": "raise ValueError"})
    assert own.points == 10
    (why,) = graded(f"{SECOND.name} = None").tasks[0].reasons
    assert why == f"every case: {ANSWERS} has no function {SECOND.name}"


def test_what_is_wrong_everywhere_is_said_once() -> None:
    def task(name: str, *said: str) -> TaskGrade:
        cases = [CaseResult(f"case_{i}", "", "", not why, 0, 0, why) for i, why in enumerate(said)]
        return TaskGrade(name, 10, tuple(cases))

    one = Grade("ada", NAME, (task("a", "no file", "no file"), task("b", "no file", "no file")))
    assert str(one).count("no file") == 1
    two = Grade("ada", NAME, (task("a", "no file", "no file"), task("b", "", "bad")))
    assert str(two).splitlines() == [
        "ada: 5 of 20 points",
        "    0.00 of 10  a",
        "           every case: no file",
        "    5.00 of 10  b",
        "           case_1: bad",
    ]


def test_pytest_says_in_a_folder_what_is_wrong(tmp_path) -> None:
    write_folder(assignment(NAME), tmp_path)
    answers = tmp_path / ANSWERS
    text = answers.read_text(encoding="utf-8")
    answers.write_text(text.replace(MERGE.stub, WRONG), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    own = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    output = subprocess.run(command, **own, capture_output=True, encoding="utf-8").stdout
    assert f"test_task[{SECOND.name}-" in output
    assert "this case usually fails because" in output
    assert "not written yet" in output
    passed = round(worth(WRONG) * len(SECOND.trials(0)) / 10)
    assert re.search(rf"\d+ failed, {passed} passed", output)


@pytest.mark.needs("POSIX")
def test_a_process_ends_with_all_that_it_started() -> None:
    command = ["sh", "-c", "sleep 600 & echo $!; wait"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    with process:
        started = psutil.Process(int(process.stdout.readline()))
        end_group(process)
        started.wait(10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.needs("POSIX")
def test_no_process_stays_when_grading_is_stopped(number: int, tmp_path: Path) -> None:
    (tmp_path / ANSWERS).write_text("while True:\n    pass\n", encoding="utf-8")
    command = [sys.executable, "-m", "pa_tutorial.coursework", "grade", NAME, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        while not (child := [c for c in psutil.Process(process.pid).children() if is_ours(c)]):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(30) in (130, 143)
        assert not any(one.is_running() for one in child)
        assert b"Traceback" not in process.stderr.read()


def is_ours(process: psutil.Process) -> bool:
    """Not one that an import has started, for a moment."""
    with contextlib.suppress(psutil.Error):  # it has ended since
        return "pa_tutorial.coursework.child" in process.cmdline()
    return False
