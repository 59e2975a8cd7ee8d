"""Change the kernel on Monday: a sliding window for vLLM's paged attention, end to end.

    from pa_tutorial.coursework.window import TASKS, load, write_student_files

    write_student_files(Path("window"))        # what a student gets
    answers = load(Path("window"))             # task -> what its trials take
    trials = TASKS["v1"].trials(draw)          # the cases of a draw

changes.toml the kernels of starter and solution, made of the package's own
plain.py    the solution of what is plain Python; the stubs are made of it
files.py    writes and loads the files
texts.py    the hand-out
problem.py, cases.py, table_scenes.py  the cases: what is drawn
grading.py, grading_*.py  the cases: how they run, and what must come out
wrong.toml  answers that must lose points
tasks.py    all of it, task by task
"""

from pa_tutorial.coursework.window.files import (
    load,
    load_texts,
    solution_files,
    starter_files,
    write_student_files,
)
from pa_tutorial.coursework.window.tasks import TASKS, Task

__all__ = [
    "TASKS",
    "Task",
    "load",
    "load_texts",
    "solution_files",
    "starter_files",
    "write_student_files",
]
