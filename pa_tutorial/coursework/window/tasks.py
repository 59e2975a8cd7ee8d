"""The tasks of the assignment, each with its points, its cases and its wrong answers."""

from collections.abc import Callable
from dataclasses import dataclass

from pa_tutorial.checks.running import Trial
from pa_tutorial.coursework.window import texts, wrong
from pa_tutorial.coursework.window.files import PLACES, solution_files, starter_files
from pa_tutorial.coursework.window.grading import v1_trials
from pa_tutorial.coursework.window.grading_partitions import v2_trials
from pa_tutorial.coursework.window.grading_plain import (
    blocks_in_window_trials,
    shared_bytes_trials,
)
from pa_tutorial.coursework.window.grading_table import append_in_window_trials
from pa_tutorial.coursework.window.wrong import Wrong


@dataclass(frozen=True)
class Task:
    """One task of the assignment.

    trials  makes the cases of a draw: the same names and meanings, other numbers
    wrong   answers that must lose points
    """

    name: str
    trials: Callable[[int], list[Trial]]
    wrong: tuple[Wrong, ...]

    @property
    def text(self) -> str:
        """Its section of TASKS.md."""
        return texts.section(self.name)

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """What is graded: (file, function), once or more than once. The trials take the function,
        or a tuple of the functions in this order."""
        return PLACES[self.name]

    @property
    def points(self) -> int:
        return texts.POINTS[self.name]

    def starter_files(self) -> dict[str, str]:
        """File name -> text of all files that a student gets."""
        return starter_files()

    def solution_files(self) -> dict[str, str]:
        """File name -> text of the same files, solved."""
        return solution_files()


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("blocks_in_window", blocks_in_window_trials, wrong.BLOCKS_IN_WINDOW),
        Task("v1", v1_trials, wrong.V1),
        Task("v2", v2_trials, wrong.V2),
        Task("append_in_window", append_in_window_trials, wrong.APPEND_IN_WINDOW),
        Task("shared_bytes", shared_bytes_trials, wrong.SHARED_BYTES),
    )
}
