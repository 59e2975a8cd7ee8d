"""The plain form of an assignment: a folder with files to complete and tests of every case."""

from pathlib import Path

from pa_tutorial.checks.running import judge
from pa_tutorial.coursework.assignment import assignment
from pa_tutorial.exercises.tasks import Assignment

PRACTICE = 0  # the draw of the notebook, whose numbers are known
README = Path(__file__).with_name("PLAIN.md").read_text(encoding="utf-8")
TESTS = '''\
"""The tasks, case by case. Run: pytest"""

import pytest
from pa_tutorial.coursework.plain import cases, fault


@pytest.mark.parametrize(("task", "case"), cases("{name}"))
def test_task(task: str, case: str) -> None:
    if wrong := fault("{name}", task, case):
        pytest.fail(wrong, pytrace=False)
'''

# The folder may be inside another project, such as the walk, whose options would hold here too.
SETTINGS = """\
[pytest]
pythonpath = .
"""


def files(one: Assignment, solved: bool = False) -> dict[str, str]:
    """Name -> text of all files in the folder."""
    readme = README.format(
        title=one.title,
        name=one.name,
        files=", ".join(f"`{name}`" for name in one.starter),
        task=one.tasks[-1].name,
        text=one.text.strip(),
    )
    code = one.solution if solved else one.starter
    tests = {"test_tasks.py": TESTS.format(name=one.name), "pytest.ini": SETTINGS}
    return {"README.md": readme, **code, **tests}


def write_folder(one: Assignment, folder: Path, solved: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files(one, solved).items():
        (folder / name).write_text(text, encoding="utf-8")


def cases(name: str) -> list[tuple[str, str]]:
    """(task, case) of every case."""
    tasks = assignment(name).tasks
    return [(task.name, trial.name) for task in tasks for trial in task.trials(PRACTICE)]


def fault(name: str, task_name: str, case: str) -> str:
    """Run one case in this process. Returns what is wrong and the usual reason, "" if it passes."""
    task = assignment(name).task(task_name)
    trials = {trial.name: trial for trial in task.trials(PRACTICE)}
    result, _ = judge(trials[case], task.answer())
    return "" if result.passed else result.report()
