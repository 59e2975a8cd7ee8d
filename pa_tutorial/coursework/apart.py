"""Run a submission in a separate process, and collect its results: data, no verdict."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pa_tutorial
from pa_tutorial.arguments import require
from pa_tutorial.coursework.child import FILE_MEGABYTES, MEGABYTE

ROOT = Path(pa_tutorial.__file__).parent.parent
Said = Mapping[str, Mapping[str, Any]]  # name of a case -> `arrays`, or a `problem`


@dataclass(frozen=True)
class Limits:
    """Limits for one task of one submission.

    seconds    for its process, from start to end
    megabytes  of memory beyond what the process has before it loads the answer; Linux only
    """

    seconds: float = 120.0
    megabytes: int = 2048

    def __post_init__(self) -> None:
        require(self.seconds > 0, "seconds", self.seconds, "more than 0")
        require(self.megabytes >= 1, "megabytes", self.megabytes, "at least 1")


def run_apart(
    files: Mapping[str, str], assignment: str, task: str, draw: int, limits: Limits
) -> tuple[Said, str]:
    """Run the files of one submission in a new folder and a new process.

    files    name -> text
    draw     which numbers the cases have
    returns  what the process reported for each case that ran, and why the others didn't run

    The process gets the name of its task and the draw, and nothing else that affects the grade.
    """
    command = [sys.executable, "-P", "-m", "pa_tutorial.coursework.child"]
    command += [assignment, task, str(draw), str(limits.megabytes)]
    with (
        tempfile.TemporaryFile() as report,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    ):
        for name, text in files.items():
            (Path(folder) / name).write_bytes(text.encode(errors="replace"))
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=report,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        ended = "not run: its process ended earlier, on its own or out of memory"
        try:
            process.wait(limits.seconds)
        except subprocess.TimeoutExpired:
            ended = f"stopped after {limits.seconds:g} s: it does not end, or is much too slow"
        finally:
            end_group(process)
        return read_report(report, ended)


def end_group(process: subprocess.Popen) -> None:
    """End a process and all it started; only the process on Windows, which has no groups."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def read_report(report: BinaryIO, ended: str) -> tuple[Said, str]:
    """Ignore lines that aren't ours, because the student's code can write to the report too."""
    report.seek(0)
    cases: dict[str, Mapping[str, Any]] = {}
    for line in report.read(FILE_MEGABYTES * MEGABYTE).splitlines():
        with suppress(ValueError, RecursionError):
            words = json.loads(line)
            if isinstance(words, dict) and isinstance(words.get("case"), str):
                cases[words["case"]] = words
            elif isinstance(words, dict) and "problem" in words:
                ended = str(words["problem"])
    return cases, ended
