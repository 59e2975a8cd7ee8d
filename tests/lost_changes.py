"""Which changes have lost their place: what they replace no longer stands in its file once.

python -m tests.lost_changes    lists them; exits with 1 if there are any
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial

from pa_tutorial.coursework.window import files
from pa_tutorial.exercises import EXERCISES
from tests.wrong_examples import load_examples


def every_change() -> Iterator[tuple[str, Callable[[], object]]]:
    """Whose it is, and what makes it: of wrong examples, exercises and the assignment."""
    for example in load_examples():
        yield f"wrong example {example.name}", example.sources
    for exercise in EXERCISES.values():
        for wrong in exercise.wrong:
            yield f"exercise {wrong.name}: {wrong.why}", partial(exercise.wrong_source, wrong)
    yield "window: starter", files.starter_files
    yield "window: solution", files.solution_files
    for wrong in files.WRONG:
        yield f"window: {wrong.name}: {wrong.why}", partial(files.solution_files, wrong.changes)


def lost_changes() -> list[str]:
    """What is lost, and who names it: one text for each."""
    owners: dict[str, list[str]] = {}
    for owner, make in every_change():
        try:
            make()
        except (KeyError, OSError, ValueError) as error:
            owners.setdefault(f"{type(error).__name__}: {error}", []).append(owner)
    return [f"{'; '.join(names)}: {why}" for why, names in owners.items()]


if __name__ == "__main__":
    lost = lost_changes()
    print(*lost, sep="\n")
    sys.exit(bool(lost))
