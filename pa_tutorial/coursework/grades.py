"""Compare and grade what a submission returned, in a process where none of its code runs."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from safetensors.torch import load
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError, OnlyIfRightError
from pa_tutorial.checks.comparing import Comparison
from pa_tutorial.checks.running import Trial, judge
from pa_tutorial.checks.showing import CaseResult
from pa_tutorial.coursework.apart import Ran
from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.coursework.submissions import Submission
from pa_tutorial.exercises.blank import Blank, all_blanks
from pa_tutorial.exercises.tasks import Assignment, Task
from pa_tutorial.printing import printable


@dataclass(frozen=True)
class TaskGrade:
    """The points for one task; all its cases count equally.

    cell   of the notebook in which it was attempted; 0 for none
    said   the notebook's own verdict there, and whether it was `right`
    wrong  the first wrong quantity, in the first case that fails; "" if it returned none
    """

    task: str
    out_of: float
    cases: tuple[CaseResult, ...]
    cell: int = 0
    said: str = ""
    right: bool = False
    wrong: str = ""

    @property
    def points(self) -> float:
        return round(self.out_of * sum(case.passed for case in self.cases) / len(self.cases), 2)

    @property
    def failed(self) -> list[CaseResult]:
        return [case for case in self.cases if not case.passed]

    @property
    def reasons(self) -> dict[str, list[str]]:
        """What is wrong -> in which cases, each mistake once."""
        same: dict[str, list[str]] = {}
        for case in self.failed:
            same.setdefault(case.diagnosis, []).append(case.name)
        everywhere = len(self.failed) == len(self.cases)
        return {
            why: ["every case"] if everywhere and len(same) == 1 else names
            for why, names in same.items()
        }


@dataclass(frozen=True)
class Grade:
    """The points for one submission of one assignment.

    file     what was graded
    problem  why nothing was; "" if something was
    errors   of the cells, in their order
    odd      what in the code a lecturer should look at
    """

    student: str
    file: str
    tasks: tuple[TaskGrade, ...]
    problem: str = ""
    errors: tuple[str, ...] = ()
    odd: str = ""

    @property
    def points(self) -> float:
        return round(sum(task.points for task in self.tasks), 2)

    @property
    def out_of(self) -> float:
        return sum(task.out_of for task in self.tasks)


def from_data(data: Mapping[str, Any]) -> Grade:
    """A grade, from what `asdict` and JSON have made of it."""
    tasks = (
        TaskGrade(**{**task, "cases": tuple(CaseResult(**case) for case in task["cases"])})
        for task in data["tasks"]
    )
    return Grade(**{**data, "tasks": tuple(tasks), "errors": tuple(data["errors"])})


def graded(one: Submission, ran: Ran, of: Assignment, draw: int) -> Grade:
    """Grade what a submission returned for a draw: see Exercise.trials."""
    errors = tuple(printable(ran.errors[cell]) for cell in sorted(ran.errors))
    tasks = tuple(graded_task(task, one, ran, of, draw) for task in of.tasks)
    problem = one.problem
    if one.cells and not (problem or errors or any(task.cell for task in tasks)):
        problem = f"no task was answered: {tasks[0].failed[0].diagnosis}"
    return Grade(one.student, one.file, tasks, problem, errors, one.odd)


def graded_task(task: Task, one: Submission, ran: Ran, of: Assignment, draw: int) -> TaskGrade:
    answer = ran.answers.get(task.name)
    nothing = "" if answer else one.problem or why_none(task, one, ran, of)
    ended = ran.errors.get(answer.cell, "its process ended before this case") if answer else ""
    found = []
    for trial in known_trials(of.name, task.name, draw):
        why = nothing or answer.problem or ended
        words = answer.cases.get(trial.name, {"problem": why}) if answer else {"problem": why}
        found.append(compared(trial, words, all_blanks().get(task.name)))
    wrong = next((quantity for case, quantity in found if not case.passed), "")
    cases = tuple(case for case, _ in found)
    if not answer:
        return TaskGrade(task.name, task.points, cases)
    words = answer.cell, printable(answer.said), answer.is_right
    return TaskGrade(task.name, task.points, cases, *words, wrong)


def why_none(task: Task, one: Submission, ran: Ran, of: Assignment) -> str:
    """Why there is no answer to a task: no attempt, or an error in its cell or before."""
    errors = [ran.errors[cell] for cell in sorted(ran.errors)]
    if not one.cells:
        return errors[0] if errors else "its process ended before this task"
    attempt = rf"""attempt\(\s*["']{task.name}["']"""
    names = "|".join(function for _, function in task.places)
    about = re.compile(rf"{attempt}|def ({names})\b")
    own = [
        n
        for n in sorted(ran.errors)
        if 1 <= n <= len(one.cells) and about.search(one.cells[n - 1] or "")
    ]
    if own:
        return f"`attempt` got no answer: {ran.errors[own[0]]}"
    first = f"; the first error: {errors[0]}" if errors else ""
    if any(re.search(attempt, cell or "") for cell in one.cells):
        return f"`attempt` got no answer of yours{first}"
    others = sorted(ran.answers.keys() - {task.name for task in of.tasks})
    instead = f"; it answers {', '.join(others)}" if others else ""
    missing = "the line with `attempt` below the answer is missing"
    return f"{missing} in {one.file}{instead or first}"


@cache
def known_trials(name: str, task: str, draw: int) -> list[Trial]:
    """The cases; their references are computed once for all submissions."""
    trials = assignment(name).task(task).trials(draw)
    return [replace(t, references={n: cache(f) for n, f in t.references.items()}) for t in trials]


def compared(trial: Trial, words: Mapping[str, Any], blank: Blank | None) -> tuple[CaseResult, str]:
    """Compare what was reported for a case with the expected result, and name what is wrong."""
    case, comparisons = judge(replace(trial, run=lambda _: arrays_in(words)), None)
    failed = [one for one in comparisons if not one.passed]
    if not failed:
        return replace(case, diagnosis=printable(case.diagnosis)), ""
    if blank:  # in the words of its verdict
        case = replace(case, diagnosis=told(blank, trial, failed[0], comparisons[0]))
    return replace(case, diagnosis=printable(case.diagnosis)), failed[0].quantity


def told(blank: Blank, trial: Trial, wrong: Comparison, first: Comparison) -> str:
    words, _ = blank.craft.told(blank, trial, None, wrong, first)
    return words.strip()


def arrays_in(words: Mapping[str, Any]) -> dict[str, Tensor]:
    """Raise AnswerError with the process's problem, if it reported no arrays."""
    if "arrays" not in words:
        raise AnswerError(str(words.get("problem")))
    arrays = load(base64.b64decode(words["arrays"]))
    if "out" not in arrays:
        raise AnswerError("it returned no output")
    if "problem" in words:
        raise OnlyIfRightError(str(words["problem"]), arrays)
    return arrays
