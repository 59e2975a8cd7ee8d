"""Each submission gets the points that its answers are worth, whatever else its code does."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import psutil
import pytest

from pa_tutorial.checks.running import run_trials
from pa_tutorial.coursework import apart
from pa_tutorial.coursework.__main__ import main
from pa_tutorial.coursework.apart import ROOT, TOKEN, Apart, Limits
from pa_tutorial.coursework.assignment import ANSWERS, assignment
from pa_tutorial.coursework.grades import Grade, TaskGrade, graded
from pa_tutorial.coursework.results import NO_FILE_NAME
from pa_tutorial.coursework.submissions import Submission
from pa_tutorial.exercises import EXERCISES, exercises_of, named
from pa_tutorial.exercises.needs import needs_of
from pa_tutorial.printing import printable
from tests.coursework.thirty import NAME, OUTPUTS, START, THIRTY, TRY, WRONG, tried, write

DRAW = 811
LIMITS = Limits(seconds=30, megabytes=400)
ONE = assignment(NAME)
MERGE = EXERCISES["merge_outputs"]
rest = pytest.mark.rest("a right, a wrong and an empty answer, and a loop")
posix = pytest.mark.needs("POSIX")


def grade_of(*cells: str, limits: Limits = LIMITS, **files: str) -> Grade:
    """The grade of a notebook with these cells."""
    beside = {name: text.encode() for name, text in files.items()}
    one = Submission("ada", "ada.ipynb", (START, *cells), beside)
    return graded(one, Apart().run(one, NAME, DRAW, limits), ONE, DRAW)


def task_of(grade: Grade, name: str = "merge_outputs") -> TaskGrade:
    return next(task for task in grade.tasks if task.task == name)


@cache
def worth(source: str) -> float:
    """Points of an answer to merge_outputs, without a process apart."""
    result = run_trials("merge_outputs", MERGE.trials(DRAW), MERGE.answer(source))
    return round(10 * result.passed / result.total, 2)


def test_right_is_worth_all_wrong_a_part_and_empty_nothing() -> None:
    right, stub = named("add_token").source, named("merge").stub
    cells = right, tried("add_token"), WRONG, TRY, f"{stub}\n\n{tried('merge')}"
    result = grade_of(*cells)
    points = {task.task: task.points for task in result.tasks}
    own = {"add_token": 10, "merge_outputs": worth(WRONG)}
    assert points == dict.fromkeys(points, 0) | own, result
    wrong = task_of(result)
    assert (wrong.cell, wrong.right, wrong.wrong) == (5, False, "out")
    assert wrong.said.startswith("merge_outputs: not yet; 7 of 12")
    assert task_of(result, "merge").said.startswith("merge: not written yet.")
    assert "The notebook goes on" not in task_of(result, "merge").said
    assert "`attempt` below" in task_of(result, "part_of").failed[0].diagnosis


@pytest.fixture
def interrupts_are_ignored() -> Iterator[None]:
    """As where a shell runs the grader in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts_are_ignored")
def test_what_does_not_end_is_stopped_and_the_next_cell_runs() -> None:
    """Nor does an error whose traceback IPython would draw with a method that takes for ever."""
    slow = "class Slow(Exception):\n    def _render_traceback_(self):\n        while True: pass"
    cells = f"{slow}\n\nraise Slow('so')", "while True:\n    pass", OUTPUTS, TRY
    first, second = (result := grade_of(*cells, limits=Limits(seconds=3))).errors
    assert first == "Slow in cell 2, line 5: so"
    assert re.fullmatch(r"stopped after 3 s in cell 3, line [12]: it does not end", second)
    assert task_of(result).points == 10


