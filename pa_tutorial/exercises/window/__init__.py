"""Change the kernel on Monday: a sliding window for vLLM's paged attention.

TASKS.md      the hand-out
files.py      what a student gets: functions of the kernels as they are, in files that are executed
              after the package's; and how a submission's are read
starter/      and stubs in plain Python
solution/     the same files, solved
*_trials.py   how the tasks are graded; kernel_cases.py and window_problem.py have the inputs
"""

from pathlib import Path

from pa_tutorial.exercises.tasks import Assignment, Task
from pa_tutorial.exercises.window.files import (
    PLAIN,
    V1,
    V2,
    KernelTask,
    solution_texts,
    starter_texts,
)
from pa_tutorial.exercises.window.kernel_trials import reference_trials, v1_trials, v2_trials
from pa_tutorial.exercises.window.plain_trials import blocks_in_window_trials, shared_bytes_trials

# What a student changes: files, and functions in them.
OF_V1 = ((V1, "fill_logits"), (V1, "paged_attention_v1"))
OF_V2 = ((V2, "bounds_of_partition"), (V2, "reduce_partitions"))
TASKS = (
    Task("blocks_in_window", blocks_in_window_trials, ((PLAIN, "blocks_in_window"),), 2.0),
    Task("paged_attention", reference_trials, ((PLAIN, "paged_attention"),), 4.0),
    KernelTask("v1", v1_trials, OF_V1, 8.0),
    KernelTask("v2", v2_trials, OF_V1 + OF_V2, 6.0),
    Task("shared_bytes", shared_bytes_trials, ((PLAIN, "shared_bytes"),), 4.0),
)


def sliding_window(name: str) -> Assignment:
    page = Path(__file__).with_name("TASKS.md").read_text(encoding="utf-8")
    title, _, text = page.partition("\n\n")
    return Assignment(
        name=name,
        title=title.removeprefix("# "),
        text=text,
        tasks=TASKS,
        starter=starter_texts(),
        solution=solution_texts(),
        has_notebook=False,
    )
