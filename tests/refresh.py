"""Write anew what programs write, where it is out of date, and say what changed: `make refresh`.

    python tests/refresh.py                  all that is out of date
    python tests/refresh.py notebooks 09     one kind, or some things of it, out of date or not
    python tests/refresh.py --dry-run        only say what is out of date
    python tests/refresh.py --as-it-stands   make nothing, note all as made: after the tests that
                                             compare it, or after a merge of two refreshes

A thing is up to date if what it is made from (made_from.py), and what stands there, is as it was
when it was made: refreshed.json has a digest of both, one line a thing. Of what shows lines of our
code (notebooks, figures) the whole text of a module counts; else its code only.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
from lost_changes import lost_changes
from made_from import PACKAGE, Sources, hash_of
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
SIMULATED = OURS / "bench" / "simulated.npz"

Made = Iterator[tuple[str, str]]  # as each is done: its name, and what changed


@dataclass(frozen=True)
class Kind:
    """Things that are written in the same way.

    seconds  that one takes, about
    names    of all of them
    digest   of what one is made from, and of what stands there
    make     writes those of the names
    """

    seconds: float
    names: Callable[[], list[str]]
    digest: Callable[[str], str]
    make: Callable[[list[str]], Made]


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


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
    wrong = [one for one in wrong_examples() if repr(case_id) in one]
    stands = json.dumps(json.loads(text(BOUNDS)).get(case_id))
    roots = {module for name in STAGES for module in sources().by_name[name]}
    roots |= {f"{PACKAGE}.checks.running", f"{PACKAGE}.walk.problem"}
    texts = [repr(CASES[case_id]), stands, *wrong]
    return sources().digest(roots, texts, True, frozenset({BOUNDS, OURS / "walk" / "cases.py"}))


def make_bounds(names: list[str]) -> Made:
    from record_bounds import record

    yield from record(names).items()


@cache
def wrong_examples() -> list[str]:
    return [
        repr(one) for path in sorted((HERE / "wrong").glob("*.toml")) for one in load_versions(path)
    ]


# What the simulator says ------------------------------------------------------------------------


def digest_of_file(file: Path) -> Callable[[str], str]:
    """file  with its module as its name: what stands in it is not what it is made from"""
    return lambda module: sources().digest(
        [f"{PACKAGE}.{module}"], [hash_of(file.read_bytes())], True, frozenset({file})
    )


def make_simulated(names: list[str]) -> Made:
    from pa_tutorial.bench import record

    for name in names:
        before = record.load()
        record.record()
        after = record.load()
        same = {a for a in after if a in before and after[a].tobytes() == before[a].tobytes()}
        yield name, ", ".join(array for array in after if array not in same)


# Exercises: the cells in the notebooks ----------------------------------------------------------


def notebooks() -> list[str]:
    return sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


def with_exercises() -> list[str]:
    return [name for name in notebooks() if f"{PACKAGE}.exercises.{name}" in sources().modules]


def cells_of(name: str) -> list[dict]:
    return json.loads(text(NOTEBOOKS / f"{name}.ipynb"))["cells"]


def digest_of_exercises(name: str) -> str:
    cells = ["".join(c["source"]) for c in cells_of(name) if "exercise" in c["metadata"]]
    return sources().digest([f"{PACKAGE}.exercises.{name}", f"{PACKAGE}.exercises.cells"], cells)


def make_exercises(names: list[str]) -> Made:
    from pa_tutorial.exercises import EXERCISES
    from pa_tutorial.exercises.cells import fill

    for name in names:
        path = NOTEBOOKS / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        if changed := fill(notebook, [e for e in EXERCISES.values() if e.notebook == name]):
            nbformat.write(notebook, path)
        yield name, ", ".join(changed)


# What notebooks print, and the figures of the pages ---------------------------------------------


def digest_of_notebook(name: str) -> str:
    """Of the code in its cells and what they print; its Markdown may change."""
    cells = [cell for cell in cells_of(name) if cell["cell_type"] == "code"]
    code = "\n".join("".join(cell["source"]) for cell in cells)
    roots = sources().parts(code, NOTEBOOKS).modules
    roots |= {f"{PACKAGE}.exercises.{name}"} & sources().modules.keys()
    return sources().digest(roots, [code, json.dumps([cell["outputs"] for cell in cells])])


def make_notebooks(names: list[str]) -> Made:
    from forked_kernels import client_type
    from run_notebooks import execute, keep

    os.environ[RECORDING] = "1"
    for name in names:
        path = NOTEBOOKS / f"{name}.ipynb"
        before = cells_of(name)
        nbformat.write(keep(execute(path, client_type())), path)
        changed = [
            number
            for number, (old, new) in enumerate(zip(before, cells_of(name), strict=True), start=1)
            if old.get("outputs") != new.get("outputs")
        ]
        yield name, "what it prints in cell " + ", ".join(map(str, changed)) if changed else ""


def digest_of_figure(file: str) -> str:
    return sources().digest([f"{PACKAGE}.viz.__main__"], [text(FIGURES / file)])


def make_figures(names: list[str]) -> Made:
    from pa_tutorial.viz.__main__ import FIGURES as DRAWN
    from pa_tutorial.viz.__main__ import PAGES
    from pa_tutorial.viz.style import svg

    for path in (FIGURES / name for name in names):
        before = path.read_bytes()
        if path.suffix == ".html":
            PAGES[path.stem]().save_html(path)
        else:
            path.write_bytes(svg(DRAWN[path.stem]()))
        yield path.name, "" if path.read_bytes() == before else "drawn anew"


KINDS = {  # in this order: what is written first is read by those that follow
    "bounds": Kind(2.5, lambda: list(CASES), digest_of_bounds, make_bounds),
    "simulated": Kind(5, lambda: ["bench.record"], digest_of_file(SIMULATED), make_simulated),
    "exercises": Kind(0.2, with_exercises, digest_of_exercises, make_exercises),
    "notebooks": Kind(10, notebooks, digest_of_notebook, make_notebooks),
    "figures": Kind(
        0.5, lambda: sorted(p.name for p in FIGURES.iterdir()), digest_of_figure, make_figures
    ),
}


def recorded() -> dict[str, str]:
    """ "notebooks 09_query_and_key" -> digest"""
    return json.loads(text(DIGESTS)) if DIGESTS.exists() else {}


def note(found: dict[str, str]) -> None:
    """Write digests into refreshed.json, and drop those of things that are gone."""
    known = recorded() | found
    names = [f"{kind} {name}" for kind, things in KINDS.items() for name in things.names()]
    kept = {name: known[name] for name in names if name in known}
    DIGESTS.write_text(json.dumps(kept, indent=0) + "\n", encoding="utf-8", newline="\n")


def out_of_date(kind: str) -> list[str]:
    known = recorded()
    things = KINDS[kind]
    return [n for n in things.names() if known.get(f"{kind} {n}") != things.digest(n)]


def refresh(kind: str, names: list[str]) -> None:
    """Make things, and note each as it is done: an interrupt loses only what was begun."""
    minutes = KINDS[kind].seconds * len(names) / 60
    long = f"; about {minutes:.0f} minutes" if minutes > 1 else ""
    print(f"{kind}: {len(names)} of {len(KINDS[kind].names())} to make{long}", flush=True)
    for name, changed in KINDS[kind].make(names):
        note({f"{kind} {name}": KINDS[kind].digest(name)})
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
            note({f"{kind} {name}": KINDS[kind].digest(name) for name in names})
        elif args.kind and not args.dry_run:
            begins = tuple(args.names) or ("",)
            refresh(kind, [name for name in names if name.startswith(begins)])
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
