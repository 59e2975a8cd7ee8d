"""What is handed out: tasks with their points, and the files that a student begins with."""

from collections.abc import Callable
from dataclasses import dataclass

from pa_tutorial.checks.running import Trial


@dataclass(frozen=True)
class Task:
    """One thing to write, and how it is graded.

    name    of the function in adapters.py that gives what the student wrote
    trials  draw -> the cases; each is worth the same part of the points
    places  (file, function) once or more than once: what is graded. The trials take the function,
            or a tuple of the functions.
    """

    name: str
    trials: Callable[[int], list[Trial]]
    places: tuple[tuple[str, str], ...]
    points: float


@dataclass(frozen=True)
class Assignment:
    """Some tasks, and the student's files as they are handed out and as they are solved.

    text               all tasks, in Markdown
    starter, solution  name of a file -> its text; the same names
    """

    name: str
    title: str
    text: str
    tasks: tuple[Task, ...]
    starter: dict[str, str]
    solution: dict[str, str]

    def task(self, name: str) -> Task:
        """Raises ValueError for a name that is no task of this assignment."""
        for task in self.tasks:
            if task.name == name:
                return task
        known = ", ".join(task.name for task in self.tasks)
        raise ValueError(f"task is {name!r}; {self.name} has: {known}")
