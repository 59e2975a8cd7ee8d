"""Grade in this process, with a student's code in it: python -m pa_tutorial.coursework.child

Standard input has the order, as JSON: folder, assignment, tasks, draw, seconds, megabytes, token.
Standard output gets lines of JSON, each as soon as it is known, behind the token: the `task` with
a `case`, or with the `problem` that kept its cases from running; and in the end the task alone.
What the student's code prints goes nowhere.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TextIO

from pa_tutorial.checks.running import Trial, describe, judge, torch_settings_kept
from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.coursework.limits import limit_files, limit_memory, limit_seconds
from pa_tutorial.coursework.tasks import Task
from pa_tutorial.walk.calls import AnswerError

ADAPTERS = "adapters"
MOST_SIGNS = 2000  # of a message: an answer's error may have any length


def main() -> None:
    order = json.load(sys.stdin)
    channel = own_channel()
    tasks = [assignment(order["assignment"]).task(name) for name in order["tasks"]]
    # What must come out is computed before a line of the student's runs.
    trials = {
        task: [with_known_references(t) for t in task.trials(order["draw"])] for task in tasks
    }
    limit_files()
    limit_memory(order["megabytes"])
    sys.path.append(order["folder"])  # last: a student's torch.py is not torch
    for task in tasks:
        report = partial(say, channel, order["token"], task=task.name)
        limit_seconds(order["seconds"], channel)
        run_task(task, trials[task], report)
        report()


def run_task(task: Task, trials: list[Trial], report: Callable[..., None]) -> None:
    try:
        answer = getattr(importlib.import_module(ADAPTERS), task.name)()
        require_functions(answer, task)
    except BaseException as error:  # SystemExit too
        report(problem=f"{ADAPTERS}.py: {describe(error)}")
        return
    for trial in trials:
        case, _ = judge(trial, answer)
        report(case=case.name, passed=case.passed, diagnosis=case.diagnosis)


def require_functions(answer: Any, task: Task) -> None:
    """What an adapter returned must be functions: for None, trials would run our own solution.

    Raises AnswerError.
    """
    names = [name for _, name in task.places]
    functions = [answer] if len(names) == 1 else answer
    right = isinstance(functions, tuple | list) and len(functions) == len(names)
    if not right or not all(map(callable, functions)):
        wanted = f"the function {names[0]}" if len(names) == 1 else f"({', '.join(names)})"
        raise AnswerError(f"{task.name}() returned {answer!r:.60}; it must return {wanted}")


def own_channel() -> TextIO:
    """Standard output for us alone; prints of others are thrown away."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    return channel


def say(channel: TextIO, token: str, **words: Any) -> None:
    words = {key: w[:MOST_SIGNS] if isinstance(w, str) else w for key, w in words.items()}
    print(token + json.dumps(words), file=channel, flush=True)


def with_known_references(trial: Trial) -> Trial:
    with torch_settings_kept():
        known = {name: compute() for name, compute in trial.references.items()}
    return replace(trial, references={name: lambda k=k: k for name, k in known.items()})


if __name__ == "__main__":
    main()
