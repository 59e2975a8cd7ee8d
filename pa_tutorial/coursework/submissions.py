"""Read what students hand in, as Python files: a folder, or a notebook."""

from pathlib import Path

import nbformat

from pa_tutorial.coursework.excerpts import excerpt, statements
from pa_tutorial.coursework.tasks import Assignment

MOST_BYTES = 2**23  # of a file; a notebook keeps its figures


def read_submission(path: Path, assignment: Assignment) -> dict[str, str]:
    """Name -> text of the Python files that are graded.

    Raises ValueError for a file that is no notebook or is too large, and for what has nothing of
    this assignment; OSError for what cannot be read.
    """
    files = files_in_folder(path) if path.is_dir() else files_in_notebook(path, assignment)
    if not files.keys() & assignment.starter.keys():
        raise ValueError(f"it has no {' or '.join(assignment.starter)} of {assignment.name}")
    return files


def files_in_folder(folder: Path) -> dict[str, str]:
    """All its Python files but tests."""
    paths = (path for path in sorted(folder.glob("*.py")) if path.is_file())
    mine = (p for p in paths if p.name != "conftest.py" and not p.name.startswith("test_"))
    return {path.name: read_text(path) for path in mine}


def files_in_notebook(path: Path, assignment: Assignment) -> dict[str, str]:
    """The functions of the assignment, wherever they stand in the notebook, with what they need."""
    text = read_text(path)
    try:
        cells = nbformat.reads(text, as_version=4).cells
        known = statements(cell.source for cell in cells if cell.cell_type == "code")
    except Exception as error:  # nbformat raises many kinds
        raise ValueError(f"it is not a notebook: {error!r:.200}") from None
    names: dict[str, list[str]] = {}
    alone: dict[str, dict[str, None]] = {}  # each text once, in order
    for task in assignment.tasks:
        for file, name in task.places:
            own = [one for one in known if name in one.binds]
            if own and task.needs is None:
                names.setdefault(file, []).append(name)
            elif own:
                alone.setdefault(file, {}).update({task.needs: None, excerpt([name], own): None})
    return {
        file: "\n\n\n".join([excerpt(names.get(file, []), known), *alone.get(file, ())]) + "\n"
        for file in {**names, **alone}
    }


def read_text(path: Path) -> str:
    """A student's file; without the mark that some editors put in front (BOM)."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path.name} has {size:,} bytes; it may have {MOST_BYTES:,}")
    return path.read_text(encoding="utf-8-sig", errors="replace")
