"""What is handed out: tasks with their points, and the files that a student begins with."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pa_tutorial.checks.running import Trial
from pa_tutorial.walk.calls import AnswerError


@dataclass(frozen=True)
class Task:
    """One thing to write, and how it is graded.

    trials  draw -> the cases; each is worth the same part of the points
    places  (file, function), one or more: what the student writes. The trials take the function,
            or a tuple of the functions.
    needs   of a function that is put into a kernel's file: the imports and constants with which
            it can be defined. None: a submission has all that the function needs
    """

    name: str
    trials: Callable[[int], list[Trial]]
    places: tuple[tuple[str, str], ...]
    points: float
    needs: str | None = None

    def answer(self) -> Any:
        """Import what the student wrote from the files on sys.path, as the trials take it.

        Raises AnswerError if a function is missing, and what the student's files raise.
        """
        functions = tuple(_function(*place) for place in self.places)
        return functions if len(functions) > 1 else functions[0]


def _function(file: str, name: str) -> Callable:
    function = getattr(importlib.import_module(file.removesuffix(".py")), name, None)
    if not callable(function):  # given None, a trial runs our solution
        raise AnswerError(f"{file} has no function {name}")
    return function


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
        return next(task for task in self.tasks if task.name == name)
