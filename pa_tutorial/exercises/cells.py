"""The cells of exercises and blanks, as they stand in the notebooks: `make refresh`.

A notebook holds four cells for each exercise, which name it in their metadata:
{"exercise": name, "part": "text" | "stub" | "attempt" | "fold"}. A blank has three, because its
stub ends with the attempt: {"blank": name, "part": "text" | "stub" | "fold"}.
"""

from collections.abc import Iterator, Sequence

import nbformat

from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.exercise import Exercise

PARTS = ("text", "stub", "attempt", "fold")


def cell_sources(exercise: Exercise, number: int) -> dict[str, str]:
    heading = "" if exercise.is_warm_up else f"### Exercise {number}: `{exercise.name}`\n\n"
    arguments = f'"{exercise.name}", {exercise.name}'
    picture = f"display(drawn({arguments}))\n" if exercise.drawn else ""
    return {
        "text": heading + exercise.heading,
        "stub": exercise.stub,
        "attempt": f"{picture}{exercise.name} = attempt({arguments})",
        "fold": exercise.fold,
    }


def sources_of(
    exercises: Sequence[Exercise], blanks: Sequence[Blank]
) -> Iterator[tuple[dict[str, str], str]]:
    """(metadata, source) of each cell."""
    number = 0
    for exercise in exercises:
        number += not exercise.is_warm_up
        for part, source in cell_sources(exercise, number).items():
            yield {"exercise": exercise.name, "part": part}, source
    for blank in blanks:
        for part, source in (("text", blank.heading), ("stub", blank.cell), ("fold", blank.fold)):
            yield {"blank": blank.name, "part": part}, source


def fill(
    notebook: nbformat.NotebookNode, exercises: Sequence[Exercise], blanks: Sequence[Blank] = ()
) -> list[str]:
    """Put the sources into the cells; which have changed. Every cell must be there once."""
    changed = []
    for mark, source in sources_of(exercises, blanks):
        cells = [c for c in notebook.cells if mark.items() <= c.metadata.items()]
        if len(cells) != 1:
            raise ValueError(
                f"the notebook has {len(cells)} cells with the metadata {mark}; it must have one"
            )
        if cells[0].source != source:
            changed.append(" of ".join(reversed(mark.values())))
        cells[0].source = source
        if "blank" in mark and mark["part"] == "stub":  # Run All goes on after a syntax error
            cells[0].metadata["tags"] = ["raises-exception"]
    return changed
