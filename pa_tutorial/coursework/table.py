"""WRONG_ANSWERS.md: every exercise against every wrong answer that is kept for it."""

from pathlib import Path

from tqdm import tqdm

from pa_tutorial.checks import Result, attempt
from pa_tutorial.checks.running import run_trials
from pa_tutorial.coursework import window
from pa_tutorial.exercises import EXERCISES, Exercise
from pa_tutorial.text_changes import Version

PATH = Path(__file__).parent / "WRONG_ANSWERS.md"

HEAD = """\
# What wrong answers are worth

Written by `python -m pa_tutorial.coursework table`; the tests hold every row. For each exercise,
and each task of the assignment "Change the kernel on Monday" (window), the wrong answers that are
kept for it: how many of the cases it passes (each is worth the same part of the points), and the
first case that catches it. None passes all.

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
    return row("window", task.name, wrong.why, result)


def write_table() -> Path:
    """Try every wrong answer; takes some minutes."""
    pairs = [(row_of, e, wrong) for e in EXERCISES.values() for wrong in e.wrong]
    pairs += [(row_of_task, t, wrong) for t in window.TASKS.values() for wrong in t.wrong]
    bar = tqdm(pairs, desc="wrong answers", unit="answer")
    rows = [make(one, wrong) for make, one, wrong in bar]
    PATH.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8", newline="\n")
    return PATH
