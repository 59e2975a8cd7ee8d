"""How the notebooks are made: one question, few new terms, and a blank soon."""

import re
from functools import cache
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from tests.house_size import words_of_notebook
from tests.run_notebooks import NOTEBOOKS

MAIN = [path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if path.stem[:2] <= "16"]
SIDE = [path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if path.stem[:2] >= "20"]
ALL = [*MAIN, *SIDE]
MOST_WORDS = dict.fromkeys(MAIN, 1_200) | dict.fromkeys(SIDE, 1_500)
MOST_WORDS |= {path: 600 for path in MAIN if path.stem[:2] == "15"}  # it only runs
# A term is in italics where it is defined; most link to the glossary. (In bold: questions.)
TERM = re.compile(r"(?<![\w*])\*(\[[^\]]+\]\(GLOSSARY[^)]*\)|[a-zA-Z][^*\n]*?)\*(?![\w*])")
NOT_FOR_READERS = re.compile(r"^\s*try:|find_spec|\.replace\(\"|re\.sub", re.MULTILINE)


def name_of(path: Path) -> str:
    return path.stem


def cells(path: Path, kind: str = "") -> list[NotebookNode]:
    return [c for c in nbformat.read(path, as_version=4).cells if kind in ("", c.cell_type)]


def terms_of(path: Path) -> list[str]:
    """The terms that a notebook defines, in its order."""
    pages = cells(path, "markdown")[:-1]  # the last names sources
    text = "\n".join(cell.source for cell in pages)
    text = re.sub("<details>.*?</details>|```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    found = [re.sub(r"\[(.*)\]\(.*\)", r"\1", term) for term in TERM.findall(text)]
    return [term for term in dict.fromkeys(found) if term not in titles()]


@cache
def titles() -> set[str]:
    """The titles of the notebooks, which are in italics too."""
    first = [cells(path)[0].source for path in NOTEBOOKS.glob("*.ipynb")]
    return {text.splitlines()[0].partition(" · ")[2] for text in first}


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_a_notebook_has_few_words_and_new_terms(path: Path) -> None:
    assert words_of_notebook(path) <= MOST_WORDS[path]
    assert len(terms_of(path)) <= 10


@pytest.mark.parametrize("path", [p for p in MAIN if p.stem[:2] not in ("00", "15")], ids=name_of)
def test_the_first_blank_comes_within_eight_cells(path: Path) -> None:
    stubs = [number for number, cell in enumerate(cells(path)) if is_stub(cell)]
    assert stubs[0] < 8


def is_stub(cell: NotebookNode) -> bool:
    return cell.metadata.get("part") == "stub"


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_eight_lines_set_a_notebook_up(path: Path) -> None:
    """Those before the first idea, which is the second cell of text."""
    found = cells(path)
    ideas = [number for number, cell in enumerate(found) if cell.cell_type == "markdown"]
    lines = "\n".join(cell.source for cell in found[1 : ideas[1]]).splitlines()
    assert len([line for line in lines if line.strip() and not line.startswith("#")]) <= 8


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_a_readers_cell_has_no_machinery(path: Path) -> None:
    assert not [cell.id for cell in cells(path, "code") if NOT_FOR_READERS.search(cell.source)]
