"""A plugin for pytest: cases of an assignment as tests, and the points for each task at the end."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pa_tutorial.checks.running import judge
from pa_tutorial.coursework.assignment import Assignment, assignment
from pa_tutorial.coursework.grading import objection_to
from pa_tutorial.coursework.plain import files_of_folder

DRAW = 0  # the numbers of the notebook
RESULTS: pytest.StashKey[dict[tuple[str, str], bool]] = pytest.StashKey()


def cases(name: str) -> list:
    """(task, case) of every case, with ids that say both."""
    return [
        pytest.param(task.name, trial.name, id=f"{task.name}-{trial.name}")
        for task in assignment(name).tasks
        for trial in task.trials(DRAW)
    ]


def run_case(name: str, task: str, case: str, adapter: Callable[[], Callable]) -> None:
    """Run one case; fails with what is wrong, and what usually is."""
    trials = assignment(name).task(task).trials(DRAW)
    result, _ = judge(next(trial for trial in trials if trial.name == case), adapter())
    if not result.passed:
        pytest.fail(result.report(), pytrace=False)


def require_accepted(adapters: str) -> None:
    """Fails with the grader's words if it would refuse the files beside this adapters.py."""
    if why := objection_to(files_of_folder(Path(adapters).parent)):
        pytest.fail(f"the grader would not run your files: {why}", pytrace=False)


def points_of(one: Assignment, passed: dict[tuple[str, str], bool]) -> Iterator[tuple]:
    """(task, points, out of) for each task of which a case ran."""
    for task in one.tasks:
        own = [ok for (name, _), ok in passed.items() if name == task.name]
        if own:
            total = len(task.trials(DRAW))
            yield task.name, task.points * sum(own) / total, task.points


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    values = getattr(getattr(item, "callspec", None), "params", {})
    if report.when == "call" and {"task", "case"} <= values.keys():
        key = values["task"], values["case"]
        item.config.stash[RESULTS][key] = report.passed
        item.config.stash[NAME] = item.module.ASSIGNMENT


NAME: pytest.StashKey[str] = pytest.StashKey()


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stash = terminalreporter.config.stash
    if NAME not in stash:
        return
    rows = list(points_of(assignment(stash[NAME]), stash[RESULTS]))
    terminalreporter.section("points")
    for task, points, out_of in rows:
        terminalreporter.line(f"{points:6.2f} of {out_of:g}  {task}")
    total, out_of = sum(row[1] for row in rows), sum(row[2] for row in rows)
    terminalreporter.line(f"{total:6.2f} of {out_of:g}  in all")
