"""The exercises of the notebooks: text, stub, solution and wrong answers."""

import importlib
import pkgutil
from collections.abc import Iterator

from pa_tutorial.exercises.blank import answers
from pa_tutorial.exercises.exercise import Exercise

__all__ = ["EXERCISES", "Exercise", "answers", "find"]


def _in_order() -> Iterator[Exercise]:
    """The exercises of every module named like a notebook (NN_topic.py), one after the other."""
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        if module.name[0].isdigit():
            yield from importlib.import_module(f"{__name__}.{module.name}").EXERCISES


def find(name: str) -> Exercise | None:
    """The exercise of that name. Loads the modules up to its own: the first know no kernels."""
    return next((exercise for exercise in _in_order() if exercise.name == name), None)


def __getattr__(name: str) -> dict[str, Exercise]:
    """EXERCISES, all by name, when somebody asks for all."""
    if name != "EXERCISES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = {exercise.name: exercise for exercise in _in_order()}
    return globals()[name]
