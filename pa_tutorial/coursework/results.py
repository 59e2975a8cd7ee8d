"""A class's grades as files: points.csv, summary.md, junit.xml, and a feedback file per student.

graded.jsonl grows with each submission, so that an interrupted run goes on where it ended; the
others are written once all are graded.
"""

import csv
import json
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from html import escape as html_escape
from pathlib import Path
from statistics import mean, median
from typing import Any
from xml.etree import ElementTree

from pa_tutorial.arguments import require
from pa_tutorial.coursework.grades import Grade, TaskGrade, from_data

JOURNAL, SUMMARY = "graded.jsonl", "summary.md"
MOST_ROWS, MOST_LETTERS = 20, 200  # of the most frequent mistakes
MOST_OF_A_NAME = 80  # of a student, in the name of a file
BARS = 10  # of the distribution
NO_FILE_NAME = re.compile(r'[<>:"/\\|?*\s]+|\.$')
NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Results:
    """The folder of a run: its draw, and what has been graded so far, by digest."""

    def __init__(self, out: Path, assignment: str, draw: int | None) -> None:
        """Begin a run, or go on with an interrupted one.

        draw  None: a new one, or that of the interrupted run

        Raises ValueError for a folder with other files, a run that has finished, or another one.
        """
        self.out, self.journal = out, out / JOURNAL
        self.assignment, self.draw = assignment, draw or new_draw()
        self.grades: dict[str, Grade] = {}
        if not out.exists() or not any(out.iterdir()):
            out.mkdir(parents=True, exist_ok=True)
            self.write_line({"assignment": assignment, "draw": self.draw})
            return
        if (out / SUMMARY).exists():
            raise ValueError(f"{out} has the grades of a finished run; name another folder")
        require(self.journal.exists(), "out", out, "a new folder, or that of an interrupted run")
        first, *lines = read_lines(self.journal)
        before = first["assignment"], first["draw"]
        require(assignment == before[0], "assignment", assignment, f"{before[0]}, as before")
        require(draw in (None, before[1]), "draw", draw, f"{before[1]}, as before")
        self.draw = before[1]
        for line in lines:
            with suppress(KeyError, TypeError):  # it is none of ours
                self.grades.setdefault(line["digest"], from_data(line["grade"]))

    def write_line(self, data: Mapping[str, Any]) -> None:
        with self.journal.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps(data)}")  # after a line that was cut off, too

    def add(self, digest: str, grade: Grade) -> None:
        self.grades[digest] = grade
        self.write_line({"digest": digest, "grade": asdict(grade)})

    def finish(self, digests: Sequence[str]) -> list[Grade]:
        """Write everything else, and at last the summary, which says that the run has finished."""
        grades = [self.grades[digest] for digest in digests]
        write_csv(self.out / "points.csv", grades)
        write_junit(self.out / "junit.xml", grades)
        (self.out / "feedback").mkdir(exist_ok=True)
        names: Counter[str] = Counter()
        for grade in grades:
            name = NO_FILE_NAME.sub("_", grade.student)[:MOST_OF_A_NAME]
            names[name.lower()] += 1  # some systems see no difference
            number = f"_{names[name.lower()]}" if names[name.lower()] > 1 else ""
            text = feedback(grade, self.assignment, self.draw)
            (self.out / "feedback" / f"{name}{number}.md").write_text(text, encoding="utf-8")
        text = summary(grades, self.assignment, self.draw)
        (self.out / SUMMARY).write_text(text, encoding="utf-8")
        return grades


def new_draw() -> int:
    return 1 + secrets.randbelow(2**31)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal, except one of which only a part was written."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    require(bool(found), "out", path.parent, "a folder whose graded.jsonl can be read")
    return found


def write_csv(path: Path, grades: Sequence[Grade]) -> None:
    """One row per student. `by hand` is empty, for points that the lecturer adds."""
    names = [task.task for task in grades[0].tasks] if grades else []
    others = ["total", "out of", "by hand", "file", "problem", "look at"]
    with path.open("w", newline="", encoding="utf-8-sig") as file:  # for spreadsheets
        rows = csv.writer(file)
        rows.writerow(["student", *names, *others])
        for grade in grades:
            points = [*(task.points for task in grade.tasks), grade.points]
            if grade.problem:  # not 0: a platform would take it for a mark
                points = [""] * len(points)
            problem = grade.problem or "; ".join(grade.errors)
            words = map(as_cell, (grade.file, problem, grade.odd))
            rows.writerow([as_cell(grade.student), *points, grade.out_of, "", *words])


