"""Errors as relative norms, and the bounds that they must stay within."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError

BOUNDS_FILE = Path(__file__).with_name("bounds.json")

# In the order in which attention computes them, so the first wrong one is nearest to the cause.
QUANTITIES = {
    "qk": "the scores before the softmax",
    "qk_max": "the largest score",
    "exp_sum": "the sum of exp(qk - qk_max)",
    "logits": "the weights after the softmax",
    "accs": "the weighted sums of V, before they are rounded to the output",
    "out": "the output",
}


@dataclass(frozen=True)
class Comparison:
    """One quantity of one case against one reference.

    errors  [...]       one relative error per row of the last dimension; inf where a row has
                        NaN, or a value where the reference has -inf
    actual, expected    float64, both [..., n]
    """

    quantity: str
    reference: str
    actual: np.ndarray
    expected: np.ndarray
    errors: np.ndarray
    bound: float

    @property
    def worst(self) -> float:
        return float(self.errors.max())

    @property
    def passed(self) -> bool:
        return bool(self.worst <= self.bound)  # False for NaN too


def to_float64(array: Tensor | np.ndarray) -> np.ndarray:
    if isinstance(array, Tensor):
        array = array.detach().cpu().double().numpy()
    return np.asarray(array, dtype=np.float64)


def relative_errors(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """|actual - expected| / |expected|, norms over the last dimension.

    -inf (a masked score) must be in the same places; a row where it isn't,
    or that holds NaN or another infinity, has the error inf.
    Where the expected row is all zero, the error is |actual|.
    """
    masked = np.isneginf(expected)
    broken = (np.isneginf(actual) != masked) | np.isnan(actual) | np.isposinf(actual)
    usable = ~(masked | broken)
    difference = np.where(usable, actual, 0.0) - np.where(usable, expected, 0.0)
    size = np.linalg.norm(np.where(masked, 0.0, expected), axis=-1)
    errors = np.linalg.norm(difference, axis=-1) / np.where(size > 0, size, 1.0)
    return np.where(broken.any(axis=-1), np.inf, errors)


def compare(
    actual: Mapping[str, Tensor | np.ndarray],
    references: Mapping[str, Mapping[str, Tensor | np.ndarray]],
    bounds: Mapping[str, float],
) -> list[Comparison]:
    """Compare every quantity that both sides have with every reference, in computation order."""
    comparisons = []
    for quantity in QUANTITIES:
        for reference, arrays in references.items():
            if quantity not in actual or quantity not in arrays:
                continue
            left, right = to_float64(actual[quantity]), to_float64(arrays[quantity])
            if left.shape != right.shape:
                raise AnswerError(
                    f"{quantity} has shape {left.shape}; {reference} has {right.shape}"
                )
            errors = relative_errors(left, right)
            comparisons.append(
                Comparison(quantity, reference, left, right, errors, bounds[quantity])
            )
    return comparisons


@cache
def load_bounds() -> dict[str, dict[str, dict]]:
    """case id -> quantity -> bound, with the two numbers that it is based on.

    worst_correct   the worst error of any correct stage, in this case
    smallest_wrong  the smallest error of any wrong example named to fail in this case
    bound           min(10 * worst_correct, smallest_wrong / 10)

    Written by `make bounds`.
    """
    return json.loads(BOUNDS_FILE.read_text(encoding="utf-8"))


def bounds_of(case_id: str) -> dict[str, float]:
    """quantity -> the largest error that passes."""
    bounds = load_bounds()
    if case_id not in bounds:
        raise KeyError(f"no bound is recorded for {case_id}: run `make bounds`")
    return {quantity: figures["bound"] for quantity, figures in bounds[case_id].items()}
