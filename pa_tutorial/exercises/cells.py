"""Text, stub and attempt of every exercise, as they stand in the notebooks: `make refresh`.

A notebook holds three cells for each exercise, which name it in their metadata:
{"exercise": name, "part": "text" | "stub" | "attempt"}.
"""

import nbformat

from pa_tutorial.exercises.exercise import Exercise

PARTS = ("text", "stub", "attempt")


def cell_sources(exercise: Exercise, number: int) -> dict[str, str]:
    heading = "" if exercise.is_warm_up else f"### Exercise {number}: `{exercise.name}`\n\n"
    arguments = f'"{exercise.name}", {exercise.name}'
    picture = f"display(drawn({arguments}))\n" if exercise.drawn else ""
    return {
        "text": heading + exercise.text,
        "stub": exercise.stub,
        "attempt": f"{picture}attempt({arguments})",
    }


def fill(notebook: nbformat.NotebookNode, exercises: list[Exercise]) -> list[str]:
    """Put the sources into the cells; which have changed. Every cell must be there once."""
    changed, number = [], 0
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
            if cells[0].source != source:
                changed.append(f"{part} of {exercise.name}")
            cells[0].source = source
    return changed
