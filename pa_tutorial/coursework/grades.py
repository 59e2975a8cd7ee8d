"""Compare and grade a submission's results, in a process where none of its code runs."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from safetensors.torch import load
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.running import Trial, judge
from pa_tutorial.checks.showing import CaseResult
from pa_tutorial.coursework.apart import Limits, run_apart
from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.coursework.tasks import Assignment, Task


@dataclass(frozen=True)
class TaskGrade:
    """The points for one task; all its cases count equally."""

    task: str
    out_of: float
    cases: tuple[CaseResult, ...]

    @property
    def points(self) -> float:
        return round(self.out_of * sum(case.passed for case in self.cases) / len(self.cases), 2)

    @property
    def failed(self) -> list[str]:
        return [case.name for case in self.cases if not case.passed]

    @property
    def reasons(self) -> list[str]:
        """What is wrong, one line per mistake."""
        same: dict[str, list[str]] = {}
        for case in self.cases:
            if not case.passed:
                same.setdefault(case.diagnosis, []).append(case.name)
        return [
            f"{'every case' if len(names) == len(self.cases) else ', '.join(names)}: {why}"
            for why, names in same.items()
        ]


@dataclass(frozen=True)
class Grade:
    """The points for one submission of one assignment."""

    submission: str
    tasks: tuple[TaskGrade, ...]

    @property
    def points(self) -> float:
        return round(sum(task.points for task in self.tasks), 2)

    @property
    def out_of(self) -> float:
        return sum(task.out_of for task in self.tasks)

    def __str__(self) -> str:
        """The report; what is wrong with every task, such as an unreadable file, is said once."""
        said = [task.reasons for task in self.tasks]
        everywhere = [why for why in said[0] if len(said) > 1 and all(why in own for own in said)]
        lines = [f"{self.submission}: {self.points:g} of {self.out_of:g} points"]
        lines += [f"  every task, {why}" for why in everywhere]
        for task, own in zip(self.tasks, said, strict=True):
            lines.append(f"  {task.points:6.2f} of {task.out_of:g}  {task.task}")
            lines += [" " * 11 + why for why in own if why not in everywhere]
        return "\n".join(lines)


def grade(
    submission: str, files: Mapping[str, str], assignment: Assignment, draw: int, limits: Limits
) -> Grade:
    """Grade the files of one student, which can't stop it or change another student's grade.

    files  name -> text
    draw   see Exercise.trials; a number that students don't know
    """
    name = assignment.name
    tasks = tuple(grade_task(files, name, task, draw, limits) for task in assignment.tasks)
    return Grade(submission, tasks)


def grade_task(
    files: Mapping[str, str], assignment: str, task: Task, draw: int, limits: Limits
) -> TaskGrade:
    said, ended = run_apart(files, assignment, task.name, draw, limits)
    cases = (
        compared(trial, said.get(trial.name, {"problem": ended}))
        for trial in known_trials(assignment, task.name, draw)
    )
    return TaskGrade(task.name, task.points, tuple(cases))


@cache
def known_trials(name: str, task: str, draw: int) -> list[Trial]:
    """The cases; their references are computed once for all submissions."""
    trials = assignment(name).task(task).trials(draw)
    return [replace(t, references={n: cache(f) for n, f in t.references.items()}) for t in trials]


def compared(trial: Trial, words: Mapping[str, Any]) -> CaseResult:
    """Compare what the process reported for a case with the expected result."""
    case, _ = judge(replace(trial, run=lambda _: arrays_in(words)), None)
    return replace(case, diagnosis=one_line(case.diagnosis))


def arrays_in(words: Mapping[str, Any]) -> dict[str, Tensor]:
    """Raise AnswerError with the process's problem, if it reported no arrays."""
    if "arrays" not in words:
        raise AnswerError(str(words.get("problem")))
    arrays = load(base64.b64decode(words["arrays"]))
    if "out" not in arrays:
        raise AnswerError("it returned no output")
    return arrays


def one_line(text: str) -> str:
    """A student's text made safe to print: no line breaks and no control characters."""
    return "".join(sign if sign.isprintable() else " " for sign in text)
