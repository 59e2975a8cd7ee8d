"""The exercises of the notebooks: text, stub, solution and wrong answers."""

import importlib
from collections.abc import Iterator
from importlib.util import find_spec

from pa_tutorial.exercises.blank import Blank, blanks_of
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.texts import notebook_names

__all__ = ["EXERCISES", "Exercise", "answers", "exercises_of", "find"]


def _own(notebook: str) -> tuple[Exercise, ...]:
    """The exercises of NN_topic.py, the module named like the notebook."""
    module = f"{__name__}.{notebook}"
    return importlib.import_module(module).EXERCISES if find_spec(module) else ()


def exercises_of(notebook: str) -> tuple[Blank | Exercise, ...]:
    """The blanks of its kernel, then its exercises. Loads only this notebook's module."""
    return (*blanks_of(notebook), *_own(notebook))


def _in_order() -> Iterator[Exercise]:
    """The exercises of every notebook, one after the other."""
    for notebook in notebook_names():
        yield from _own(notebook)


def find(name: str) -> Exercise | None:
    """The exercise of that name. Loads the modules up to its own: the first know no kernels."""
    return next((exercise for exercise in _in_order() if exercise.name == name), None)


class Answers:
    """All answers of a notebook, open, as a notebook shows them."""

    def __init__(self, answered: tuple[Blank | Exercise, ...]) -> None:
        self.answered = answered

    def _repr_markdown_(self) -> str:
        return "\n\n".join(one.open_answer for one in self.answered)


def answers(number: int) -> Answers:
    """The answers to the blanks and exercises of a notebook, all at once: `answers(10)`.

    Raises ValueError for a notebook that has neither.
    """
    names = {int(name[:2]): name for name in notebook_names()}
    if number not in names:
        known = ", ".join(map(str, names))
        raise ValueError(f"number is {number}; it must be one of {known}")
    return Answers(exercises_of(names[number]))


def __getattr__(name: str) -> dict[str, Exercise]:
    """EXERCISES, all by name, when somebody asks for all."""
    if name != "EXERCISES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = {exercise.name: exercise for exercise in _in_order()}
    return globals()[name]
