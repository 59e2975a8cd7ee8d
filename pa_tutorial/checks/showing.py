"""A result, shown as one line if everything passed, else as a table, in text and in HTML."""

from dataclasses import dataclass, replace
from html import escape
from itertools import groupby

HUGE = 1e9  # times the bound; beyond that, the number tells nothing


@dataclass(frozen=True)
class CaseResult:
    """The outcome of one case.

    error      the largest error of the deciding quantity; inf for NaN,
               None if the function raised
    bound      what that error must not exceed
    diagnosis  for a failure: where, and what the pattern means
    refused    the function ran, but the check didn't accept what it did; the diagnosis says why
    outside    an index was out of bounds, or threads raced for one element: the rule that this
               case tests may be the cause
    """

    name: str
    isolates: str
    meaning: str
    passed: bool
    error: float | None
    bound: float
    diagnosis: str = ""
    refused: bool = False
    outside: bool = False

    def report(self) -> str:
        return f"{self.name}: {self.isolates}\n{self.reason()}"

    def reason(self) -> str:
        says_it_all = self.error is None and not self.outside
        usual = "" if says_it_all else f"\ncheck this first: {self.meaning}"
        return self.diagnosis + usual


@dataclass(frozen=True)
class Result:
    """The outcome of a check; a notebook shows it, a course reads the numbers.

    in_full  show every case, even if all pass
    """

    title: str
    references: tuple[str, ...]
    cases: tuple[CaseResult, ...]
    in_full: bool = False

    @property
    def passed(self) -> int:
        return sum(case.passed for case in self.cases)

    @property
    def total(self) -> int:
        return len(self.cases)

    @property
    def ok(self) -> bool:
        return self.total > 0 and self.passed == self.total

    @property
    def first_failure(self) -> CaseResult | None:
        return next((case for case in self.cases if not case.passed), None)

    def table(self) -> "Result":
        """The same result, showing every case and its verdict even if all pass."""
        return replace(self, in_full=True)

    def __str__(self) -> str:
        return headline(self) if self.ok and not self.in_full else as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self) if self.in_full or not self.ok else f"<b>{escape(headline(self))}</b>"


def verdict(case: CaseResult) -> str:
    """Rounded, so that it is the same on every machine."""
    if case.error is None:
        return "not accepted" if case.refused else "no result"
    if case.bound == 0:
        return "equal" if case.passed else "not equal"
    if case.passed:
        return f"within {case.bound:.0e}"
    if not case.error < float("inf"):
        return "NaN or infinite"
    times = float(f"{case.error / case.bound:.0e}")  # one digit
    often = f"{times:,.0f}" if times < HUGE else f"more than {HUGE:,.0f}"
    return f"{often} times the bound, {case.bound:.0e}"


def rows(result: Result) -> list[tuple[str, str, str, bool]]:
    """(case, what it isolates, verdict, passed); neighbours that isolate the same share one.

    If every case fails, the first stands for all: the report is about it.
    """
    first, *others = result.cases
    if not result.passed and len(others) > 1:
        row = first.name, first.isolates, verdict(first), False
        return [row, (f"and {len(others)} more", "", "", False)]
    table = []
    for (isolates, passed), group in groupby(
        result.cases, key=lambda case: (case.isolates, case.passed)
    ):
        cases = list(group)
        if passed and len(cases) > 1:
            series, _, last = cases[-1].name.rpartition("_")
            last = last if cases[0].name.startswith(f"{series}_") else cases[-1].name
            name = f"{cases[0].name} … {last} ({len(cases)})"
            loosest = max(cases, key=lambda case: case.bound)
            table.append((name, isolates, verdict(loosest), True))
        else:
            table += [(case.name, isolates, verdict(case), case.passed) for case in cases]
    return table


def headline(result: Result) -> str:
    count = f"{result.passed} of {result.total} cases"
    *most, last = result.references
    against = f"{', '.join(most)} and {last}" if most else last
    if result.ok:
        return f"{result.title}: {count}, against {against}"
    return f"{result.title}: not yet; {count} pass, against {against}"


def common_reason(result: Result) -> str | None:
    """The only reason why nothing ran, or None; a table would add nothing to it."""
    reasons = {case.reason() if case.error is None else None for case in result.cases}
    return reasons.pop() if len(reasons) == 1 and not result.passed else None


def as_text(result: Result) -> str:
    if reason := common_reason(result):
        return f"{headline(result)}\n  {reason}"
    table = rows(result)
    name_width = max(len(row[0]) for row in table)
    isolates_width = max(len(row[1]) for row in table)
    lines = [headline(result)]
    for name, isolates, text, passed in table:
        mark = "ok  " if passed else "FAIL"
        lines.append(f"  {mark} {name:{name_width}}  {isolates:{isolates_width}}  {text}".rstrip())
    if result.first_failure:
        lines += ["", result.first_failure.report()]
    return "\n".join(lines)


def as_html(result: Result) -> str:
    if reason := common_reason(result):
        return f"<p><b>{escape(headline(result))}</b><br>{escape(reason)}</p>"
    left = "style='text-align:left'"
    head = "".join(f"<th {left}>{name}</th>" for name in ("", "case", "what it isolates", "result"))
    body = "".join(
        f"<tr><td>{'✓' if passed else '✗'}</td>"
        + "".join(f"<td {left}>{escape(text)}</td>" for text in texts)
        + "</tr>"
        for *texts, passed in rows(result)
    )
    failure = result.first_failure
    report = "<br>".join(map(escape, failure.report().splitlines())) if failure else ""
    return (
        f"<div style='font-size:85%'><b>{escape(headline(result))}</b>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{report}</div>"
    )
