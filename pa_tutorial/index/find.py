"""Where the text of an entry stands: the number of a line, the number of a cell."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from pa_tutorial.index.entry import Cell, Line

ROOT = Path(__file__).parents[2]


class EntryError(ValueError):
    """An entry does not say what it should; the message names it."""


@dataclass(frozen=True)
class FoundCell:
    """A cell, as the index names it.

    number    counted from 1, text and code alike
    id        the cell's own, which JupyterLab finds
    heading   the last one at or above the text of the entry
    is_code   code or text
    runnable  code with an output, or text beside such a cell
    """

    number: int
    id: str
    heading: str
    is_code: bool
    runnable: bool


def find_line(entry: str, line: Line, root: Path = ROOT) -> int:
    """The number of the line, counted from 1. EntryError unless it is there exactly once."""
    path = root / line.path
    if not path.is_file():
        raise EntryError(f"{entry}: there is no file {line.path}")
    rows = path.read_text(encoding="utf-8").splitlines()
    numbers = [number for number, row in enumerate(rows, start=1) if line.text in row]
    require_one(entry, numbers, "lines", f"of {line.path}", line.text)
    return numbers[0]


def find_cell(entry: str, cell: Cell, root: Path = ROOT) -> FoundCell:
    """The cell with this text. EntryError unless there is exactly one."""
    path = root / "notebooks" / f"{cell.notebook}.ipynb"
    if not path.is_file():
        raise EntryError(f"{entry}: there is no notebook {cell.notebook}")
    cells = read_cells(path)
    places = [place for place, found in enumerate(cells) if cell.text in found.source]
    require_one(entry, [place + 1 for place in places], "cells", f"of {cell.notebook}", cell.text)
    place = places[0]
    return FoundCell(
        number=place + 1,
        id=cells[place].id,
        heading=heading_above(cells, place, cell.text),
        is_code=cells[place].cell_type == "code",
        runnable=is_runnable(cells, place),
    )


def require_one(entry: str, numbers: list[int], what: str, where: str, text: str) -> None:
    if len(numbers) != 1:
        found = f": {', '.join(map(str, numbers))}" if numbers else ""
        raise EntryError(
            f"{entry}: {len(numbers)} {what} {where} have the text {text!r}{found}; it must be one"
        )


@cache
def read_cells(path: Path) -> list[NotebookNode]:
    return nbformat.read(path, as_version=4).cells


def heading_above(cells: list[NotebookNode], place: int, text: str) -> str:
    """The last heading before the text, in its own cell or in a cell above."""
    own = cells[place].source
    own = own[: own.index(text) + len(text)]
    sources = [*(cell.source for cell in cells[:place]), own]
    headings = [
        row.lstrip("#").strip()
        for cell, source in zip(cells, sources, strict=False)
        if cell.cell_type == "markdown"
        for row in source.splitlines()
        if row.startswith("#")
    ]
    return headings[-1] if headings else ""


def is_runnable(cells: list[NotebookNode], place: int) -> bool:
    """Code with an output, or text directly beside such a cell."""
    if cells[place].cell_type == "code":
        return bool(cells[place].outputs)
    beside = cells[max(0, place - 1) : place] + cells[place + 1 : place + 2]
    return any(cell.cell_type == "code" and cell.outputs for cell in beside)


def find_run(entry: str, cells: tuple[Cell, ...], root: Path = ROOT) -> list[FoundCell]:
    """The cells of an entry. EntryError unless a reader can run what it says."""
    found = [find_cell(entry, cell, root) for cell in cells]
    for cell, named in zip(found, cells, strict=True):
        if not cell.runnable:
            raise EntryError(
                f"{entry}: cell {cell.number} of {named.notebook} has no output, and no "
                "cell with an output beside it"
            )
    if not any(cell.is_code for cell in found):
        raise EntryError(f"{entry}: no code cell shows it")
    return found
