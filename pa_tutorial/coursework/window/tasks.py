"""The tasks of the assignment, each with its points, its cases and its wrong answers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pa_tutorial.checks.running import Trial
from pa_tutorial.coursework.window import texts
from pa_tutorial.coursework.window.files import PLACES
from pa_tutorial.coursework.window.grading import v1_trials
from pa_tutorial.coursework.window.grading_partitions import v2_trials
from pa_tutorial.coursework.window.grading_plain import (
    blocks_in_window_trials,
    shared_bytes_trials,
)
from pa_tutorial.coursework.window.grading_table import append_in_window_trials
from pa_tutorial.text_changes import Version, load_versions

WRONG = Path(__file__).with_name("wrong.toml")


@dataclass(frozen=True)
class Task:
    """One task of the assignment.

    trials  makes the cases of a draw: the same names and meanings, other numbers
    """

    name: str
    trials: Callable[[int], list[Trial]]

    @property
    def text(self) -> str:
        """Its section of TASKS.md."""
        return texts.section(self.name)

    @property
    def wrong(self) -> tuple[Version, ...]:
        """Mistakes that people make: changes of the solution that must lose points, each with a
        case that fails: more["fails"]."""
        return tuple(version for version in load_versions(WRONG) if version.name == self.name)

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """What is graded: (file, function), once or more than once. The trials take the function,
        or a tuple of the functions in this order."""
        return PLACES[self.name]

    @property
    def points(self) -> int:
        return texts.POINTS[self.name]


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("blocks_in_window", blocks_in_window_trials),
        Task("v1", v1_trials),
        Task("v2", v2_trials),
        Task("append_in_window", append_in_window_trials),
        Task("shared_bytes", shared_bytes_trials),
    )
}
