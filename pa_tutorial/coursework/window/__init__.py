"""Change the kernel on Monday: a sliding window for vLLM's paged attention.

TASKS.md      the hand-out
changes.toml  turns the package's kernels into the kernels of starter and solution
solved.py     the solution in plain Python, from which the stubs are made
files.py      writes the files
wrong.toml    answers that must lose points
*_trials.py   how the tasks are graded; kernel_cases.py and window_problem.py have the inputs
"""

from pathlib import Path

from pa_tutorial.coursework.tasks import Assignment, Task
from pa_tutorial.coursework.window.files import PLACES, solution_files, starter_files
from pa_tutorial.coursework.window.kernel_trials import v1_trials, v2_trials
from pa_tutorial.coursework.window.plain_trials import blocks_in_window_trials, shared_bytes_trials

# task -> its points, and its cases
TASKS = {
    "blocks_in_window": (2.0, blocks_in_window_trials),
    "v1": (8.0, v1_trials),
    "v2": (6.0, v2_trials),
    "shared_bytes": (4.0, shared_bytes_trials),
}


def sliding_window(name: str) -> Assignment:
    return Assignment(
        name=name,
        title="Change the kernel on Monday: a sliding window",
        text=Path(__file__).with_name("TASKS.md").read_text(encoding="utf-8"),
        tasks=tuple(Task(t, trials, PLACES[t], points) for t, (points, trials) in TASKS.items()),
        starter=starter_files(),
        solution=solution_files(),
    )
