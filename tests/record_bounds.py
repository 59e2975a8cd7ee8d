"""Measure the bounds of the checks, write checks/bounds.json, print old beside new: `make bounds`.

    python -m tests.record_bounds                   every case
    python -m tests.record_bounds decode/tail       the cases whose ids begin like this

worst_correct   the worst error of any correct stage, against the oracle and the stages before it
smallest_wrong  the smallest error of any wrong example that is named to fail in the case
bound           min(10 * worst_correct, smallest_wrong / 10), two digits, rounded down

Tests judge by these numbers, so `make refresh` leaves them alone. Another processor rounds
differently: if no figure of a quantity moves by more than a quarter, the recorded ones stay.
"""

import importlib
import io
import json
import math
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import torch

from pa_tutorial.checks.cases import CASES
from pa_tutorial.checks.comparing import BOUNDS_FILE, QUANTITIES
from pa_tutorial.checks.ladder import STAGES
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.checks.running import judge, stage_trial
from pa_tutorial.printing import print_anything
from tests.wrong_examples import applied, load_examples, run_cases

FACTOR = 10.0
MOST = 1.25  # a figure that moves by less than this factor is not rewritten

Worst = dict[str, tuple[float, str]]  # quantity -> an error, and whose it is


def record(case_id: str) -> Iterator[str]:
    """Measure a case and write it into bounds.json; for each change, old beside new."""
    bounds = json.loads(BOUNDS_FILE.read_text(encoding="utf-8"))
    old, new = bounds.get(case_id, {}), figures_of(case_id)
    bounds[case_id] = {q: old[q] if is_close(new[q], old.get(q, {})) else new[q] for q in new}
    kept = {name: bounds[name] for name in CASES if name in bounds}
    BOUNDS_FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8", newline="\n")
    for quantity in {**old, **new}:
        before, after = old.get(quantity), bounds[case_id].get(quantity)
        if before != after:
            yield f"{case_id}, {quantity}: {shown(before)}  ->  {shown(after)}"


def shown(figures: dict | None) -> str:
    """The figures of one quantity in a line; None if it has no bound."""
    if figures is None:
        return "no bound"
    return ", ".join(f"{name} {value}" for name, value in figures.items())


def figures_of(case_id: str) -> dict[str, dict]:
    """A case's entry in bounds.json, by quantity.

    Raises SystemExit if an error of a wrong example is too close to the errors of correct stages.
    """
    figures = {
        quantity: {
            "bound": two_digits(FACTOR * error, up=False),
            "worst_correct": two_digits(error, up=True),
            "stage": stage,
        }
        for quantity, (error, stage) in worst_of_correct_stages(case_id).items()
    }
    for quantity, (error, name) in smallest_of_wrong_examples(case_id, figures).items():
        one = figures[quantity]
        one["smallest_wrong"] = two_digits(error, up=False)
        one["wrong_example"] = name
        one["bound"] = min(one["bound"], two_digits(error / FACTOR, up=False))
        if one["bound"] < 2 * one["worst_correct"]:
            raise SystemExit(f"{case_id} cannot tell {name} from a correct stage: {one}")
    return figures


def worst_of_correct_stages(case_id: str) -> Worst:
    unbounded = dict.fromkeys(QUANTITIES, np.inf)
    worst: Worst = {}
    for stage in STAGES.values():
        if not stage.is_checked_on(CASES[case_id]):
            continue
        case, comparisons = judge(stage_trial(stage, case_id, unbounded), None)
        if not comparisons:
            raise SystemExit(f"{stage.name} does not run on {case_id}: {case.diagnosis}")
        for comparison in comparisons:
            error = comparison.worst or rounding_of_the_output(case_id, comparison.quantity)
            if not error < np.inf:
                raise SystemExit(f"{stage.name} gives NaN or inf in {case_id}")
            if error > worst.get(comparison.quantity, (-1.0, ""))[0]:
                worst[comparison.quantity] = (error, stage.name)
    return worst


def rounding_of_the_output(case_id: str, quantity: str) -> float:
    """Half a unit in the last place of what a stage returns: no stage can promise less."""
    problem = CASES[case_id]
    narrow = quantity == "out" and isinstance(problem, DecodeProblem)
    return torch.finfo(problem.dtype if narrow else torch.float32).eps / 2


def smallest_of_wrong_examples(case_id: str, bounds: dict[str, dict]) -> Worst:
    """By quantity: `out`, or the only intermediate in which an example shows."""
    smallest: Worst = {}
    for example in load_examples():
        pairs = tuple(pair for pair in example.fails if pair[1] == case_id)
        if not pairs:
            continue
        said = io.StringIO()  # each is a new package, which prints its one-time messages again
        with redirect_stdout(said), redirect_stderr(said), applied(example):
            comparing = importlib.import_module("pa_tutorial.checks.comparing")
            comparing.load_bounds = lambda: {case_id: bounds}
            outcomes = run_cases(pairs)
        for outcome in outcomes.values():
            if outcome.error is not None and outcome.error < np.inf:
                entry = (outcome.error, example.name)
                smallest[outcome.quantity] = min(smallest.get(outcome.quantity, entry), entry)
    return smallest


def is_close(new: dict, old: dict) -> bool:
    """Whether figures of one quantity differ from the recorded ones by rounding only."""
    names = {None, *STAGES, *(example.name for example in load_examples())}
    if new.keys() != old.keys() or not {old["stage"], old.get("wrong_example")} <= names:
        return False
    numbers = [name for name, value in new.items() if isinstance(value, float)]
    return all(old[name] / MOST <= new[name] <= old[name] * MOST for name in numbers)


def two_digits(value: float, up: bool) -> float:
    """Rounded to two digits, so that the file says no more than was measured."""
    exponent = math.floor(math.log10(value)) - 1
    digits = (math.ceil if up else math.floor)(value / 10.0**exponent)
    return float(f"{digits}e{exponent}")


def main() -> None:
    begins = tuple(sys.argv[1:]) or ("",)
    cases = [case_id for case_id in CASES if case_id.startswith(begins)]
    print(f"{len(cases)} cases, about {0.1 * len(cases):.0f} minutes", flush=True)
    for case_id in cases:
        print(*list(record(case_id)) or [f"{case_id}: unchanged"], sep="\n", flush=True)


if __name__ == "__main__":
    print_anything()
    main()
