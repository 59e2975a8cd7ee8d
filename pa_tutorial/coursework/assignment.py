"""All assignments: the exercises of each notebook, and the sliding window."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache

from pa_tutorial.exercises import Exercise, exercises_of
from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.needs import needs_of
from pa_tutorial.exercises.tasks import Assignment, Task
from pa_tutorial.exercises.texts import notebook_names

POINTS = 10.0
ANSWERS = "answers.py"
SLIDING_WINDOW = "sliding_window"


def assignment_names() -> tuple[str, ...]:
    """The names of all assignments."""
    return (*notebook_names(), SLIDING_WINDOW)


@cache
def assignment(name: str) -> Assignment:
    """Raise ValueError for an unknown assignment."""
    if name not in assignment_names():
        near = get_close_matches(name, assignment_names(), n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        known = ", ".join(assignment_names())
        raise ValueError(f"the assignment is {name!r}; {meant}it must be one of: {known}")
    if name == SLIDING_WINDOW:
        from pa_tutorial.exercises.window import sliding_window  # loads the simulator

        return sliding_window(name)
    own = exercises_of(name)
    return Assignment(
        name=name,
        title=f"Exercises of notebook {name[:2]}",
        text="\n\n".join(f"## `{e.name}` ({POINTS:g} points)\n\n{e.text}" for e in own),
        tasks=tuple(Task(e.name, e.trials, ((ANSWERS, e.function),), POINTS) for e in own),
        starter={ANSWERS: answers_file(own, [e.stub for e in own])},
        solution={ANSWERS: answers_file(own, [e.source for e in own])},
    )


def answers_file(exercises: Sequence[Exercise | Blank], bodies: Iterable[str]) -> str:
    """The functions of some exercises, preceded by what they need."""
    parts = [needs_of(exercises), *(body.strip() for body in bodies)]
    return "\n\n\n".join(part for part in parts if part) + "\n"
