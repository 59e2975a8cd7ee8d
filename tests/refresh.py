"""Write anew what programs write, and say what changed: `make refresh`.

python -m tests.refresh                  all of it: a quarter of an hour
python -m tests.refresh notebooks 09     one kind, or some things of it
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat

from pa_tutorial.exercises import EXERCISES
from pa_tutorial.exercises.cells import fill
from pa_tutorial.viz.__main__ import FIGURES, PAGES
from pa_tutorial.viz.score import RECORDING
from pa_tutorial.viz.style import svg
from pa_tutorial.walk.cases import CASES
from tests.lost_changes import lost_changes
from tests.record_bounds import record as make_bounds
from tests.run_notebooks import NOTEBOOKS, execute, keep
from tests.same_output import made_here

FOLDER = Path(__file__).parent.parent / "figures"


@dataclass(frozen=True)
class Kind:
    """Things that are written in the same way.

    seconds  that one takes, about
    names    of all of them
    make     writes one; what changed
    """

    seconds: float
    names: list[str]
    make: Callable[[str], str]


def cells_of(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def make_notebook(name: str) -> str:
    """The exercises' cells, and what all cells print."""
    os.environ[RECORDING] = "1"
    path = NOTEBOOKS / f"{name}.ipynb"
    before, notebook = cells_of(path), nbformat.read(path, as_version=4)
    changed = fill(notebook, [e for e in EXERCISES.values() if e.notebook == name])
    nbformat.write(notebook, path)
    nbformat.write(keep(execute(path)), path)
    pairs = enumerate(zip(before, cells_of(path), strict=True), start=1)
    printed = [str(n) for n, (old, new) in pairs if old.get("outputs") != new.get("outputs")]
    return ", ".join(changed + ["what it prints in cell " + ", ".join(printed)] * bool(printed))


def make_figure(file: str) -> str:
    """A figure of the pages."""
    path = FOLDER / file
    before = path.read_bytes()
    if path.suffix == ".html":
        PAGES[path.stem]().save_html(path)
    else:
        path.write_bytes(svg(FIGURES[path.stem]()))
    return "" if path.read_bytes() == before else "drawn anew"


KINDS = {  # in this order: what is written first is read by those that follow
    "bounds": Kind(6, list(CASES), make_bounds),
    "notebooks": Kind(12, sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")), make_notebook),
    "figures": Kind(0.5, sorted(path.name for path in FOLDER.iterdir()), make_figure),
}


def refresh(kind: str, begins: tuple[str, ...]) -> None:
    names = [name for name in KINDS[kind].names if name.startswith(begins)]
    minutes = KINDS[kind].seconds * len(names) / 60
    print(f"{kind}: {len(names)} to make, about {minutes:.0f} minutes", flush=True)
    for name in names:
        print(f"  {name}: {KINDS[kind].make(name) or 'as it was'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", nargs="?", choices=KINDS, help="none: all of them")
    parser.add_argument("names", nargs="*", help="how names of that kind begin; none: all of it")
    args = parser.parse_args()
    if not made_here():
        print("Written on Linux on x86-64; here, last digits may be rounded otherwise.")
    for kind in [args.kind] if args.kind else KINDS:
        refresh(kind, tuple(args.names) or ("",))
    if lost := lost_changes():
        print("Changes of our code that lost their place:", *lost, sep="\n")


if __name__ == "__main__":
    main()
