"""Grade submissions: each task in a process of its own, with limits, on numbers nobody has seen."""

import json
import os
import queue
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import pa_tutorial
from pa_tutorial.bench.machine import end_group
from pa_tutorial.coursework.assignment import Assignment, Task, is_as_handed_out
from pa_tutorial.coursework.guard import objection, own_modules
from pa_tutorial.coursework.limits import Limits

ROOT = Path(pa_tutorial.__file__).parent.parent
END_SECONDS = 5.0
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
        reasons += [f"{', '.join(cases)}: {why}" for why, cases in same.items()]
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
    unwritten = [t.name for t in assignment.tasks if is_as_handed_out(t, assignment, files)]
    told = {name: Told(note="not written yet") for name in unwritten}
    rest = [task.name for task in assignment.tasks if task.name not in unwritten]
    if why := objection_to(files):
        told |= {name: Told(note=why) for name in rest}
    else:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                (Path(folder) / name).write_bytes(text.encode())
            told |= run_tasks(folder, assignment.name, rest, draw, limits)
    tasks = tuple(grade_task(task, draw, told[task.name]) for task in assignment.tasks)
    return Grade(submission, assignment.name, tasks)


def objection_to(files: Mapping[str, str]) -> str:
    """Why these files are not run; "" if nothing is wrong with them."""
    own = own_modules(files)
    found = ((name, objection(text, own)) for name, text in files.items())
    return next((f"{name}: {why}" for name, why in found if why), "")


@dataclass
class Told:
    """What a process said of one task: case -> its words; and what kept the rest from running."""

    cases: dict[str, dict] = field(default_factory=dict)
    note: str = ""


def grade_task(task: Task, draw: int, told: Told) -> TaskGrade:
    """Only what was said of cases that there are counts, each once."""
    names = [trial.name for trial in task.trials(draw)]
    passed = tuple(name for name in names if told.cases.get(name, {}).get("passed") is True)
    failed = {n: told.cases.get(n, {}).get("diagnosis", "") for n in names if n not in passed}
    return TaskGrade(task.name, task.points, passed, failed, told.note)


def run_tasks(
    folder: str, assignment: str, tasks: list[str], draw: int, limits: Limits
) -> dict[str, Told]:
    """Every task; where one does not end, or ends the process, the others get a new process."""
    left, told = tasks, {name: Told() for name in tasks}
    while left:
        order = {
            "folder": folder,
            "assignment": assignment,
            "tasks": left,
            "draw": draw,
            "megabytes": limits.megabytes,
            "token": secrets.token_hex(16),
        }
        num_ended = run_child(order, limits.seconds, told)
        left = left[num_ended + 1 :]  # the next one is what ended it
    return told


def run_child(order: dict, seconds: float, told: dict[str, Told]) -> int:
    """Run a process until it ends or a task takes too long; the number of tasks that ended."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "pa_tutorial.coursework.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=order["folder"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=read_lines, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        process.stdin.write(json.dumps(order))
        process.stdin.close()
        return listen(order, lines, START_SECONDS, seconds, told)
    finally:
        end_group(process)
        process.wait()
        reader.join(END_SECONDS)
        if not reader.is_alive():  # it is, if something that left the group has the channel
            process.stdout.close()


def read_lines(stream: TextIO, lines: queue.Queue) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def listen(
    order: dict, lines: queue.Queue, start: float, seconds: float, told: dict[str, Told]
) -> int:
    """Take down what the process says. `start` seconds until the first task, `seconds` for each."""
    tasks, num_ended = order["tasks"], 0
    deadline = time.monotonic() + start
    while num_ended < len(tasks):
        task = told[tasks[num_ended]]
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            task.note = f"stopped after {seconds:g} s: it does not end, or is much too slow"
            return num_ended
        if line is None:
            task.note = "its process ended: by itself, or for lack of memory"
            return num_ended
        if not line.startswith(order["token"]):
            continue
        words = json.loads(line.removeprefix(order["token"]))
        if "begin" in words:
            deadline = time.monotonic() + seconds
        elif "end" in words:
            num_ended += 1
        elif "problem" in words:
            task.note = one_line(words["problem"])
        else:
            words["diagnosis"] = one_line(words["diagnosis"])
            task.cases[words["case"]] = words
    return num_ended


def one_line(text: str) -> str:
    """Words of a student's, as they can be shown: they are no lines of ours, and steer nothing."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
