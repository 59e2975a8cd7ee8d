"""The pages beside the notebooks: each link leads to a place that holds what the link names.

A link to a cell or to a file of the package has terms in backticks: [09 `qk_dot`](...).
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
LINK = re.compile(r"\[((?:`[^`]*`|[^\[\]`])*)\]\(([^)#\s]+\.(?:ipynb|py))(?:#([\w=-]+))?\)")
ROW = re.compile(r"^\| (?!---|what is said)", re.MULTILINE)
MOST_BOXES = 8

each_page = pytest.mark.parametrize("name", ["INDEX", "ERRATA", "QUESTIONS", "MONDAY"])


@cache
def page(name: str) -> str:
    return (NOTEBOOKS / f"{name}.md").read_text(encoding="utf-8")


@cache
def cells(notebook: str) -> dict[str, str]:
    """Id -> what a cell says and prints."""
    return {
        cell.id: "\n".join([cell.source, *(o.get("text", "") for o in cell.get("outputs", []))])
        for cell in nbformat.read(NOTEBOOKS / notebook, as_version=4).cells
    }


def links(text: str) -> Iterator[tuple[list[str], str, str]]:
    """The terms of each link, the file it leads to, and the place there."""
    for label, file, place in LINK.findall(text):
        yield re.findall(r"`([^`]+)`", label), file, place.removeprefix("cell-id=")


def says(text: str, term: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(term)}(?!\w)", text) is not None


@each_page
def test_a_link_leads_to_a_cell_or_a_file_that_is_gone(name: str) -> None:
    gone = [file for _, file, _ in links(page(name)) if not (NOTEBOOKS / file).exists()]
    to_cells = [(file, place) for _, file, place in links(page(name)) if file.endswith("ipynb")]
    gone += [place for file, place in to_cells if place and place not in cells(file)]
    assert not gone


@each_page
def test_a_place_does_not_hold_the_term_of_its_link(name: str) -> None:
    wrong = []
    for terms, file, place in links(page(name)):
        if file.endswith("py"):
            text = (NOTEBOOKS / file).read_text(encoding="utf-8")
        elif place:
            text = cells(file)[place]
        else:
            continue
        if not terms or not all(says(text, term) for term in terms):
            wrong.append((terms, file, place))
    assert not wrong


def test_an_error_of_the_sources_has_neither_a_cell_nor_a_reason() -> None:
    shown, read = page("ERRATA").split("## Read, not run")
    rows = [line for line in shown.splitlines() if ROW.match(line)]
    assert len(rows) + len(ROW.findall(read)) >= 58  # none gets lost
    assert not [row for row in rows if not list(links(row))]


def test_a_question_has_not_one_cell() -> None:
    answers = [text for text in page("QUESTIONS").split("\n\n") if text.startswith("**")]
    assert len(answers) > 30
    assert not [text for text in answers if len(list(links(text))) != 1]


def test_too_many_boxes_of_bugs() -> None:
    found = [
        cell for path in NOTEBOOKS.glob("*.ipynb") for cell, text in cells(path.name).items()
        if "A bug you could make" in text
    ]  # fmt: skip
    assert len(found) <= MOST_BOXES, found
