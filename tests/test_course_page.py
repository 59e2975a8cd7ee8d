"""COURSE.md is true: minutes, commands and numbers; README.md has the same minutes."""

import re
import shlex
from math import ceil
from pathlib import Path

import nbformat
import pytest

from pa_tutorial.coursework.__main__ import parse
from pa_tutorial.coursework.apart import Limits
from pa_tutorial.coursework.assignment import POINTS, SLIDING_WINDOW, assignment
from tests.house_size import words_of_notebook

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "COURSE.md").read_text(encoding="utf-8")
FRONT_PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


def minutes(path: Path) -> int:
    """120 words and 12 lines of code a minute, rounded up to five; without what is folded."""
    cells = nbformat.read(path, as_version=4).cells
    words = words_of_notebook(path)
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    lines = sum(bool(line.strip()) for source in code for line in source.splitlines())
    return 5 * ceil((words / 120 + lines / 12) / 5)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_notebook_has_a_row_with_its_minutes(path: Path) -> None:
    title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0]
    title = title.removeprefix("# ").replace(" · ", " ")
    link = f"| [{title}](notebooks/{path.name}) |"
    assert f"{link} {minutes(path)} |" in PAGE
    assert re.search(rf"^{re.escape(link)} .+ \| {minutes(path)} \|$", FRONT_PAGE, re.MULTILINE)


def test_commands_numbers_and_cases_are_those_of_the_code() -> None:
    commands = re.findall(r"^python -m pa_tutorial\.coursework (.+)$", PAGE, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        parse(shlex.split(command))
    limits = Limits()
    assert f"is worth {POINTS:g} points" in PAGE
    assert f"`--seconds` ({limits.seconds:g} by default" in PAGE
    assert f"`--megabytes` of memory ({limits.megabytes:,} by default, on Linux)" in PAGE
    tasks = assignment(SLIDING_WINDOW).tasks
    told = re.search(r"write four things: (.*?)\. The simulator", PAGE)[1]
    assert all(f"({t.points:g})" in told or f"({t.points:g} points)" in told for t in tasks)
    names = {trial.name for task in tasks for trial in task.trials(0)}
    told = re.search(r"What they stumble over.*", PAGE)[0]
    assert set(re.findall(r"\(`(\w+)`\)", told)) <= names
