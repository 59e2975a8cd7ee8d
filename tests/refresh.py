"""Rewrite what programs write, and print what changed: `make refresh`.

python -m tests.refresh            every notebook and figure
python -m tests.refresh 09 map     those whose names begin like this

What a test judges by is not written here: bounds have their own command, `make bounds`.
"""

import json
import os
import sys
from pathlib import Path

import nbformat

from pa_tutorial.exercises import EXERCISES
from pa_tutorial.exercises.blank import blanks_of
from pa_tutorial.exercises.cells import fill
from pa_tutorial.exercises.in_a_picture import draw_blank_to_right
from pa_tutorial.printing import print_anything
from pa_tutorial.viz.__main__ import FIGURES as OF_VIZ
from pa_tutorial.viz.__main__ import MOVING, PAGES
from pa_tutorial.viz.bill import RECORDING
from pa_tutorial.viz.style import svg
from tests.lost_changes import lost_changes, lost_names
from tests.run_notebooks import NOTEBOOKS, execute, keep
from tests.same_output import made_here

FOLDER = Path(__file__).parent.parent / "figures"
FIGURES = OF_VIZ | {"blank_to_right": draw_blank_to_right}
# On GitHub, README's pictures are on a dark page where a reader chose one; the site does it itself.
DARK = b"@media(prefers-color-scheme:dark){svg{filter:invert(.9) hue-rotate(180deg)}}</style>"


def drawn(name: str) -> bytes:
    """A figure as it is committed."""
    picture = svg(FIGURES[name]())
    return picture.replace(b"</style>", DARK, 1) if name == "blank_to_right" else picture


def cells_of(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def make_notebook(name: str) -> str:
    """The exercises' cells, the outputs of all cells, and what the compiler answers them.

    Returns the ids of the cells that changed.
    """
    os.environ[RECORDING] = "1"
    path = NOTEBOOKS / name
    before, notebook = cells_of(path), nbformat.read(path, as_version=4)
    exercises = [e for e in EXERCISES.values() if e.notebook == path.stem]
    changed = fill(notebook, exercises, blanks_of(path.stem))
    nbformat.write(notebook, path)
    nbformat.write(keep(execute(path)), path)
    pairs = zip(before, cells_of(path), strict=True)
    printed = [new["id"] for old, new in pairs if old.get("outputs") != new.get("outputs")]
    return ", ".join(changed + printed)


def make_figure(file: str) -> str:
    path = FOLDER / file
    before = path.read_bytes()
    if path.suffix == ".html":
        PAGES[path.stem]().save_html(path)
    elif path.stem in MOVING:
        path.write_text(MOVING[path.stem](), encoding="utf-8")
    else:
        path.write_bytes(drawn(path.stem))
    return "" if path.read_bytes() == before else "redrawn"


MAKERS = dict.fromkeys(sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")), make_notebook)
MAKERS |= dict.fromkeys(sorted(path.name for path in FOLDER.iterdir()), make_figure)


def main() -> None:
    begins = tuple(sys.argv[1:]) or ("",)
    if not made_here():
        print("Committed files are written on Linux on x86-64; here, last digits may differ.")
    for name, make in MAKERS.items():
        if name.startswith(begins):
            print(f"{name}: {make(name) or 'unchanged'}", flush=True)
    if lost := lost_changes() + lost_names():
        print("Places in our code that are gone:", *lost, sep="\n")


if __name__ == "__main__":
    print_anything()
    main()
