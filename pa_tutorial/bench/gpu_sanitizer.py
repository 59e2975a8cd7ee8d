"""compute-sanitizer on the kernels: memory that is not theirs, and races in shared memory.

NVIDIA's tool watches a program of ours, gpu_sanitize. torch is told to take each tensor from the
driver by itself: otherwise a read behind one tensor is a read of the next, and nobody sees it.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from glob import glob
from pathlib import Path

from pa_tutorial.bench.gpu_sanitize import DONE
from pa_tutorial.bench.machine import end_group

# Where NVIDIA's installers put it, for when it is not on PATH.
PLACES = (
    "/usr/local/cuda*/bin/compute-sanitizer",
    "/usr/local/cuda*/compute-sanitizer/compute-sanitizer",
)
# What a tool writes at its end -> group 1 is how many errors it found.
SUMMARIES = {
    "memcheck": r"ERROR SUMMARY: (\d+) errors?\s*$",
    "racecheck": r"RACECHECK SUMMARY: (\d+) hazards? displayed",
}
PROGRAM = (sys.executable, "-m", "pa_tutorial.bench.gpu_sanitize")
ROOT = Path(__file__).parents[2]


class NotChecked(Exception):
    """Nothing is known from this machine; says why."""


def find_sanitizer() -> str:
    """The one on PATH, else the newest in PLACES."""
    if on_path := shutil.which("compute-sanitizer"):
        return on_path
    found = [path for place in PLACES for path in glob(place) if shutil.which(path)]
    if not found:
        raise NotChecked(f"there is no compute-sanitizer on PATH, nor at {' or '.join(PLACES)}")
    return max(found, key=lambda path: list(map(int, re.findall(r"\d+", path))))


def start(tool: str) -> subprocess.Popen:
    """The program under one tool. Errors of CUDA's functions are not counted: torch tries some
    to see what there is."""
    command = [find_sanitizer(), "--tool", tool, "--report-api-errors", "no", *PROGRAM]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def num_errors(tool: str, said: str) -> int:
    """How many errors a tool found. Raises NotChecked if it does not say, or if the program did
    not come to its end: what it did not launch was not watched."""
    found = re.search(SUMMARIES[tool], said, re.MULTILINE)
    count = int(found.group(1)) if found else None
    if count is None or (count == 0 and DONE not in said):
        raise NotChecked(f"{tool} did not come to an end: {complaint(said)}")
    return count


def complaint(said: str) -> str:
    """The first things that the tool reports; without any, the last lines."""
    lines = [line.removeprefix("=========").strip() for line in said.splitlines()]
    lines = [line for line in lines if line]
    reports = [line for line in lines if re.match(r"Invalid|Error|Race reported|Program hit", line)]
    return "; ".join(dict.fromkeys(reports[:3] or lines[-3:]))


def ended(tool: str, process: subprocess.Popen, seconds: float) -> str:
    """What it printed. Raises NotChecked if it takes longer."""
    try:
        return process.communicate(timeout=max(0.0, seconds))[0]
    except subprocess.TimeoutExpired as error:
        end_group(process)  # the tool has a child that has the GPU
        process.communicate()
        raise NotChecked(f"{tool} was not done when its time was over") from error


def compare(seconds: float) -> dict[str, object]:
    """Both tools at the same time; prints what they found.

    returns  tool -> {"errors": how many, "first": what} or {"not_checked": why}; "wrong"
    """
    end = time.monotonic() + seconds
    found: dict[str, object] = {}
    wrong = []
    processes: dict[str, subprocess.Popen] = {}
    for tool in SUMMARIES:
        try:
            processes[tool] = start(tool)
        except (NotChecked, OSError) as why:
            found[tool] = {"not_checked": str(why)}
    for tool, process in processes.items():
        try:
            said = ended(tool, process, end - time.monotonic())
            count = num_errors(tool, said)
        except NotChecked as why:
            found[tool] = {"not_checked": str(why)}
        else:
            found[tool] = {"errors": count, "first": complaint(said) if count else ""}
            if count:
                wrong.append(f"{tool}: {count} errors")
    for tool in SUMMARIES:
        of_tool = found[tool]
        if "errors" in of_tool:
            print(f"{tool}: {of_tool['errors']} errors {of_tool['first']}".rstrip())
        else:
            print(f"{tool} not run: {of_tool['not_checked']}")
    return found | {"wrong": wrong}
