"""All assignments: those made of the exercises of a notebook, and the sliding window."""

import inspect
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from pa_tutorial.coursework import window
from pa_tutorial.coursework.excerpts import definitions, excerpt
from pa_tutorial.coursework.tasks import Assignment, Task
from pa_tutorial.exercises import EXERCISES, Exercise

POINTS = 10.0
ANSWERS = "answers.py"
# Our modules do without Triton where there is none; an answer in it does not.
OUR_TRITON = "from pa_tutorial.exercises.triton_grading import tl"
TRITON = "import triton.language as tl"


def notebook_names() -> tuple[str, ...]:
    """The notebooks that have exercises, in reading order."""
    return tuple(sorted({exercise.notebook for exercise in EXERCISES.values()}))


def assignment_names() -> tuple[str, ...]:
    """All that can be handed out."""
    return (*notebook_names(), window.NAME)


def exercises_of(notebook: str) -> list[Exercise]:
    return [exercise for exercise in EXERCISES.values() if exercise.notebook == notebook]


@cache
def assignment(name: str) -> Assignment:
    """Raises ValueError for a name that is no assignment."""
    if name == window.NAME:
        return window.sliding_window()
    exercises = exercises_of(name)
    if not exercises:
        known = ", ".join(assignment_names())
        raise ValueError(f"name is {name!r}; it must be one of: {known}")
    return Assignment(
        name=name,
        title=f"Exercises of notebook {name[:2]}",
        text="\n\n".join(f"## `{e.name}` ({POINTS:g} points)\n\n{e.text}" for e in exercises),
        tasks=tuple(Task(e.name, e.trials, ((ANSWERS, e.name),), POINTS) for e in exercises),
        starter={ANSWERS: answers_file(exercises, [e.stub for e in exercises])},
        solution={ANSWERS: answers_file(exercises, [e.source for e in exercises])},
    )


def assignment_of(names: Iterable[str]) -> Assignment:
    """The assignment to which most of these tasks belong. Raises ValueError if there is none."""
    notebooks = {e.name: e.notebook for e in EXERCISES.values()}
    notebooks |= dict.fromkeys(window.POINTS, window.NAME)
    found = Counter(notebooks[name] for name in names if name in notebooks)
    if not found:
        raise ValueError("it has no task of an assignment")
    return assignment(found.most_common(1)[0][0])


def answers_file(exercises: Sequence[Exercise], bodies: Iterable[str]) -> str:
    """The functions of some exercises, with what they need in front of them."""
    parts = [needs_of(exercises), *(body.strip() for body in bodies)]
    return "\n\n\n".join(part for part in parts if part) + "\n"


def needs_of(exercises: Sequence[Exercise]) -> str:
    """Imports and constants of the modules that hold the exercises of a notebook."""
    known = definitions([inspect.getsource(inspect.getmodule(exercises[0].solution))])
    names = {exercise.name for exercise in exercises}
    used = set().union(*(known[name].uses for name in names)) - names
    return excerpt(used, known).replace(OUR_TRITON, TRITON)


def adapters_file(assignment: Assignment) -> str:
    """adapters.py: one function a task. A student may change what they import, and from where."""
    parts = ['"""The tests call only these functions. Each gives what you wrote for one task."""']
    for task in assignment.tasks:
        imports = [f"    from {f.removesuffix('.py')} import {name}" for f, name in task.places]
        names = ", ".join(name for _, name in task.places)
        parts.append("\n".join([f"def {task.name}():", *imports, "", f"    return {names}"]))
    return "\n\n\n".join(parts) + "\n"
