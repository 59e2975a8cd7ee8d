"""Measure the two figures behind every bound and write pa_tutorial/checks/bounds.json.

    make refresh
    python tests/refresh.py bounds decode/tail    # this case only

worst_correct   the worst error of any correct stage, against the oracle and the stages before it
smallest_wrong  the smallest error of any wrong example that is named to fail in the case
bound           min(10 * worst_correct, smallest_wrong / 10), two digits, rounded down

Another processor rounds otherwise: where no figure moves by more than a quarter, those that stand
there stay.
"""

import importlib
import io
import json
import math
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import torch
from tqdm import tqdm
from wrong_examples import applied, load_examples, run_cases

from pa_tutorial.checks.comparing import BOUNDS_FILE, QUANTITIES, load_bounds
from pa_tutorial.checks.running import judge, stage_trial
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.ladder import STAGES
from pa_tutorial.walk.problem import DecodeProblem

FACTOR = 10.0
MOST = 1.25  # by which a figure may move, up or down, and stay as it is written


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


def smallest_of_wrong_examples(
    bounds: dict[str, dict[str, dict]],
) -> dict[tuple[str, str], tuple[float, str]]:
    """(case id, quantity) -> (smallest finite error, wrong example).

    bounds  of the cases, as bounds.json holds them: what is beyond them is wrong

    The quantity is `out`, or the intermediate in which alone the example can be seen.
    """
    smallest: dict[tuple[str, str], tuple[float, str]] = {}
    named = {
        example: tuple(pair for pair in example.fails if pair[1] in bounds)
        for example in load_examples()
    }
    of_these = [(example, pairs) for example, pairs in named.items() if pairs]
    for example, pairs in tqdm(of_these, desc="wrong examples"):
        said = io.StringIO()  # each is a package anew, which says anew what it says once
        with redirect_stdout(said), redirect_stderr(said), applied(example):
            comparing = importlib.import_module("pa_tutorial.checks.comparing")
            comparing.load_bounds = lambda: bounds
            outcomes = run_cases(pairs)
        for (_, case_id), outcome in outcomes.items():
            if outcome.error is not None and outcome.error < np.inf:
                entry = (outcome.error, example.name)
                place = (case_id, outcome.quantity)
                smallest[place] = min(smallest.get(place, entry), entry)
    return smallest


def is_close(new: dict, old: dict) -> bool:
    """Whether figures of one quantity are those that were measured before, but for rounding."""
    if new.keys() != old.keys():
        return False
    numbers = [name for name, value in new.items() if isinstance(value, float)]
    return all(old[name] / MOST <= new[name] <= old[name] * MOST for name in numbers)


def named_in(case_id: str) -> set[str | None]:
    """The stages and wrong examples of which figures of a case may be; None: no wrong example."""
    stages = {name for name, stage in STAGES.items() if stage.is_checked_on(CASES[case_id])}
    examples = {e.name for e in load_examples() if case_id in {case for _, case in e.fails}}
    return {None, *stages, *examples}


def record(case_ids: list[str]) -> dict[str, str]:
    """Measure cases and write them into bounds.json; case id -> which bounds moved."""
    before = json.loads(BOUNDS_FILE.read_text(encoding="utf-8"))
    correct = {
        case_id: worst_of_correct_stages(case_id) for case_id in tqdm(case_ids, desc="cases")
    }
    figures = {
        case_id: {
            quantity: {
                "bound": two_digits(FACTOR * error, up=False),
                "worst_correct": two_digits(error, up=True),
                "stage": stage,
            }
            for quantity, (error, stage) in quantities.items()
        }
        for case_id, quantities in correct.items()
    }
    for (case_id, quantity), (error, name) in smallest_of_wrong_examples(figures).items():
        one = figures[case_id][quantity]
        one["smallest_wrong"] = two_digits(error, up=False)
        one["wrong_example"] = name
        one["bound"] = min(one["bound"], two_digits(error / FACTOR, up=False))
        if one["bound"] < 2 * one["worst_correct"]:
            raise SystemExit(f"{case_id} cannot tell {name} from a correct stage: {one}")
    moved = {}
    for case_id, quantities in figures.items():
        known, names = before.get(case_id, {}), named_in(case_id)
        for quantity, new in quantities.items():
            old = known.get(quantity, {})
            if is_close(new, old) and {old["stage"], old.get("wrong_example")} <= names:
                quantities[quantity] = old
        moved[case_id] = "; ".join(
            f"{quantity} {known.get(quantity, {}).get('bound', 'none')} -> {new['bound']}"
            for quantity, new in quantities.items()
            if new != known.get(quantity)
        )
    bounds = before | figures
    kept = {case_id: bounds[case_id] for case_id in CASES if case_id in bounds}
    BOUNDS_FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8", newline="\n")
    load_bounds.cache_clear()
    return moved
