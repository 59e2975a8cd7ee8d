"""The first wrong number that a function returns or leaves, in words."""

import math

import numpy as np

from pa_tutorial.checks.comparing import Comparison
from pa_tutorial.checks.diagnosing import name_place, told_apart


def first_number(wrong: Comparison, axes: tuple[str, ...]) -> str:
    """Of numbers that have names: the first that is wrong."""
    room = wrong.bound * np.abs(wrong.expected).max()
    index = int(np.argmax(~(np.abs(wrong.actual - wrong.expected) <= room)))
    name, found, wanted = axes[0].split("|")[index], wrong.actual[index], wrong.expected[index]
    if math.isnan(found):
        return f"{name} was never written; it should be {wanted:.3g}"
    found, wanted = told_apart(found, wanted, 3)
    return f"{name} should be {wanted}, is {found}"


def first_element(wrong: Comparison, axes: tuple[str, ...]) -> str:
    """Of an array whose dimensions have names: in the first wrong row, the first wrong element."""
    row = tuple(map(int, np.argwhere(~(wrong.errors <= wrong.bound))[0]))
    actual, expected = wrong.actual[row], wrong.expected[row]
    found, wanted = actual[index := first_wrong_in(actual, expected, wrong.bound)], expected[index]
    names = [name_place(axis, place) for axis, place in zip(axes, (*row, index), strict=True)]
    what = ", ".join(names) if wrong.expected.size > 1 else "it"
    found, wanted = told_apart(found, wanted, 3 if wrong.bound else 7)
    return f"{what} should be {wanted}, is {found}"


def first_wrong_in(actual: np.ndarray, expected: np.ndarray, bound: float) -> int:
    """The first number of a row that differs by more than its share of the row's bound."""
    there = np.isfinite(expected)
    share = bound * np.linalg.norm(expected[there]) / max(there.sum(), 1) ** 0.5
    with np.errstate(invalid="ignore"):  # -inf - -inf
        differs = ~(np.abs(actual - expected) <= share) & (actual != expected)
    return int(np.argmax(differs))