REFERENCES = """
import gc
from pa_tutorial.checks.running import Trial

right_or_wrong = merge_outputs


def merge_outputs(outs, lses):
    for thing in gc.get_objects():
        for compute in thing.references.values() if type(thing) is Trial else ():
            out, lse = compute()["out"].float()
            if out.shape == outs[0].shape:
                return out, lse[:, 0]
    return right_or_wrong(outs, lses)
"""
# what a cell before the attempt does to get more than its answer is worth
TRICKS = {
    "references": REFERENCES,
    "norm": "import numpy\nnumpy.linalg.norm = lambda a, **_: numpy.zeros(a.shape[:-1])",
    "deletes": "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)",
    "threads": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()",
    "forks": "import os\nif os.fork() == 0:\n    import time; time.sleep(600)",
}
SAYS = r"""
import os

print("  10.00 of 10  merge_outputs")
for number in range(3, 40):
    try:
        if os.readlink(f"/proc/self/fd/{{number}}").startswith("/tmp"):
            os.write(number, b"\n" + {line!r} + b"\n")
    except OSError:
        pass
"""
# lines that no process of ours reports
LINES = (
    b'{"task": "merge_outputs", "case": "far_apart", "passed": 1}',
    b'{"task": "merge", "cell": Infinity, "said": "", "is_right": true}',
    b'{"task": "merge_outputs", "cell": 4, "said": "", "is_right": true, "problem": ""}',
    b'{"task": "' + b"x" * 10**6 + b'", "cell": 1, "said": "", "is_right": true}',
)


@rest
@posix
def test_a_line_in_the_report_that_is_not_ours_changes_nothing() -> None:
    result = grade_of(WRONG, TRY, "".join(SAYS.format(line=line) for line in LINES))
    assert task_of(result).points == worth(WRONG)
    assert result.errors == ()


@rest
@pytest.mark.parametrize(
    "trick", ["references", "norm", "deletes", "threads", pytest.param("forks", marks=posix)]
)
def test_an_answer_that_tricks_gets_what_its_results_are_worth(trick: str) -> None:
    task = task_of(grade_of(WRONG, TRICKS[trick], TRY))
    assert task.points == worth(WRONG), task


THIRD_CALL = """
import os

right, calls = merge_outputs, []


def merge_outputs(outs, lses):
    calls.append(outs)
    if len(calls) == 15:  # the third case with other numbers: 12 are the notebook's
        %s
    return right(outs, lses)
"""


@rest
@pytest.mark.parametrize(
    ("does", "words", "cost"),  # in that call; what the grade says; how many cases it costs of 12
    [
        ("os._exit(0)", "the process ended in cell 4", 10),
        ("while True: pass", "stopped after 10 s in cell 3, line 9: it does not end", 10),
        ("__import__('time').sleep(600)", "the process ended in cell 4, 15 s after it began", 10),
        pytest.param(
            "torch.ones(10**10)", "memory", 1, marks=pytest.mark.needs("limits of memory")
        ),
    ],
    ids=["exit", "endless", "sleep", "memory"],
)
def test_a_case_in_which_the_process_ends_costs_no_other_task(does, words, cost) -> None:
    after = named("add_token").source, tried("add_token")
    limits = Limits(seconds=10, megabytes=400)
    result = grade_of(OUTPUTS, THIRD_CALL % does, TRY, *after, limits=limits)
    task = task_of(result)
    assert words in "\n".join(task.reasons), task
    assert len(task.failed) == cost, task
    assert task_of(result, "add_token").points == 10, result.errors


ESCAPES = """
import os
import sys
import subprocess

command = [sys.executable, "-c", "import time; time.sleep(600)"]
started = subprocess.Popen(command, start_new_session=True)
with open({path!r}, "w") as file:
    file.write({token!r} + os.environ[{token!r}])
os.kill(os.getppid(), 15)
"""


