"""The plain form of an assignment: a folder with adapters.py and tests that call only that."""

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

from pa_tutorial.checks.running import judge
from pa_tutorial.coursework.assignment import adapters_file, assignment, assignment_of
from pa_tutorial.coursework.excerpts import definitions
from pa_tutorial.coursework.guard import ALLOWED
from pa_tutorial.coursework.tasks import Assignment

MOST_BYTES = 2**20  # of a file
PRACTICE = 0  # the draw of the notebook: these numbers are known
README = """\
# {title}

Write your code in {files}, in the environment of the walk (its README says how to set it up). In \
this folder, `pytest` runs every case of every task, and says what is wrong; \
`pytest -k {task}` runs those of one task. What it would be worth:

```
python -m pa_tutorial.coursework grade .
```

The tests call only the functions of `adapters.py`; each gives what you wrote for one task. You may
move your code to other files beside it and change the imports in `adapters.py`. Hand in all your
files. Keep backup copies outside this folder: pytest reads the files of a copy inside it too, and
stops there with an error.

The grade is given on other numbers than those of the tests here: the cases have the same names, and
each is worth the same part of the points of its task. An answer may import these modules, and what
lies below them; the grader runs no files that reach for more, and names the line:

{allowed}

{text}
"""

TESTS = '''\
"""The tasks, case by case. Run: pytest"""

import adapters
import pytest
from pa_tutorial.coursework.plain import cases, fault


@pytest.mark.parametrize(("task", "case"), cases("{name}"))
def test_task(task: str, case: str) -> None:
    if wrong := fault("{name}", task, case, getattr(adapters, task)):
        pytest.fail(wrong, pytrace=False)
'''


def files(one: Assignment, solved: bool = False) -> dict[str, str]:
    """Name -> text of all files of the folder."""
    code = one.solution if solved else one.starter
    readme = README.format(
        title=one.title,
        files=", ".join(f"`{name}`" for name in code),
        task=one.tasks[-1].name,
        allowed=fill(", ".join(f"`{name}`" for name in ALLOWED), 98),
        text=one.text.strip(),
    )
    tests = TESTS.format(name=one.name)
    return {"README.md": readme, "adapters.py": adapters_file(one), **code, "test_tasks.py": tests}


def write_folder(one: Assignment, folder: Path, solved: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files(one, solved).items():
        (folder / name).write_text(text, encoding="utf-8")


def cases(name: str) -> list[tuple[str, str]]:
    """(task, case) of every case."""
    tasks = assignment(name).tasks
    return [(task.name, trial.name) for task in tasks for trial in task.trials(PRACTICE)]


def fault(name: str, task: str, case: str, adapter: Callable[[], Any]) -> str:
    """Run one case: what is wrong, and what usually is; "" if it passes."""
    trials = {trial.name: trial for trial in assignment(name).task(task).trials(PRACTICE)}
    result, _ = judge(trials[case], adapter())
    return "" if result.passed else result.report()


def files_of_folder(folder: Path) -> tuple[Assignment, Mapping[str, str]]:
    """The assignment that adapters.py belongs to, and what was handed in, without tests:
    name -> text of the Python files.

    Raises ValueError for a folder without adapters.py, and for a file that is too large.
    """
    found = {
        path.name: read_text(path)
        for path in sorted(folder.glob("*.py"))
        if path.is_file() and path.name != "conftest.py" and not path.name.startswith("test_")
    }
    if "adapters.py" not in found:
        raise ValueError(f"{folder} has no adapters.py: it is no submission of a plain form")
    return assignment_of(definitions([found["adapters.py"]])), found


def read_text(path: Path) -> str:
    """A file of a student's; without the mark that some editors put in front (BOM)."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path} has {size:,} bytes; it may have {MOST_BYTES:,}")
    return path.read_text(encoding="utf-8-sig", errors="replace")
