"""Change the kernel on Monday: a sliding window for vLLM's paged attention.

TASKS.md      the hand-out
changes.toml  the kernels of starter and solution, made of the package's own
plain.py      the solution of what is plain Python; the stubs are made of it
files.py      writes the files
problem.py, cases.py  what is drawn for the kernels
grading*.py   the cases: how they run, and what must come out
wrong.toml    answers that must lose points
"""

from pathlib import Path

from pa_tutorial.coursework.tasks import Assignment, Task
from pa_tutorial.coursework.window.files import PLACES, solution_files, starter_files
from pa_tutorial.coursework.window.grading import v1_trials
from pa_tutorial.coursework.window.grading_partitions import v2_trials
from pa_tutorial.coursework.window.grading_plain import blocks_in_window_trials, shared_bytes_trials

NAME = "sliding_window"
POINTS = {"blocks_in_window": 2, "v1": 8, "v2": 6, "shared_bytes": 4}
TRIALS = {
    "blocks_in_window": blocks_in_window_trials,
    "v1": v1_trials,
    "v2": v2_trials,
    "shared_bytes": shared_bytes_trials,
}


def sliding_window() -> Assignment:
    return Assignment(
        name=NAME,
        title="Change the kernel on Monday: a sliding window",
        text=Path(__file__).with_name("TASKS.md").read_text(encoding="utf-8"),
        tasks=tuple(Task(t, TRIALS[t], PLACES[t], float(POINTS[t])) for t in TRIALS),
        starter=starter_files(),
        solution=solution_files(),
    )
