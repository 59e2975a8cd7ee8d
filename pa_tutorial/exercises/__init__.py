"""The exercises of the notebooks: text, stub, solution and wrong answers, from one source."""

import importlib
import pkgutil

from pa_tutorial.exercises.exercise import Exercise, WrongAnswer

__all__ = ["EXERCISES", "Exercise", "WrongAnswer"]


def _find() -> dict[str, Exercise]:
    """Collect the exercises of every module named like a notebook (NN_topic.py)."""
    found: dict[str, Exercise] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        if module.name[0].isdigit():
            for exercise in importlib.import_module(f"{__name__}.{module.name}").EXERCISES:
                found[exercise.name] = exercise
    return found


EXERCISES: dict[str, Exercise] = _find()
