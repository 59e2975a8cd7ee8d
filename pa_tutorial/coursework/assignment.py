"""What is handed out: tasks with their points, and the files that a student begins with."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from pa_tutorial.checks.running import Trial
from pa_tutorial.coursework import window
from pa_tutorial.coursework.excerpts import Definition, definitions, joined, needed_by
from pa_tutorial.exercises import EXERCISES, Exercise

POINTS = 10.0
ANSWERS = "answers.py"
WINDOW = "sliding_window"
# Our modules do without Triton where there is none; an answer in it does not.
BETTER = {
    Definition("from pa_tutorial.exercises.triton_grading import tl"): Definition(
        "import triton.language as tl"
    )
}


@dataclass(frozen=True)
class Task:
    """One thing to write, and how it is graded.

    name    of the function in adapters.py that gives what the student wrote
    text    the task, in Markdown
    trials  draw -> the cases; each is worth the same part of the points
    places  (file, function) once or more than once: what is graded. The trials take the function,
            or a tuple of the functions.
    """

    name: str
    text: str
    trials: Callable[[int], list[Trial]]
    places: tuple[tuple[str, str], ...]
    points: float = POINTS


@dataclass(frozen=True)
class Assignment:
    """Some tasks, and the student's files as they are handed out and as they are solved.

    starter, solution  name of a file -> its text; the same names
    """

    name: str
    title: str
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

    def only(self, name: str, points: float) -> "Assignment":
        """The same with one task, which is worth so many points."""
        return replace(self, tasks=(replace(self.task(name), points=points),))


def notebook_names() -> tuple[str, ...]:
    """The notebooks that have exercises, in reading order."""
    return tuple(sorted({exercise.notebook for exercise in EXERCISES.values()}))


def assignment_names() -> tuple[str, ...]:
    """All that can be handed out."""
    return (*notebook_names(), WINDOW)


def exercises_of(notebook: str) -> list[Exercise]:
    """Raises ValueError for a notebook without exercises."""
    found = [exercise for exercise in EXERCISES.values() if exercise.notebook == notebook]
    if not found:
        raise ValueError(
            f"name is {notebook!r}; it must be one of: {', '.join(assignment_names())}"
        )
    return found


@cache
def assignment(name: str) -> Assignment:
    """The assignment made of a notebook, or the one of its own.

    Raises ValueError for another name.
    """
    if name == WINDOW:
        return sliding_window()
    exercises = exercises_of(name)
    return Assignment(
        name=name,
        title=f"Exercises of {name}",
        tasks=tuple(Task(e.name, e.text, e.trials, ((ANSWERS, e.name),)) for e in exercises),
        starter={ANSWERS: answers_file(exercises, [e.stub for e in exercises])},
        solution={ANSWERS: answers_file(exercises, [e.source for e in exercises])},
    )


def sliding_window() -> Assignment:
    """Change the kernel on Monday."""
    tasks = window.TASKS.values()
    return Assignment(
        name=WINDOW,
        title="Change the kernel on Monday",
        tasks=tuple(Task(t.name, t.text, t.trials, t.places, float(t.points)) for t in tasks),
        starter=window.starter_files(),
        solution=window.solution_files(),
    )


def answers_file(exercises: Iterable[Exercise], bodies: Iterable[str]) -> str:
    """The functions of some exercises, with what they need in front of them."""
    parts = [needs_of(exercises), *(body.strip() for body in bodies)]
    return "\n\n\n".join(part for part in parts if part) + "\n"


def imports_of(notebook: str) -> str:
    """What the exercises of a notebook need: imports, and constants of theirs."""
    return needs_of(exercises_of(notebook))


def needs_of(exercises: Iterable[Exercise]) -> str:
    needs: set[Definition] = set()
    for exercise in exercises:
        known = definitions([inspect.getsource(inspect.getmodule(exercise.solution))])
        uses = known.pop(exercise.name).uses
        needs |= {BETTER.get(part, part) for part in needed_by(uses, known)}
    return joined(needs)


def adapters_file(assignment: Assignment) -> str:
    """adapters.py: one function a task. A student may change what they import, and from where."""
    parts = ['"""The tests call only these functions. Each gives what you wrote for one task."""']
    for task in assignment.tasks:
        imports = [f"    from {f.removesuffix('.py')} import {name}" for f, name in task.places]
        names = ", ".join(name for _, name in task.places)
        parts.append("\n".join([f"def {task.name}():", *imports, "", f"    return {names}"]))
    return "\n\n\n".join(parts) + "\n"


def is_as_handed_out(task: Task, one: Assignment, files: Mapping[str, str]) -> bool:
    """Whether nothing was written: everything that is graded stands as in the starter.

    What adapters.py takes from another file is not looked for here.
    """
    pairs = [(one.starter[f], files.get(f, ""), name) for f, name in task.places]
    pairs += [(adapters_file(one), files.get("adapters.py", ""), task.name)]
    return all(_text_of(name, old) == _text_of(name, new) for old, new, name in pairs)


def _text_of(name: str, file: str) -> str | None:
    found = definitions([file]).get(name)
    return found and found.text
