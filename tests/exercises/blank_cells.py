"""Functions as a reader's cell defines them, and the files where they are saved."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

from pa_tutorial.exercises.blank import Blank, all_blanks
from pa_tutorial.exercises.blank_verdict import verdict
from pa_tutorial.exercises.exercise import compiled
from pa_tutorial.exercises.reader_files import made

IMPORTS = "import math\nfrom numba import cuda, float32, int32, uint32\nWARP_SIZE = 32\n"
NUMBERS = count(1)


def function_of(blank: Blank, text: str, **names: object) -> Callable:
    """The blank's function from a text; names: what else the notebook has, such as constants.

    A notebook of pages has the names of pages.py.
    """
    if blank.file == "pages":
        ours = vars(made("pages")).items()
        names = {name: one for name, one in ours if not name.startswith("_")} | names
    exec(compiled(IMPORTS + text, f"<cell {next(NUMBERS)}>"), names)
    return names[blank.function]


def changed(name: str, *edits: tuple[str, str], **names: object) -> Callable:
    """Our answer to a blank as a reader's, with some edits."""
    text = all_blanks()[name].source
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return function_of(all_blanks()[name], text, **names)


def said(name: str, *edits: tuple[str, str], **names: object) -> str:
    """The verdict on that answer."""
    return verdict(all_blanks()[name], changed(name, *edits, **names))


def change(path: Path, old: str, new: str) -> str:
    """Change a saved file; its text."""
    before = path.read_text(encoding="utf-8")
    assert old in before
    after = before.replace(old, new)
    path.write_text(after, encoding="utf-8", errors="surrogateescape")
    return after


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[!.]*"))
