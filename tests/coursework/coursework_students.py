"""Students: what each hands in for the exercises of notebook 05, and what it must be worth."""

from pa_tutorial.coursework.assignment import ANSWERS, adapters_file, assignment
from pa_tutorial.coursework.limits import Limits
from pa_tutorial.exercises import EXERCISES

NAME = "05_online_softmax"
DRAW = 811
LIMITS = Limits(seconds=6, megabytes=400)
FIRST, SECOND, THIRD = (task.name for task in assignment(NAME).tasks)
RIGHT = {name: EXERCISES[name].source for name in (FIRST, SECOND, THIRD)}
EMPTY = {name: EXERCISES[name].stub for name in (FIRST, SECOND, THIRD)}

# It waits: a limit of the processor's time would not find it. (And other tests have the core.)
NEVER_ENDS = """\
import time


def merge_parts(parts):
    while True:
        time.sleep(1)
"""
KNOWS_THE_NOTEBOOK = """\
KNOWN = {known!r}


def merge_parts(parts):
    return KNOWN.get(repr(parts), [0.0] * len(parts[0][2]))
"""


WRONG = EXERCISES[SECOND].wrong_source(EXERCISES[SECOND].wrong[0])


def hard_coded() -> str:
    """Every result of the second exercise on the notebook's numbers, in a dictionary."""
    known: dict[str, list[float]] = {}

    def spy(parts):
        known[repr(parts)] = EXERCISES[SECOND].solution(parts)
        return known[repr(parts)]

    for trial in EXERCISES[SECOND].trials(0):
        trial.run(spy)
    return KNOWS_THE_NOTEBOOK.format(known=known)


# name -> (answers, the points that they must get: a number, or (more than, less than))
STUDENTS = {
    "good": (RIGHT, {FIRST: 10, SECOND: 10, THIRD: 10}),
    "empty": (EMPTY, {FIRST: 0, SECOND: 0, THIRD: 0}),
    "wrong": (
        {**RIGHT, SECOND: WRONG, THIRD: EMPTY[THIRD]},
        {FIRST: 10, SECOND: (0, 10), THIRD: 0},
    ),
    "cheating": ({**EMPTY, SECOND: hard_coded()}, {FIRST: 0, SECOND: (-1, 2.6), THIRD: 0}),
    "never_ending": (
        {**EMPTY, SECOND: NEVER_ENDS, THIRD: RIGHT[THIRD]},
        {FIRST: 0, SECOND: 0, THIRD: 10},
    ),
}


def files(answers: dict[str, str]) -> dict[str, str]:
    """The student's files in the plain form."""
    text = assignment(NAME).solution[ANSWERS]
    imports = text[: text.index(RIGHT[FIRST].strip()[:20])]
    body = "\n\n\n".join(answers[name] for name in (FIRST, SECOND, THIRD))
    return {ANSWERS: imports + body, "adapters.py": adapters_file(assignment(NAME))}


def is_worth(points: float, wanted: float | tuple[float, float]) -> bool:
    if isinstance(wanted, tuple):
        return wanted[0] < points < wanted[1]
    return points == wanted