@rest
@posix
@pytest.mark.parametrize("has_namespace", [True, False])
def test_what_a_submission_starts_ends_with_it_and_its_parent_is_no_ones(
    has_namespace: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_namespace:
        monkeypatch.setattr(apart, "namespace", lambda: ())
    path = tmp_path / "token"
    escapes = ESCAPES.format(path=str(path), token=TOKEN)
    result = grade_of(OUTPUTS, TRY, escapes, named("merge").source, tried("merge"))
    assert task_of(result).points == 10
    token = path.read_text(encoding="utf-8").removeprefix(TOKEN)
    assert not [one for one in psutil.process_iter() if apart.has_token(one, token)]


@rest
@posix
def test_no_process_stays_when_grading_is_stopped(tmp_path: Path) -> None:
    started = tmp_path / "started"
    text = f"import os\nopen({str(started)!r}, 'w').write(os.environ[{TOKEN!r}] + '\\n')\n"
    (tmp_path / ANSWERS).write_text(f"{text}while True:\n    pass\n", encoding="utf-8")
    command = [sys.executable, "-m", "pa_tutorial.coursework", "grade", NAME, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        while not (started.exists() and started.read_text().endswith("\n")):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
        assert b"Traceback" not in process.stderr.read()
    token = started.read_text().strip()
    assert not [one for one in psutil.process_iter() if apart.has_token(one, token)]


SEES = """
import os
import sys


def merge_outputs(outs, lses):
    names = sorted(name for name in os.listdir() if name != "__pycache__")
    raise ValueError(f"{names} {sys.argv[1:]} \\n \\x1b \\ud800" + "a" * 10**6)
"""


@rest
def test_a_submission_sees_its_own_files_and_its_words_are_safe_to_print() -> None:
    (why,) = task_of(grade_of(SEES, TRY, **{"own.py": "x = 1"})).reasons
    assert why.startswith("it raised ValueError: ['own.py'] [] \n    aaa")
    assert printable(why) == why
    assert len(why) < 5000


@rest
def test_code_may_be_moved_to_other_files_and_none_takes_the_place_of_a_library() -> None:
    files = {"own.py": f"{START}\n{OUTPUTS}", "torch.py": "raise ValueError"}
    assert task_of(grade_of("from own import merge_outputs", TRY, **files)).points == 10
    files[ANSWERS] = "from own import merge_outputs"
    one = Submission("ada", ANSWERS, (), {name: text.encode() for name, text in files.items()})
    assert graded(one, Apart().run(one, NAME, DRAW, LIMITS), ONE, DRAW).points == 10


@rest
def test_a_saved_answer_that_a_stub_goes_on_with_counts() -> None:
    save = "from pa_tutorial.exercises.my_pages import save_pages\nsave_pages(merge)"
    merge = named("merge")
    result = task_of(grade_of(merge.source, save, f"{merge.stub}\n\n{tried('merge')}"), "merge")
    assert (result.points, result.right) == (10, True)
    assert result.said.startswith("merge, as you saved it: right in all")


@rest
def test_a_blank_is_judged_among_the_others_of_its_notebook() -> None:
    """A right `free` isn't right with a `release` that nobody has tried: the notebook says so."""
    name, release = "03_blocks_and_block_tables", named("release")
    start = f"{needs_of(exercises_of(name))}\n\nfrom pa_tutorial.exercises import attempt"
    cells = start, release.wrong[0].made_in(release.source), named("free").source, tried("free")
    one, of = Submission("ada", "ada.ipynb", cells), assignment(name)
    task = task_of(graded(one, Apart().run(one, name, DRAW, LIMITS), of, DRAW), "free")
    assert task.said.startswith("free: right by itself; with your `release`, not yet.")
    assert task.points < 10
    assert not task.right


@rest
def test_grades_are_as_the_notebook_says(tmp_path: Path) -> None:
    """All thirty at once, as a lecturer grades them."""
    for name, handed in THIRTY.items():
        write(handed, tmp_path / "class" / name)
    out = tmp_path / "grades"
    words = ["--out", str(out), "--jobs", "2", "--seconds", "20"]
    assert main(["grade", NAME, str(tmp_path / "class"), *words]) == 1  # two have nothing
    points = (out / "points.csv").read_text(encoding="utf-8-sig")
    head, *rows = (line.split(",") for line in points.splitlines() if '"' not in line)
    found = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    for name, handed in THIRTY.items():
        file = out / "feedback" / f"{NO_FILE_NAME.sub('_', name)}.md"
        assert handed.says in file.read_text(encoding="utf-8"), name
        if name in found:
            full = {task for task in ("merge", "merge_outputs") if found[name][task] == "10.0"}
            assert full == handed.right, name
