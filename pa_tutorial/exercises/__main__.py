"""Write text, stub and attempt of every exercise into the notebooks.

    python -m pa_tutorial.exercises            write them
    python -m pa_tutorial.exercises --check    say whether they are up to date

A notebook holds three cells for each exercise, which name it in their metadata:
{"exercise": name, "part": "text" | "stub" | "attempt"}.
"""

import argparse
import sys
from pathlib import Path

import nbformat

from pa_tutorial.exercises import EXERCISES, Exercise

NOTEBOOKS = Path("notebooks")
PARTS = ("text", "stub", "attempt")


def cell_sources(exercise: Exercise, number: int) -> dict[str, str]:
    heading = "" if exercise.is_warm_up else f"### Exercise {number}: `{exercise.name}`\n\n"
    return {
        "text": heading + exercise.text,
        "stub": exercise.stub,
        "attempt": f'attempt("{exercise.name}", {exercise.name})',
    }


def fill(notebook: nbformat.NotebookNode, exercises: list[Exercise]) -> bool:
    """Put the sources into the cells; True if anything changed. Every cell must be there once."""
    changed, number = False, 0
    for exercise in exercises:
        number += not exercise.is_warm_up
        for part, source in cell_sources(exercise, number).items():
            mark = {"exercise": exercise.name, "part": part}
            cells = [c for c in notebook.cells if mark.items() <= c.metadata.items()]
            if len(cells) != 1:
                raise ValueError(
                    f"{exercise.notebook} has {len(cells)} cells with the metadata {mark}; "
                    "it must have one"
                )
            changed |= cells[0].source != source
            cells[0].source = source
    return changed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if out of date")
    check_only = parser.parse_args().check
    outdated = []
    for name in sorted({exercise.notebook for exercise in EXERCISES.values()}):
        path = NOTEBOOKS / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        if fill(notebook, [e for e in EXERCISES.values() if e.notebook == name]):
            outdated.append(str(path))
            if not check_only:
                nbformat.write(notebook, path)
    for path in outdated:
        print(f"{path} {'is out of date' if check_only else 'written'}")
    return 1 if check_only and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
