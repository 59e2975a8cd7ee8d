"""The plain form of an assignment: a folder with adapters.py and tests that call only that."""

from pathlib import Path
from textwrap import fill

from pa_tutorial.coursework.assignment import Assignment, adapters_file
from pa_tutorial.coursework.guard import ALLOWED

README = """\
# {title}

Write your code in {files}.

In the environment of the walk (its README says how to set it up), `pytest` in this folder says how
many points it would be worth.

The tests call only the functions of `adapters.py`; each gives what you wrote for one task. You may
move your code to other files beside it and change the imports in `adapters.py`. Hand in all your
files. Keep backup copies outside this folder: pytest reads the files of a copy inside it too, and
stops there with an error.

The grade is given on other numbers than those of the tests here: the cases have the same names, and
each is worth the same part of the points of its task. An answer may import these modules, and what
lies below them:

{allowed}

One test, without points, says whether the grader would run your files: what an answer may not use,
it refuses.

{tasks}
"""

TESTS = '''\
"""The tasks, case by case; at the end stand the points. Run: pytest"""

import adapters
import pytest
from pa_tutorial.coursework.points import cases, require_accepted, run_case

ASSIGNMENT = "{name}"


def test_the_grader_would_run_these_files() -> None:
    require_accepted(adapters.__file__)


@pytest.mark.parametrize(("task", "case"), cases(ASSIGNMENT))
def test_task(task: str, case: str) -> None:
    run_case(ASSIGNMENT, task, case, getattr(adapters, task))
'''

MOST_BYTES = 2**20  # of a file
HAND_OUT = "TASKS.md"  # of an assignment that has a text of its own
CONFTEST = """\
pytest_plugins = ["pa_tutorial.coursework.points"]
"""


def files(one: Assignment, solved: bool = False) -> dict[str, str]:
    """Name -> text of all files of the folder."""
    return {
        "README.md": readme(one),
        "adapters.py": adapters_file(one),
        **(one.solution if solved else one.starter),
        "test_tasks.py": TESTS.format(name=one.name),
        "conftest.py": CONFTEST,
    }


def readme(one: Assignment) -> str:
    tasks = [
        f"## {number}. `{task.name}` ({task.points:g} points)\n\n{task.text.strip()}"
        for number, task in enumerate(one.tasks, start=1)
    ]
    if HAND_OUT in one.starter:
        tasks = [f"The tasks stand in `{HAND_OUT}`."]
    return README.format(
        title=one.title,
        files=", ".join(f"`{name}`" for name in one.starter if name.endswith(".py")),
        allowed=fill(", ".join(f"`{name}`" for name in ALLOWED), 98),
        tasks="\n\n".join(tasks),
    )


def write_folder(one: Assignment, folder: Path, solved: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files(one, solved).items():
        (folder / name).write_text(text, encoding="utf-8")


def files_of_folder(folder: Path) -> dict[str, str]:
    """What a student handed in, without tests: name -> text of the Python files.

    Raises ValueError for a folder without adapters.py, and for a file that is too large.
    """
    found = {
        path.name: read_text(path)
        for path in sorted(folder.glob("*.py"))
        if path.is_file() and path.name != "conftest.py" and not path.name.startswith("test_")
    }
    if "adapters.py" not in found:
        raise ValueError(f"{folder} has no adapters.py: it is no submission of a plain form")
    return found


def read_text(path: Path) -> str:
    """A file of a student's; without the mark that some editors put in front (BOM)."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path} has {size:,} bytes; it may have {MOST_BYTES:,}")
    return path.read_text(encoding="utf-8-sig", errors="replace")
