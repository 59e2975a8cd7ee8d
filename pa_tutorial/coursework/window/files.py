"""The files of the assignment, as a student gets them and as they are solved."""

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pa_tutorial
from pa_tutorial.exercises.exercise import stub_of
from pa_tutorial.text_changes import Change, changed_texts, compiled, load_versions

PACKAGE = Path(pa_tutorial.__file__).parent
KERNEL, REDUCE, PLAIN = "paged_attention_window.py", "reduce_window.py", "window.py"
SOLVED = "coursework/window/solved.py"
STARTER, SOLUTION = load_versions(Path(__file__).with_name("changes.toml"))
# Common mistakes: changes to the solution that must lose points, each with a case that fails
# (more["fails"]).
WRONG = load_versions(Path(__file__).with_name("wrong.toml"))
NUMBERS = count(1)

# task -> what is graded: (file, function), one or more
PLACES: dict[str, tuple[tuple[str, str], ...]] = {
    "blocks_in_window": ((PLAIN, "blocks_in_window"),),
    "v1": ((KERNEL, "paged_attention"),),
    "v2": ((KERNEL, "paged_attention"), (REDUCE, "reduce")),
    "shared_bytes": ((PLAIN, "shared_bytes"),),
}


def starter_files() -> dict[str, str]:
    """File name -> text: what a student gets."""
    kernels = changed_texts(STARTER.changes, _live)
    return {
        KERNEL: kernels["kernels/paged_attention.py"],
        REDUCE: kernels["kernels/reduce.py"],
        PLAIN: stub_of(_live(SOLVED)) + "\n",
    }


def solution_files(changes: Iterable[Change] = ()) -> dict[str, str]:
    """File name -> text: the same files, solved; then with some changes."""
    files = starter_files() | {PLAIN: _live(SOLVED)}
    files |= changed_texts(SOLUTION.changes, files.__getitem__)
    return files | changed_texts(changes, files.__getitem__)


def load(files: Mapping[str, str]) -> dict[str, Any]:
    """task -> what its trials take, of the texts of files."""
    names = {file: _names_of(text, f"<{next(NUMBERS)} {file}>") for file, text in files.items()}
    answers = {
        task: tuple(names[file][name] for file, name in places) for task, places in PLACES.items()
    }
    return {task: found if len(found) > 1 else found[0] for task, found in answers.items()}


@cache
def solution() -> dict[str, Any]:
    """For each task what its trials take, solved."""
    return load(solution_files())


def _live(file: str) -> str:
    return (PACKAGE / file).read_text(encoding="utf-8")


def _names_of(text: str, file: str) -> dict[str, Any]:
    names = {"__name__": __name__, "__file__": file}
    exec(compiled(text, file), names)
    return names
