"""Which changes have lost their place in our code, and which names in INDEX.md have.

python -m tests.lost_changes    lists them; exits with 1 if there are any
"""

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from pa_tutorial.exercises import EXERCISES
from pa_tutorial.printing import print_anything
from tests.coursework.window_answers import load_wrong_answers
from tests.wrong_examples import load_examples

INDEX = Path(__file__).parent.parent / "notebooks" / "INDEX.md"


def every_change() -> Iterator[tuple[str, Callable[[], object]]]:
    """Whose it is, and what makes it: of wrong examples, exercises and the assignment."""
    for example in load_examples():
        yield f"wrong example {example.name}", example.sources
    for exercise in EXERCISES.values():
        for wrong in exercise.wrong:
            yield f"exercise {exercise.name}: {wrong.why}", partial(wrong.made_in, exercise.source)
    for wrong in load_wrong_answers():
        yield f"window: {wrong.task}: {wrong.why}", wrong.texts


def lost_changes() -> list[str]:
    """What is lost, and who names it: one text for each."""
    owners: dict[str, list[str]] = {}
    for owner, make in every_change():
        try:
            make()
        except (KeyError, OSError, ValueError) as error:
            owners.setdefault(f"{type(error).__name__}: {error}", []).append(owner)
    return [f"{'; '.join(names)}: {why}" for why, names in owners.items()]


def lost_names() -> list[str]:
    """Names that INDEX.md looks for in a Python file, which has them no longer."""
    lost = []
    links = re.findall(r"\[([^\]]*)\]\((\.\.[^)#\s]+\.py)\)", INDEX.read_text(encoding="utf-8"))
    for label, file in links:
        code = (INDEX.parent / file).read_text(encoding="utf-8")
        for name in re.findall(r"`([^`]+)`", label):
            if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", code):
                lost.append(f"INDEX.md: {name} is not in {file}")
    return lost


if __name__ == "__main__":
    print_anything()
    lost = lost_changes() + lost_names()
    print(*lost, sep="\n")
    sys.exit(bool(lost))
