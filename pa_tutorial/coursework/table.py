"""WRONG_ANSWERS.md: every exercise against every wrong answer that is kept for it."""

from pathlib import Path

from tqdm import tqdm

from pa_tutorial.checks import Result, attempt
from pa_tutorial.exercises import EXERCISES, Exercise, WrongAnswer

PATH = Path(__file__).parent / "WRONG_ANSWERS.md"

HEAD = """\
# What wrong answers are worth

Written by `python -m pa_tutorial.coursework table`; the tests hold every row. For each exercise,
the wrong answers that are kept for it: how many of the cases it passes (each is worth the same part
of the points), and the first case that catches it. None passes all.

| notebook | exercise | wrong answer | passes | caught by |
| --- | --- | --- | --- | --- |
"""


def row(exercise: Exercise, wrong: WrongAnswer, result: Result) -> str:
    """One line of the table. Raises ValueError for a wrong answer that passes."""
    if result.ok:
        raise ValueError(f"{exercise.name}: this wrong answer passes: {wrong.why}")
    why = wrong.why.replace("|", "\\|")
    passes = f"{result.passed} of {result.total}"
    caught = f"`{result.first_failure.name}`"
    return f"| {exercise.notebook[:2]} | `{exercise.name}` | {why} | {passes} | {caught} |"


def write_table() -> Path:
    """Try every wrong answer; takes some minutes."""
    pairs = [(e, wrong) for e in EXERCISES.values() for wrong in e.wrong]
    rows = []
    for exercise, wrong in tqdm(pairs, desc="wrong answers", unit="answer"):
        answer = exercise.answer(exercise.wrong_source(wrong))
        rows.append(row(exercise, wrong, attempt(exercise.name, answer)))
    PATH.write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    return PATH
