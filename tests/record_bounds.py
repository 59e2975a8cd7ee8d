"""Measure the two figures behind every bound and write pa_tutorial/checks/bounds.json.

    make bounds
    python tests/record_bounds.py decode/tail decode/gqa    # these cases only; the rest stays

worst_correct   the worst error of any correct stage, against the oracle and the stages before it
smallest_wrong  the smallest error of any wrong example that is named to fail in the case
bound           min(10 * worst_correct, smallest_wrong / 10), two digits, rounded down
"""

import json
import math
import sys

import numpy as np
import torch
from wrong_examples import applied, load_examples, run_cases

from pa_tutorial.checks.comparing import BOUNDS_FILE, QUANTITIES
from pa_tutorial.checks.running import judge, stage_trial
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES
from pa_tutorial.walk.problem import DecodeProblem

FACTOR = 10.0


def two_digits(value: float, up: bool) -> float:
    """Rounded to two digits, so that the file says no more than was measured."""
    exponent = math.floor(math.log10(value)) - 1
    digits = (math.ceil if up else math.floor)(value / 10.0**exponent)
    return float(f"{digits}e{exponent}")


def rounding_of_the_output(case_id: str, quantity: str) -> float:
    """The least that any stage may be off: half a unit in the last place of what it returns."""
    problem = CASES[case_id]
    narrow = quantity == "out" and isinstance(problem, DecodeProblem)
    return torch.finfo(problem.dtype if narrow else torch.float32).eps / 2


def worst_of_correct_stages(case_id: str) -> dict[str, tuple[float, str]]:
    """quantity -> (worst error, stage)."""
    unbounded = {quantity: np.inf for quantity in QUANTITIES}
    worst: dict[str, tuple[float, str]] = {}
    for stage in STAGES.values():
        if not stage.is_checked_on(CASES[case_id]):
            continue
        case, comparisons = judge(stage_trial(stage, case_id, unbounded), None)
        if not comparisons:
            raise SystemExit(f"{stage.name} does not run on {case_id}: {case.diagnosis}")
        for comparison in comparisons:
            error = comparison.worst
            if not error < np.inf:
                raise SystemExit(f"{stage.name} gives NaN or inf in {case_id}")
            if error > worst.get(comparison.quantity, (-1.0, ""))[0]:
                worst[comparison.quantity] = (error, stage.name)
    return {
        quantity: (error or rounding_of_the_output(case_id, quantity), stage)
        for quantity, (error, stage) in worst.items()
    }


def smallest_of_wrong_examples(case_ids: list[str]) -> dict[tuple[str, str], tuple[float, str]]:
    """(case id, quantity) -> (smallest finite error, wrong example).

    The quantity is `out`, or the intermediate in which alone the example can be seen.
    """
    smallest: dict[tuple[str, str], tuple[float, str]] = {}
    for example in load_examples():
        pairs = tuple(pair for pair in example.fails if pair[1] in case_ids)
        if not pairs:
            continue
        with applied(example):
            outcomes = run_cases(pairs)
        for (_, case_id), outcome in outcomes.items():
            if outcome.error is not None and outcome.error < np.inf:
                entry = (outcome.error, example.name)
                place = (case_id, outcome.quantity)
                smallest[place] = min(smallest.get(place, entry), entry)
    return smallest


def main(case_ids: list[str]) -> None:
    correct = {case_id: worst_of_correct_stages(case_id) for case_id in case_ids}
    before = json.loads(BOUNDS_FILE.read_text(encoding="utf-8"))
    record: dict[str, dict[str, dict]] = {case_id: before.get(case_id, {}) for case_id in CASES}

    def write() -> None:
        BOUNDS_FILE.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8", newline="\n")

    for case_id, quantities in correct.items():
        record[case_id] = {
            quantity: {
                "bound": two_digits(FACTOR * error, up=False),
                "worst_correct": two_digits(error, up=True),
                "stage": stage,
            }
            for quantity, (error, stage) in quantities.items()
        }
    write()  # the wrong examples are measured with these bounds
    for (case_id, quantity), (error, name) in smallest_of_wrong_examples(case_ids).items():
        figures = record[case_id][quantity]
        figures["smallest_wrong"] = two_digits(error, up=False)
        figures["wrong_example"] = name
        figures["bound"] = min(figures["bound"], two_digits(error / FACTOR, up=False))
        if figures["bound"] < 2 * figures["worst_correct"]:
            raise SystemExit(f"{case_id} cannot tell {name} from a correct stage: {figures}")
    write()
    print(f"{len(correct)} cases; wrote {BOUNDS_FILE}")


if __name__ == "__main__":
    main(sys.argv[1:] or list(CASES))
