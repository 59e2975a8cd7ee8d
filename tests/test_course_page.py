"""COURSE.md and README.md are true: lines and minutes of each notebook, and every sum of them.

The rule, an estimate: 120 words and 12 lines of code a minute; a blank or an exercise takes 10, 20
or 40 minutes at most, by its level, and half of that at least.
"""

import re
from math import ceil
from pathlib import Path

import nbformat
import pytest

from pa_tutorial.exercises import exercises_of
from tests.house_size import words_of_notebook

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "COURSE.md").read_text(encoding="utf-8")
FRONT_PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
MOST = {"easy": 10, "medium": 20, "hard": 40}
SESSIONS = re.findall(
    r"^\| (\d) · [^|]+ \| ([^|]+) \| (\d+) \| ([^|]+) \| (\d+) \|$", PAGE, re.MULTILINE
)


def minutes(path: Path) -> int:
    """To read and run it, rounded up to five; without what is folded."""
    cells = nbformat.read(path, as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    lines = sum(bool(line.strip()) for source in code for line in source.splitlines())
    return 5 * ceil((words_of_notebook(path) / 120 + lines / 12) / 5)


def most(path: Path) -> dict[str, int]:
    """Name of each blank and exercise of a notebook -> the minutes that it takes at most."""
    return {one.name: MOST[one.table["level"]] for one in exercises_of(path.stem)}


def title_of(path: Path) -> str:
    title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0]
    return title.removeprefix("# ").replace(" · ", " ")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_notebook_has_a_row_with_its_lines_and_minutes(path: Path) -> None:
    link = f"| [{title_of(path)}](notebooks/{path.name}) |"
    lines = sum(one.num_lines for one in exercises_of(path.stem)) or "none"
    writing = sum(most(path).values())
    at_most = f"{writing // 2}–{writing}" if writing else "–"
    assert f"{link} {minutes(path)} | {at_most} |" in PAGE
    row = rf"^{re.escape(link)} .+ \| {lines} \| {minutes(path)} \|$"
    assert re.search(row, FRONT_PAGE, re.MULTILINE), row


def listed(text: str) -> list[Path]:
    """The notebooks of "00, 03 to 06 and 24"."""
    ranges = re.findall(r"\b(\d\d)(?: to (\d\d))?\b", text)
    numbers = {n for first, last in ranges for n in range(int(first), int(last or first) + 1)}
    return [path for path in NOTEBOOKS if int(path.name[:2]) in numbers]


def way(name: str) -> str:
    return re.search(rf"\*\*{name}\*\*(.+)", FRONT_PAGE).group(1)


def hours(num_minutes: float) -> int:
    return ceil(num_minutes / 60)


def test_watching_takes_the_minutes_that_its_words_take() -> None:
    words = sum(map(words_of_notebook, listed(way("Watch it").partition(":")[2])))
    assert f"in about {5 * round(words / 120 / 5)} minutes" in way("Watch it")


def test_writing_takes_the_hours_and_days_of_its_notebooks() -> None:
    said, _, paths = way("Write it").partition(":")
    read = sum(map(minutes, listed(paths)))
    written = sum(sum(most(path).values()) for path in listed(paths))
    least, longest = hours(read + written / 2), hours(read + written)
    days = f"{ceil(least / 6)} to {ceil(longest / 6)} days of six hours"
    assert f"in {least} to {longest} hours, {days}" in said
    assert [path.stem[:2] for path in listed(paths)] == [f"{n:02}" for n in range(16)]


def test_the_way_for_monday_has_what_its_page_links_to_and_takes_its_hours() -> None:
    """Each kernel has its own list, and its own table in MONDAY.md."""
    monday = (ROOT / "notebooks" / "MONDAY.md").read_text(encoding="utf-8")
    paths = dict(re.findall(r"for (\w+),? ([^;.]+)[;.]", way("Change it on Monday")))
    taken = [hours(sum(map(minutes, listed(path)))) for path in paths.values()]
    assert f"in {min(taken)} to {max(taken)} hours" in way("Change it on Monday")
    read = " | ".join(str(sum(map(minutes, listed(path)))) for path in paths.values())
    assert f"| the notebooks | {read} |" in monday
    for kernel, path in paths.items():
        assert f"for {kernel}, {path}" in monday
        table = re.search(rf"^## The {kernel} kernels?\n(.*?)^## ", monday, re.M | re.S).group(1)
        assert set(re.findall(r"\]\((\w+\.ipynb)", table)) <= {p.name for p in listed(path)}


def test_the_first_notebook_says_the_times_that_the_front_page_says() -> None:
    times = r"in (?:about )?\d+ (?:to \d+ )?(?:minutes|hours)"
    ways = FRONT_PAGE.partition("## Three ways")[2].partition("\n## ")[0]
    first = "\n".join(cell.source for cell in nbformat.read(NOTEBOOKS[0], as_version=4).cells)
    assert re.findall(times, first) == re.findall(times, ways)


def planned(cell: str) -> int:
    """The minutes of what a session links to (to read), of "all of" a link, and of each name."""
    by_name = {name: took for path in NOTEBOOKS for name, took in most(path).items()}
    reading = sum(map(minutes, listed(" ".join(re.findall(r"\[(\d\d)\]", cell)))))
    whole = listed(" ".join(re.findall(r"all of \[(\d\d)\]", cell)))
    writing = sum(sum(most(path).values()) for path in whole)
    return reading + writing + sum(by_name[name] for name in re.findall(r"`(\w+)`", cell))


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session[0])
def test_a_session_fits_its_ninety_minutes(session: tuple[str, ...]) -> None:
    _, in_class, in_class_minutes, at_home, at_home_minutes = session
    assert in_class_minutes == str(planned(in_class))
    assert at_home_minutes == str(planned(at_home))
    assert planned(in_class) <= 90


def test_there_are_six_sessions() -> None:
    assert len(SESSIONS) == 6
