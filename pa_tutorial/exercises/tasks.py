"""Assignments: tasks with their points, and the files that a student starts from."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.running import Trial


@dataclass(frozen=True)
class Task:
    """One thing to write, and how it is graded.

    trials  draw -> the cases; all count equally
    places  one or more pairs (file, function) that the student writes. The trials take the
            function, or a tuple of the functions.
    """

    name: str
    trials: Callable[[int], list[Trial]]
    places: tuple[tuple[str, str], ...]
    points: float

    def answer(self) -> Any:
        """Import the student's functions from the files on sys.path, in the form the trials take.

        Raises AnswerError if a function is missing, and anything that the student's files raise.
        """
        functions = tuple(_function(*place) for place in self.places)
        return functions if len(functions) > 1 else functions[0]


def _function(file: str, name: str) -> Callable:
    function = getattr(importlib.import_module(file.removesuffix(".py")), name, None)
    if not callable(function):  # for None, a trial would run our solution
        raise AnswerError(f"{file} has no function {name}")
    return function


@dataclass(frozen=True)
class Assignment:
    """Some tasks, and the student's files before and after solving them.

    text               all tasks, in Markdown
    starter, solution  file name -> text; both have the same names
    has_notebook       whether a notebook with attempts can be handed in, too
    """

    name: str
    title: str
    text: str
    tasks: tuple[Task, ...]
    starter: dict[str, str]
    solution: dict[str, str]
    has_notebook: bool = True

    def task(self, name: str) -> Task:
        return next(task for task in self.tasks if task.name == name)
