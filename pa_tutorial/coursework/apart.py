"""Run a submission in processes of its own, and collect what they report: data, no verdict."""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil

import pa_tutorial
from pa_tutorial.arguments import require
from pa_tutorial.coursework.report import MOST_SIGNS
from pa_tutorial.coursework.submissions import Submission
from pa_tutorial.exercises.saved_files import PLACE

ROOT = Path(pa_tutorial.__file__).parent.parent
TOKEN = "PA_TUTORIAL_SUBMISSION"  # in the environment of whatever a submission starts
# Processes that see and signal only each other, and end together, where Linux permits it.
UNSHARE = "unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child"
# The parent that a submission may end.
KEEPER = sys.executable, "-I", "-c", "import subprocess, sys; subprocess.call(sys.argv[1:])"
CHILD = sys.executable, "-P", "-m", "pa_tutorial.coursework.child"
MOST_REPORTED, MOST_OF_A_NAME = 2**26, 100  # bytes, letters of a task
AT_MOST = 10  # times the limit of a cell, for a whole submission
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@dataclass(frozen=True)
class Limits:
    """Limits for one submission.

    seconds    for each cell, or in a folder for each task; for all together, AT_MOST times that
    megabytes  of memory beyond what the process has before it runs the first; Linux only
    """

    seconds: float = 60.0
    megabytes: int = 2048

    def __post_init__(self) -> None:
        require(self.seconds > 0, "seconds", self.seconds, "more than 0")
        require(self.megabytes >= 1, "megabytes", self.megabytes, "at least 1")


@dataclass
class Answer:
    """What attempt was given for a task: in which cell, its verdict there, and what it returned.

    problem  why no case was tried; "" if some were
    cases    name -> `arrays`, or a `problem`
    """

    cell: int
    said: str
    is_right: bool
    problem: str = ""
    cases: dict[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass
class Ran:
    """What was reported of a submission, and the errors of its cells."""

    answers: dict[str, Answer] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    cell: int = -1
    began: float = 0.0
    done: bool = False

    def read(self, report: bytes, key: str) -> None:
        """Lines without the key aren't ours: the student's code can write there, too."""
        before = dict(self.answers)
        for line in report.splitlines():
            with suppress(Exception):  # whatever is in a line that isn't ours
                words = json.loads(line)
                if words.pop("key") == key:
                    self.take(**words)
        for task, answer in before.items():  # the same again, perhaps not as far
            if self.answers[task].cell == answer.cell:
                self.answers[task] = answer

    def take(self, task: str = "", cell: int | None = None, **words: Any) -> None:
        if task and cell is not None:
            said = str(words["said"])[:MOST_SIGNS]
            self.answers[task[:MOST_OF_A_NAME]] = Answer(int(cell), said, words["is_right"] is True)
        elif "case" in words:
            self.answers[task].cases[str(words["case"])] = words
        elif task:
            self.answers[task].problem = str(words["problem"])[:MOST_SIGNS]
        elif "error" in words:
            self.errors[int(cell)] = str(words["error"])[:MOST_SIGNS]
        elif cell is not None:
            self.cell, self.began = int(cell), float(words["time"])
        self.done = self.done or words.get("done") is True


class Apart:
    """Runs submissions. `stopped` ends all, whichever threads wait for them."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def run(self, one: Submission, assignment: str, draw: int, limits: Limits) -> Ran:
        """Run a submission. A cell that ends its process is left out in another one."""
        ran, skipped = Ran(done=bool(one.problem)), []
        job = {"assignment": assignment, "draw": draw, "cells": one.cells, **vars(limits)}
        job["key"] = secrets.token_hex(16)
        end = time.monotonic() + AT_MOST * limits.seconds
        while not (ran.done or self.stopped.is_set() or time.monotonic() > end):
            ran.read(self.run_once({**job, "skipped": skipped}, one.files, end), job["key"])
            if ran.done or ran.cell in skipped:
                break
            where = f" in cell {ran.cell}" if one.cells else ""
            ended = f"the process ended{where}, {time.time() - ran.began:.0f} s after it began"
            ran.errors.setdefault(ran.cell, ended)
            skipped.append(ran.cell)
        return ran

    def run_once(self, job: Mapping[str, Any], files: Mapping[str, bytes], end: float) -> bytes:
        """What one process reports until it ends, or until `end`."""
        token = secrets.token_hex(16)
        with (
            tempfile.TemporaryFile() as report,
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        ):
            own = Path(folder) / "submission"
            own.mkdir()
            for path, data in files.items():
                (own / path).parent.mkdir(parents=True, exist_ok=True)
                (own / path).write_bytes(data)
            given.write(json.dumps(job).encode())
            given.seek(0)
            process = subprocess.Popen(
                [*namespace(), *KEEPER, *CHILD],
                stdin=given,
                stdout=report,
                stderr=subprocess.DEVNULL,
                cwd=own,
                env={**os.environ, **environment(folder), TOKEN: token},
                start_new_session=True,
            )
            try:
                while not self.stopped.is_set() and (left := end - time.monotonic()) > 0:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(min(left, 0.5))
                        break
            finally:
                end_all(process, token)
            report.seek(0)
            return report.read(MOST_REPORTED)


def environment(folder: str) -> dict[str, str]:
    """No pictures, one thread, and no files of the grader's account: all go to the folder."""
    own = dict.fromkeys(("TMPDIR", "IPYTHONDIR"), folder)
    quiet = {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return {**own, **quiet, PLACE: "my_kernel"}  # beside the notebook


@cache
def namespace() -> tuple[str, ...]:
    """The beginning of a command, if this system permits it."""
    with suppress(OSError):
        if subprocess.call([*UNSHARE, "true"], **QUIET) == 0:
            return UNSHARE
    return ()


def end_all(process: subprocess.Popen, token: str) -> None:
    """End a process and all it started, also what has left its group."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
    while found := [one for one in psutil.process_iter() if has_token(one, token)]:
        for one in found:
            with suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(found, timeout=1)


def has_token(process: psutil.Process, token: str) -> bool:
    with suppress(psutil.Error):
        return process.environ().get(TOKEN) == token
    return False
