"""COURSE.md is true: minutes, commands and numbers; README.md has the same minutes."""

import re
from math import ceil
from pathlib import Path

import nbformat
import pytest

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
