"""Grade submissions: in processes of their own, with limits, on numbers that nobody has seen."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import pa_tutorial
from pa_tutorial.bench.machine import end_group
from pa_tutorial.coursework.guard import objection, own_modules
from pa_tutorial.coursework.limits import TOO_LATE, Limits
from pa_tutorial.coursework.tasks import Assignment, Task

ROOT = Path(pa_tutorial.__file__).parent.parent
START_SECONDS = 300.0  # to load everything and compute what must come out: no student's code yet


@dataclass(frozen=True)
class TaskGrade:
    """The points for one task, and why there are not more.

    passed  names of the cases that pass; each is worth the same
    failed  name of a case -> what is wrong there
    note    what kept the rest from running; "" if all of it ran
    """

    task: str
    out_of: float
    passed: tuple[str, ...]
    failed: Mapping[str, str]
    note: str = ""

    @property
    def points(self) -> float:
        return round(self.out_of * len(self.passed) / (len(self.passed) + len(self.failed)), 2)

    @property
    def reasons(self) -> list[str]:
        """What is missing, a line each; cases that fail in the same way stand together."""
        same: dict[str, list[str]] = {}
        for case, why in self.failed.items():
            same.setdefault(why, []).append(case)
        not_run = same.pop("", [])
        reasons = [self.note] if self.note else []
        for why, cases in same.items():
            is_all = len(cases) == len(self.passed) + len(self.failed)
            reasons.append(f"{'every case' if is_all else ', '.join(cases)}: {why}")
        return reasons + ([f"not run: {len(not_run)} of its cases"] if not_run else [])


@dataclass(frozen=True)
class Grade:
    """The points for one submission of one assignment."""

    submission: str
    assignment: str
    tasks: tuple[TaskGrade, ...]

    @property
    def points(self) -> float:
        return round(sum(task.points for task in self.tasks), 2)

    @property
    def out_of(self) -> float:
        return sum(task.out_of for task in self.tasks)

    def __str__(self) -> str:
        lines = [f"{self.submission}: {self.points:g} of {self.out_of:g} points"]
        for task in self.tasks:
            lines.append(f"  {task.points:6.2f} of {task.out_of:g}  {task.task}")
            lines += [" " * 11 + line for line in task.reasons]
        return "\n".join(lines)


def grade(
    submission: str, files: Mapping[str, str], assignment: Assignment, draw: int, limits: Limits
) -> Grade:
    """Grade the files of one student. Nothing in them can stop it or change another one's grade.

    files  name -> text: adapters.py, and what it imports. Tests among them are not run.
    draw   see Exercise.trials; a number that students do not know
    """
    names = [task.name for task in assignment.tasks]
    if why := objection_to(files):
        said = {name: [{"problem": why}] for name in names}
    else:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                (Path(folder) / name).write_bytes(text.encode())
            order = {"folder": folder, "assignment": assignment.name, "draw": draw}
            said = run_tasks(order | asdict(limits), names)
    tasks = tuple(grade_task(task, draw, said[task.name]) for task in assignment.tasks)
    return Grade(submission, assignment.name, tasks)


def objection_to(files: Mapping[str, str]) -> str:
    """Why these files are not run; "" if nothing is wrong with them."""
    own = own_modules(files)
    found = ((name, objection(text, own)) for name, text in files.items())
    return next((f"{name}: {why}" for name, why in found if why), "")


def grade_task(task: Task, draw: int, said: list[dict]) -> TaskGrade:
    """Only what was said of cases that there are counts, each once."""
    cases = {words["case"]: words for words in said if "case" in words}
    names = [trial.name for trial in task.trials(draw)]
    passed = tuple(name for name in names if cases.get(name, {}).get("passed") is True)
    failed = {n: cases.get(n, {}).get("diagnosis", "") for n in names if n not in passed}
    failed = {name: one_line(why) for name, why in failed.items()}
    notes = (one_line(words["problem"]) for words in said if "problem" in words)
    return TaskGrade(task.name, task.points, passed, failed, next(notes, ""))


def run_tasks(order: dict, tasks: list[str]) -> dict[str, list[dict]]:
    """What was said of each task. Where one does not end, or ends the process, the others get a
    new process."""
    said: dict[str, list[dict]] = defaultdict(list)
    left = tasks
    while left:
        lines, why = run_child(order | {"tasks": left, "token": secrets.token_hex(16)})
        for words in lines:
            said[words.pop("task")].append(words)
        ended = [name for name in left if {} in said[name]]
        if len(ended) < len(left):  # the next one is what ended it
            said[left[len(ended)]].append({"problem": why})
        left = left[len(ended) + 1 :]
    return said


def run_child(order: dict) -> tuple[list[dict], str]:
    """What a process said, and why it ended, for the case that it ended too soon."""
    with tempfile.TemporaryFile() as report:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pa_tutorial.coursework.child"],
            stdin=subprocess.PIPE,
            stdout=report,
            stderr=subprocess.DEVNULL,
            cwd=order["folder"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            most = START_SECONDS + order["seconds"] * len(order["tasks"])  # it ends itself before
            with suppress(subprocess.TimeoutExpired):
                process.communicate(json.dumps(order).encode(), timeout=most)
            is_late = process.poll() is None
        finally:
            end_group(process)
            process.wait()
        report.seek(0)
        *lines, _ = report.read().decode(errors="replace").split("\n")
    token = order["token"]
    said = [json.loads(line.removeprefix(token)) for line in lines if line.startswith(token)]
    if is_late or any(line.startswith(TOO_LATE) for line in lines):
        return said, f"stopped after {order['seconds']:g} s: it does not end, or is much too slow"
    return said, "its process ended: by itself, or for lack of memory"


def one_line(text: str) -> str:
    """Words of a student's, as they can be shown: they are no lines of ours, and steer nothing."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
