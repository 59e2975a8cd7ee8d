"""The process of a submission: run it, and report what its answers return.

    python -m pa_tutorial.coursework.child < job.json

It starts in a folder with the submission's files. A notebook runs cell by cell (as_notebook.py);
of a folder, the files are imported, and then each task is a step. The parent compares and grades:
this process has the cases without their references.
"""

import _thread
import faulthandler
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from pa_tutorial.checks.running import Trial
from pa_tutorial.coursework.as_notebook import NotebookRun
from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.coursework.report import Report, without_references
from pa_tutorial.exercises.tasks import Assignment, Task
from pa_tutorial.printing import print_anything

try:
    import resource
except ImportError:  # Windows
    resource = None

MEGABYTE = 2**20
GRACE = 5.0  # seconds, at least, from an interrupt to the end of the process
MOST_IN_A_FILE = 2**34  # bytes; 24 has a cache of more than 2**31 elements in one, with gaps
Step = Callable[[], None]


def main() -> None:
    job = json.loads(sys.stdin.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # it has the key, and could be read again
    # Interrupts arrive, even if a shell started the grader in the background and ignores them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    report = Report(job["key"], job["seconds"])
    one, draw = assignment(job["assignment"]), job["draw"]
    if job["cells"]:
        steps = NotebookRun(report, one, draw).steps(job["cells"])
    else:
        steps = steps_of_files(report, one, draw)
    limit_resources(job["megabytes"])
    sys.path.append(os.getcwd())  # at the end, so that a student's torch.py doesn't hide torch
    for number, step in steps.items():
        if number not in job["skipped"]:
            report.say_cell(number)
            run(step, report)
    report.say(done=True)
    os._exit(0)  # whatever a thread of the submission does


def run(step: Step, report: Report) -> None:
    try:
        with limited(report.seconds):
            step()
    except KeyboardInterrupt as error:
        report.say_error(error)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer, as a reader would; if it goes on, end this process."""
    timer = threading.Timer(seconds, _thread.interrupt_main)
    timer.daemon = True
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        end = seconds + max(0.5 * seconds, GRACE)
        faulthandler.dump_traceback_later(end, exit=True, file=nowhere)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            faulthandler.cancel_dump_traceback_later()


def steps_of_files(report: Report, one: Assignment, draw: int) -> dict[int, Step]:
    """Step 0 imports the files; each of the others tries a task."""
    answers: dict[str, object] = {}
    steps: dict[int, Step] = {0: partial(load, report, one.tasks, answers)}
    for number, task in enumerate(one.tasks, 1):
        trials = without_references(task.trials(draw))
        steps[number] = partial(try_task, report, task.name, trials, answers)
    return steps


def load(report: Report, tasks: Sequence[Task], answers: dict[str, object]) -> None:
    for task in tasks:
        try:
            answers[task.name] = task.answer()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too
            report.say_task(task.name)
            report.say_problem(task.name, error)


def try_task(
    report: Report, name: str, trials: Sequence[Trial], answers: dict[str, object]
) -> None:
    if name in answers:
        report.say_task(name)
        report.try_answer(name, answers[name], trials)


def limit_resources(megabytes: int) -> None:
    """From now on, limit the size of files that this process writes and, on Linux, its memory."""
    if resource is None:
        return
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_IN_A_FILE, MOST_IN_A_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # a file that is mapped, as in 24, doesn't count as data
        with open("/proc/self/statm", encoding="utf-8") as file:
            data = int(file.read().split()[5])
        most = data * resource.getpagesize() + megabytes * MEGABYTE
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    print_anything()
    main()
