"""WRONG_ANSWERS.md: every exercise against every wrong answer that is kept for it."""

from pathlib import Path

from pa_tutorial.checks import Result, attempt
from pa_tutorial.checks.running import run_trials
from pa_tutorial.coursework import window
from pa_tutorial.exercises import EXERCISES, Exercise
from pa_tutorial.text_changes import Version

PATH = Path(__file__).parent / "WRONG_ANSWERS.md"
WINDOW = "window"

HEAD = """\
# What wrong answers are worth

Written by `make refresh`; the tests hold every row. For each exercise, and each task of the
assignment "Change the kernel on Monday" (window), the wrong answers that are kept for it: how many
of the cases it passes (each is worth the same part of the points), and the first case that catches
it. None passes all.

| notebook | exercise | wrong answer | passes | caught by |
| --- | --- | --- | --- | --- |
"""


def row(place: str, name: str, why: str, result: Result) -> str:
    """One line of the table. Raises ValueError for a wrong answer that passes."""
    if result.ok:
        raise ValueError(f"{name}: this wrong answer passes: {why}")
    why = why.replace("|", "\\|")
    passes = f"{result.passed} of {result.total}"
    return f"| {place} | `{name}` | {why} | {passes} | `{result.first_failure.name}` |"


def row_of(exercise: Exercise, wrong: Version) -> str:
    answer = exercise.answer(exercise.wrong_source(wrong))
    return row(exercise.notebook[:2], exercise.name, wrong.why, attempt(exercise.name, answer))


def row_of_task(task: window.Task, wrong: Version) -> str:
    answer = window.load_texts(window.solution_files(wrong.changes))[task.name]
    result = run_trials(task.name, task.trials(0), answer)
    return row(WINDOW, task.name, wrong.why, result)


def rows_of(place: str) -> list[str]:
    """Every wrong answer of a notebook ("09"), or of the window, tried: some seconds."""
    if place == WINDOW:
        return [row_of_task(task, wrong) for task in window.TASKS.values() for wrong in task.wrong]
    exercises = (e for e in EXERCISES.values() if e.notebook.startswith(place))
    return [row_of(exercise, wrong) for exercise in exercises for wrong in exercise.wrong]


def write_rows(place: str) -> list[str]:
    """Try and write the rows of a place; those that were not there."""
    old = [line for line in PATH.read_text(encoding="utf-8").splitlines() if "` |" in line]
    new = rows_of(place)
    kept = [line for line in old if not line.startswith(f"| {place} |")]
    rows = sorted([*kept, *new], key=lambda line: line.split()[1])  # the window comes last
    PATH.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8", newline="\n")
    return [line for line in new if line not in old]
