"""Write anew what programs write, where it is out of date, and say what changed: `make refresh`.

    python tests/refresh.py                  all that is out of date
    python tests/refresh.py notebooks 09     one kind, or some things of it, out of date or not
    python tests/refresh.py --dry-run        only say what is out of date
    python tests/refresh.py --as-it-stands   make nothing, note all as made: after the tests that
                                             compare it, or after a merge of two refreshes

A thing is up to date if what it is made from (made_from.py), and what stands there, is as it was
when it was made: refreshed.json has a digest of both, one line a thing.
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
from lost_changes import lost_changes
from made_from import PACKAGE, Sources, text
from same_output import made_here

from pa_tutorial.checks import OTHERS
from pa_tutorial.text_changes import load_versions
from pa_tutorial.viz.score import RECORDING
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES

HERE = Path(__file__).parent
OURS = HERE.parent / PACKAGE
NOTEBOOKS, FIGURES = HERE.parent / "notebooks", HERE.parent / "figures"
DIGESTS = HERE / "refreshed.json"
BOUNDS = OURS / "checks" / "bounds.json"


@dataclass(frozen=True)
class Kind:
    """Things that are written in the same way.

    seconds  that one takes, about
    names    of all of them
    digest   of what one is made from, and of what stands there
    make     writes one; what changed
    """

    seconds: float
    names: Callable[[], list[str]]
    digest: Callable[[str], str]
    make: Callable[[str], str]


@cache
def sources() -> Sources:
    at = {name: stage.at for name, stage in STAGES.items()} | OTHERS
    by_name = {name: {f"{PACKAGE}.{path.partition(':')[0]}"} for name, path in at.items()}
    for name, stage in STAGES.items():  # it is checked against those before it
        by_name[name].update(*(by_name[before] for before in stage.checked_against))
    return Sources(HERE.parent, by_name)


# Bounds of the checks, by case ------------------------------------------------------------------


def digest_of_bounds(case_id: str) -> str:
    """Not of the file of all cases, but of this one and the wrong examples that name it."""
    stands = json.dumps(json.loads(text(BOUNDS)).get(case_id))
    wrong = [one for one in wrong_examples() if repr(case_id) in one]
    roots = {module for name in STAGES for module in sources().by_name[name]}
    roots |= {f"{PACKAGE}.checks.running", f"{PACKAGE}.walk.problem"}
    but = frozenset({BOUNDS, OURS / "walk" / "cases.py"})
    return sources().digest(roots, [repr(CASES[case_id]), stands, *wrong], but)


@cache
def wrong_examples() -> list[str]:
    files = sorted((HERE / "wrong").glob("*.toml"))
    return [repr(version) for file in files for version in load_versions(file)]


def make_bounds(case_id: str) -> str:
    from record_bounds import record

    return record(case_id)


# What the simulator says ------------------------------------------------------------------------


def digest_of_simulated(module: str) -> str:
    return sources().digest([f"{PACKAGE}.{module}"])  # it names the file


def make_simulated(_: str) -> str:
    from pa_tutorial.bench import record

    before = record.load()
    record.record()
    after = record.load()
    same = {a for a in after if a in before and after[a].tobytes() == before[a].tobytes()}
    return ", ".join(array for array in after if array not in same)


# Notebooks: the exercises' cells, and what all cells print --------------------------------------


def notebooks() -> list[str]:
    return sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


def cells_of(name: str) -> list[dict]:
    return json.loads(text(NOTEBOOKS / f"{name}.ipynb"))["cells"]


def digest_of_notebook(name: str) -> str:
    """Of the code in its cells, what they print, and its exercises; its Markdown may change."""
    cells = [c for c in cells_of(name) if c["cell_type"] == "code" or "exercise" in c["metadata"]]
    code = "\n".join("".join(cell["source"]) for cell in cells)
    named = sources().named(code, NOTEBOOKS)
    roots = {module for module, file in sources().modules.items() if file in named}
    roots |= {f"{PACKAGE}.exercises.{name}"} & sources().modules.keys()
    return sources().digest(roots, [code, json.dumps([cell.get("outputs") for cell in cells])])


def make_notebook(name: str) -> str:
    from forked_kernels import client_type
    from run_notebooks import execute, keep

    from pa_tutorial.exercises import EXERCISES
    from pa_tutorial.exercises.cells import fill

    os.environ[RECORDING] = "1"
    path, before = NOTEBOOKS / f"{name}.ipynb", cells_of(name)
    notebook = nbformat.read(path, as_version=4)
    changed = fill(notebook, [e for e in EXERCISES.values() if e.notebook == name])
    nbformat.write(notebook, path)
    nbformat.write(keep(execute(path, client_type())), path)
    pairs = enumerate(zip(before, cells_of(name), strict=True), start=1)
    printed = [str(n) for n, (old, new) in pairs if old.get("outputs") != new.get("outputs")]
    return ", ".join(changed + ["what it prints in cell " + ", ".join(printed)] * bool(printed))


# The figures of the pages -----------------------------------------------------------------------


def digest_of_figure(file: str) -> str:
    return sources().digest([f"{PACKAGE}.viz.__main__"], [text(FIGURES / file)])


def make_figure(file: str) -> str:
    from pa_tutorial.viz.__main__ import FIGURES as DRAWN
    from pa_tutorial.viz.__main__ import PAGES
    from pa_tutorial.viz.style import svg

    path = FIGURES / file
    before = path.read_bytes()
    if path.suffix == ".html":
        PAGES[path.stem]().save_html(path)
    else:
        path.write_bytes(svg(DRAWN[path.stem]()))
    return "" if path.read_bytes() == before else "drawn anew"


def figures() -> list[str]:
    return sorted(path.name for path in FIGURES.iterdir())


KINDS = {  # in this order: what is written first is read by those that follow
    "bounds": Kind(6, lambda: list(CASES), digest_of_bounds, make_bounds),
    "simulated": Kind(5, lambda: ["bench.record"], digest_of_simulated, make_simulated),
    "notebooks": Kind(10, notebooks, digest_of_notebook, make_notebook),
    "figures": Kind(0.5, figures, digest_of_figure, make_figure),
}


def recorded() -> dict[str, str]:
    """ "notebooks 09_query_and_key" -> digest"""
    return json.loads(text(DIGESTS)) if DIGESTS.exists() else {}


def note(kind: str, names: list[str]) -> None:
    """Write digests into refreshed.json, and drop those of things that are gone."""
    known = recorded() | {f"{kind} {name}": KINDS[kind].digest(name) for name in names}
    things = [f"{kind} {name}" for kind in KINDS for name in KINDS[kind].names()]
    kept = {thing: known[thing] for thing in things if thing in known}
    DIGESTS.write_text(json.dumps(kept, indent=0) + "\n", encoding="utf-8", newline="\n")


def out_of_date(kind: str) -> list[str]:
    known, digest = recorded(), KINDS[kind].digest
    return [name for name in KINDS[kind].names() if known.get(f"{kind} {name}") != digest(name)]


def refresh(kind: str, names: list[str]) -> None:
    """Make things, and note each as it is done: an interrupt loses only what was begun."""
    minutes = KINDS[kind].seconds * len(names) / 60
    long = f"; about {minutes:.0f} minutes" if minutes > 1 else ""
    print(f"{kind}: {len(names)} of {len(KINDS[kind].names())} to make{long}", flush=True)
    for name in names:
        changed = KINDS[kind].make(name)
        note(kind, [name])
        print(f"  {name}: {changed or 'as it was'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", nargs="?", choices=KINDS, help="none: all that is out of date")
    parser.add_argument("names", nargs="*", help="how names of that kind begin; none: all of it")
    parser.add_argument("--dry-run", action="store_true", help="say what is out of date")
    parser.add_argument("--as-it-stands", action="store_true", help="note all as made")
    args = parser.parse_args()
    if not made_here():
        print("Written on Linux on x86-64; here, last digits may be rounded otherwise.")
    for kind in [args.kind] if args.kind else KINDS:
        names = KINDS[kind].names()
        if args.as_it_stands:
            note(kind, names)
        elif args.kind and not args.dry_run:
            refresh(kind, [name for name in names if name.startswith(tuple(args.names) or "")])
        elif not (names := out_of_date(kind)):
            print(f"{kind}: up to date")
        elif args.dry_run:
            print(f"{kind}: out of date: {', '.join(names)}")
        else:
            refresh(kind, names)
    if lost := lost_changes():
        print("Changes of our code that lost their place:", *lost, sep="\n")


if __name__ == "__main__":
    main()