def as_cell(text: str) -> str:
    """A spreadsheet would compute a text that begins like a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def feedback(grade: Grade, assignment: str, draw: int) -> str:
    """For the student, in Markdown."""
    student, file = escape(grade.student), escape(grade.file) or "nothing"
    lines = [f"# {student}: {grade.points:g} of {grade.out_of:g} points", ""]
    lines += [f"Assignment `{assignment}`. Graded: {file}.", ""]
    if grade.problem:
        return "\n".join([*lines, in_fence(grade.problem), ""])
    lines += ["| task | points | cases |", "| --- | --- | --- |"]
    for task in grade.tasks:
        passed = len(task.cases) - len(task.failed)
        points = f"{task.points:g} of {task.out_of:g}"
        lines.append(f"| `{task.task}` | {points} | {passed} of {len(task.cases)} |")
    for words, names in together(grade).items():
        lines += ["", f"## {', '.join(f'`{name}`' for name in names)}", "", words]
    if grade.errors:
        lines += ["", "## Errors", "", in_fence("\n".join(grade.errors))]
    command = f"python -m pa_tutorial.coursework grade {assignment} FILE --draw {draw}"
    return "\n".join([*lines, "", f"The cases have new numbers. To see the same: `{command}`", ""])


def together(grade: Grade) -> dict[str, list[str]]:
    """What is said of tasks with lost points -> the tasks: it is often the same for several."""
    found: dict[str, list[str]] = {}
    for task in grade.tasks:
        if task.failed:
            found.setdefault(words_about(task), []).append(task.task)
    return found


def words_about(task: TaskGrade) -> str:
    """The notebook's verdict; and what fails with other numbers, if the notebook doesn't say it."""
    whys = in_fence("\n".join(f"{', '.join(names)}: {why}" for why, names in task.reasons.items()))
    if not task.said:
        return whys
    verdict = f"In cell [{task.cell}] of your notebook, `attempt` says:\n\n{in_fence(task.said)}"
    failed = ", ".join(f"`{case.name}`" for case in task.failed)
    others = f"With other numbers, these cases fail: {failed}."
    if task.right:
        others = f"With other numbers it isn't right:\n\n{whys}"
    return f"{verdict}\n\n{others}"


def escape(text: str) -> str:
    """Without HTML and links: a name may have anything in it."""
    return html_escape(text, quote=False).replace("[", "\\[").replace("](", "\\](")


def in_fence(text: str) -> str:
    """A student's text, which may have a fence of its own."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def summary(grades: Sequence[Grade], assignment: str, draw: int) -> str:
    """For the lecturer: how the class did, and its most frequent mistakes."""
    counted = [grade for grade in grades if not grade.problem]
    lines = [f"# {assignment}: {len(grades)} submissions", ""]
    lines += [f"- draw {draw}: `--draw {draw}` gives the same numbers again"]
    lines += [f"- not graded: {words_of(g.student, g.problem)}" for g in grades if g.problem]
    lines += [f"- to look at: {words_of(g.student, g.odd)}" for g in grades if g.odd]
    if counted:
        lines += ["", *distribution(counted), "", *by_task(counted), "", *mistakes(counted)]
    return "\n".join(lines) + "\n"


def words_of(student: str, words: str) -> str:
    return escape(f"{student}: {one_line(words)}")


def distribution(grades: Sequence[Grade]) -> Iterator[str]:
    totals, out_of = [grade.points for grade in grades], grades[0].out_of
    middle = f"mean {mean(totals):.1f}, median {median(totals):g}"
    yield f"{len(grades)} graded, of {out_of:g} points: {middle}."
    yield from ("", "| points from | students | |", "| --- | --- | --- |")
    bars = Counter(min(int(BARS * total / out_of), BARS - 1) for total in totals)
    for bar in range(BARS):
        yield f"| {out_of * bar / BARS:g} | {bars[bar]} | {'█' * bars[bar]} |"


def by_task(grades: Sequence[Grade]) -> Iterator[str]:
    yield from ("| task | mean | full points | none |", "| --- | --- | --- | --- |")
    for tasks in zip(*(grade.tasks for grade in grades), strict=True):
        points = [task.points for task in tasks]
        full, none = points.count(tasks[0].out_of), points.count(0)
        name, out_of = tasks[0].task, tasks[0].out_of
        yield f"| `{name}` | {mean(points):.1f} of {out_of:g} | {full} | {none} |"


def mistakes(grades: Sequence[Grade]) -> Iterator[str]:
    """Of each answer the first quantity that is wrong, with the usual reason; or why there is
    none."""
    first: Counter[tuple[str, str]] = Counter()
    for task in (task for grade in grades for task in grade.tasks if task.failed):
        case = task.failed[0]
        words = case.diagnosis.partition("\n")[0]
        if task.wrong:
            words = f"{task.wrong} in {case.name}: {case.meaning or words}"
        first[task.task, one_line(words)[:MOST_LETTERS]] += 1
    yield from ("What was wrong first, by number of students:", "")
    yield from ("| students | task | wrong |", "| --- | --- | --- |")
    for (task, words), count in first.most_common(MOST_ROWS):
        yield f"| {count} | `{task}` | {escape(words)} |"


def one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def write_junit(path: Path, grades: Sequence[Grade]) -> None:
    """A suite per student, and a test per case."""
    suites = ElementTree.Element("testsuites")
    for grade in grades:
        cases = [(task.task, case) for task in grade.tasks for case in task.cases]
        counts = {"tests": len(cases), "failures": sum(not case.passed for _, case in cases)}
        words = {"name": xml(grade.student), **{name: str(n) for name, n in counts.items()}}
        suite = ElementTree.SubElement(suites, "testsuite", words)
        for task, case in cases:
            names = {"classname": task, "name": xml(case.name)}
            test = ElementTree.SubElement(suite, "testcase", names)
            if not case.passed:
                why = {"message": xml(one_line(case.diagnosis)[:200])}
                ElementTree.SubElement(test, "failure", why).text = xml(case.diagnosis)
    ElementTree.ElementTree(suites).write(path, encoding="utf-8", xml_declaration=True)


def xml(text: str) -> str:
    """Without the characters that XML doesn't have."""
    return NO_XML.sub("?", text)
