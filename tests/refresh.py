"""Rewrite what programs write, and print what changed: `make refresh`.

python -m tests.refresh                  everything
python -m tests.refresh notebooks 09     the things of a kind whose names begin like this

What a test judges by is not written here: bounds have their own command, `make bounds`.
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
from tests.lost_changes import lost_changes
from tests.run_notebooks import NOTEBOOKS, execute, keep
from tests.same_output import made_here

FOLDER = Path(__file__).parent.parent / "figures"


@dataclass(frozen=True)
class Kind:
    """Things that are written the same way.

    seconds  one of them takes, about
    names    of all of them
    make     writes one, and returns what changed
    """

    seconds: float
    names: list[str]
    make: Callable[[str], str]


def make_simulated(_: str) -> str:
    """The simulator's results, which a GPU's are compared with."""
    from pa_tutorial.bench import record

    before = record.load()
    record.record()
    after = record.load()
    same = {a for a in after if a in before and after[a].tobytes() == before[a].tobytes()}
    return ", ".join(array for array in after if array not in same)


def cells_of(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def make_notebook(name: str) -> str:
    """The exercises' cells, and the outputs of all cells."""
    os.environ[RECORDING] = "1"
    path = NOTEBOOKS / f"{name}.ipynb"
    before, notebook = cells_of(path), nbformat.read(path, as_version=4)
    changed = fill(notebook, [e for e in EXERCISES.values() if e.notebook == name])
    nbformat.write(notebook, path)
    nbformat.write(keep(execute(path)), path)
    pairs = enumerate(zip(before, cells_of(path), strict=True), start=1)
    printed = [str(n) for n, (old, new) in pairs if old.get("outputs") != new.get("outputs")]
    return ", ".join(changed + ["outputs of cell " + ", ".join(printed)] * bool(printed))


def make_figure(file: str) -> str:
    """A figure of the pages."""
    path = FOLDER / file
    before = path.read_bytes()
    if path.suffix == ".html":
        PAGES[path.stem]().save_html(path)
    else:
        path.write_bytes(svg(FIGURES[path.stem]()))
    return "" if path.read_bytes() == before else "redrawn"


KINDS = {
    "simulated": Kind(5, ["bench.record"], make_simulated),
    "notebooks": Kind(12, sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")), make_notebook),
    "figures": Kind(0.5, sorted(path.name for path in FOLDER.iterdir()), make_figure),
}


def refresh(kind: str, begins: tuple[str, ...]) -> None:
    names = [name for name in KINDS[kind].names if name.startswith(begins)]
    minutes = KINDS[kind].seconds * len(names) / 60
    print(f"{kind}: {len(names)} to make, about {minutes:.0f} minutes", flush=True)
    for name in names:
        print(f"  {name}: {KINDS[kind].make(name) or 'unchanged'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", nargs="?", choices=KINDS, help="default: all kinds")
    parser.add_argument("names", nargs="*", help="beginnings of names; default: all")
    args = parser.parse_args()
    if not made_here():
        print("Committed files are written on Linux on x86-64; here, last digits may differ.")
    for kind in [args.kind] if args.kind else KINDS:
        refresh(kind, tuple(args.names) or ("",))
    if lost := lost_changes():
        print("Wrong examples whose place in our code is gone:", *lost, sep="\n")


if __name__ == "__main__":
    main()
