"""A wrong number in words: which it is, what can be seen in it, and who wrote it."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pa_tutorial.checks.comparing import Comparison
from pa_tutorial.checks.diagnosing import told_apart
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.blank import Blank
from pa_tutorial.exercises.function_cases import EMPTY
from pa_tutorial.exercises.numbers_in_words import first_wrong_in
from pa_tutorial.exercises.reader_errors import comes_later, in_its_own_lines
from pa_tutorial.kernels.v1 import NUM_THREADS
from simt import Trace

# quantity -> what it is called, and what it has one of per token, element, …
WORDS = {
    "qk": ("score", "token"),
    "qk_max": ("largest score", ""),
    "exp_sum": ("sum of the exponentials", ""),
    "logits": ("weight", "token"),
    "accs": ("sum of V", "element"),
    "out": ("output", "element"),
}
SHARED = {"naive": "qk"}  # the array with the scores; else logits
NOBODY = "no thread wrote it"
FLT_MAX = float(np.finfo(np.float32).max)


def first_slot(wrong: Comparison, axes: tuple[str, ...]) -> str:
    """Of a cache: the first element that is wrong, in the order of memory."""
    index = tuple(map(int, np.argwhere(wrong.actual != wrong.expected)[0]))
    where = f"k_cache[{', '.join(map(str, index))}] ({', '.join(axes)})"
    found, wanted = told_apart(wrong.actual[index], wrong.expected[index], 3)
    if wrong.actual[index] == EMPTY:
        return f"{where} was never written; it should be {wanted}"
    if wrong.expected[index] == EMPTY:
        return f"{where} was written; it must stay as it is"
    return f"{where} should be {wanted}, is {found}"


class Place(NamedTuple):
    """Of the first wrong number: the place is that of a token or element in its row."""

    sequence: int
    head: int
    place: int

    @property
    def block(self) -> tuple[int, int, int]:
        """The index of the thread block that computes it."""
        return self.head, self.sequence, 0


def first_place(wrong: Comparison) -> Place:
    """The first row that is wrong and, in it, the first number that differs by more than its share
    of the row's bound."""
    sequence, head = map(int, np.argwhere(~(wrong.errors <= wrong.bound))[0])
    actual, expected = wrong.actual[sequence, head], wrong.expected[sequence, head]
    return Place(sequence, head, first_wrong_in(actual, expected, wrong.bound))


def first_wrong(
    wrong: Comparison,
    at: Place,
    scores: np.ndarray,
    problem: DecodeProblem,
    writer: str,
    partition_size: int,
) -> str:
    """A sentence about the first wrong number.

    scores          [num_seqs, num_heads, longest]: the right ones
    writer          of the number: see last_writer
    partition_size  0: there are no partitions
    """
    what, unit = WORDS[wrong.quantity]
    sequence, head, place = at
    actual, expected = wrong.actual[sequence, head], wrong.expected[sequence, head]
    of, where = f" of {unit} {place}" if unit else "", f"(sequence {sequence}, head {head})"
    if writer == NOBODY and np.isnan(actual[place]):
        return f"no thread wrote the {what}{of} {where}"
    found, wanted = told_apart(actual[place], expected[place], 3)
    sentence = f"the {what}{of} should be {wanted}, is {found} {where}"
    num_empty = -problem.seq_lens[sequence] % problem.block_size
    if np.isnan(actual[place]):
        seen = f": {why_nan(wrong.quantity, num_empty > 0, partition_size > 0)}"
    elif not unit:
        tokens = scores[sequence, head, : problem.seq_lens[sequence]]
        size = partition_size or len(tokens)
        parts = np.split(tokens, range(size, len(tokens), size))
        seen = of_one_number(wrong.quantity, actual[0], expected[0], parts, num_empty)
    else:
        seen = pattern(actual, expected, place, unit)
        seen += whose(actual, expected, place, unit, wrong.expected[..., place])
    return sentence + (seen or of_heads(~(wrong.errors[sequence] <= wrong.bound)))


def why_nan(quantity: str, has_empty_slots: bool, has_partitions: bool) -> str:
    """Where NaN may come from."""
    if has_partitions and quantity in ("qk_max", "exp_sum"):
        return "something was read that isn't there, such as a partition after the sequence's last"
    division = "0 was divided by 0, or " if quantity in ("logits", "out") else ""
    slots = "a slot without a token or " if has_empty_slots else ""
    return f"{division}something was read that isn't there, such as {slots}a block of no sequence"


def pattern(actual: np.ndarray, expected: np.ndarray, place: int, unit: str) -> str:
    """What else can be seen in a row of numbers, as the end of the sentence."""
    there = np.isfinite(expected)
    actual, expected = actual[there], expected[there]
    if same := leading_same(actual, expected):
        return f"; {unit}s 0 {'and 1 both' if same == 2 else f'to {same - 1} all'} have it"
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = actual / expected
    if np.allclose(ratios, ratios[0], rtol=1e-2) and np.isfinite(ratios[0]):
        every = f", and so is every {unit}" if len(ratios) > 1 else ""
        return f"; it is {ratios[0]:.3g} times what it should be{every}"
    return f"; the {unit}s before it are right" if place else ""


def whose(
    actual: np.ndarray, expected: np.ndarray, place: int, unit: str, others: np.ndarray
) -> str:
    """Whose number it is, if it is right at another place or, `others`, in another head."""
    number = actual[place]
    if len(near := np.flatnonzero(is_near(expected, number))) == 1 and near[0] != place:
        return f"; it is what {unit} {near[0]} should be"
    near = np.argwhere(is_near(others, number) & (others != expected[place]))
    if len(near) == 1:
        return f"; it is what sequence {near[0, 0]}, head {near[0, 1]} should have there"
    return ""


def of_one_number(
    quantity: str, actual: float, expected: float, parts: Sequence[np.ndarray], num_empty: int
) -> str:
    """What can be seen in the largest score or the sum of the exponentials, given all scores.

    parts      the scores of each partition
    num_empty  slots without a token, in the last block
    """
    if actual == math.inf:
        return ": exp is too large for a float32, as if a score were more than the maximum"
    if actual <= -FLT_MAX and quantity == "exp_sum":
        return ": as if -FLT_MAX was added; lanes without a sum must add 0"
    if actual == -FLT_MAX:
        return ", which is -FLT_MAX: no score was compared with it"
    if actual < -FLT_MAX:
        return ": several -FLT_MAX were added, or nothing was compared with -inf"
    with np.errstate(all="ignore"):
        likely = likely_numbers(parts, num_empty)[quantity]
    for words, numbers in likely.items():
        hits = np.flatnonzero(is_near(numbers, actual) & ~is_near(numbers, expected))
        if len(hits):
            return f"; {words.format(hits[0])}"
    ratio = actual / expected
    is_whole = quantity == "exp_sum" and ratio > 1.5 and is_near(ratio, round(ratio))
    return f"; it is {ratio:.3g} times what it should be" if is_whole else ""


def likely_numbers(
    parts: Sequence[np.ndarray], num_empty: int
) -> dict[str, dict[str, np.ndarray | float]]:
    """quantity -> what may be where it should -> the number, or several; {}: which of them"""
    tokens, maxima = np.concatenate(parts), np.array([part.max() for part in parts])
    sums = np.array([np.exp(part - part.max()).sum() for part in parts])
    largest, exps = tokens.max(), np.exp(tokens - tokens.max())
    swapped = np.exp(largest - tokens).sum(), sums @ np.exp(largest - maxima)
    empty = num_empty * np.exp(-largest)
    first = np.float32(exps[:NUM_THREADS].sum())  # small ones are 0, as in a kernel
    return {
        "qk_max": {
            "it is the sum of the exponentials": exps.sum(),
            "it is the sum of the exponentials in partition {}": sums,
            "it is the maximum of partition {} alone": maxima,
            "it is the score of token {}": tokens,
        },
        "exp_sum": {
            "it is the largest score": largest,
            "it is 1 / the sum": 1 / exps.sum(),
            "it is the sum of exp(score), without the maximum": np.exp(tokens).sum(),
            f"as if tokens from {NUM_THREADS} on didn't count": first,
            f"as if the {num_empty} slots without a token counted": exps.sum() + empty,
            "it is the plain sum of the partitions' own sums": sums.sum(),
            "as if the maximum came first in exp(… - …)": np.array(swapped),
            "it is the exponential of token {} alone": exps,
        },
    }


def is_near(numbers: np.ndarray | float, number: float) -> np.ndarray | bool:
    """Equal but for rounding in float16 and less."""
    return np.abs(numbers - number) <= 1e-3 * abs(number)


def of_heads(bad: np.ndarray) -> str:
    """Which heads of a sequence are right, if some are."""
    right = ", ".join(map(str, np.flatnonzero(~bad)))
    return f"; of the heads, {right} are right" if right else ""


def leading_same(actual: np.ndarray, expected: np.ndarray) -> int:
    """How many numbers at the beginning are equal to the first and shouldn't be; 0 for none."""
    count = int(np.argmin(np.append(actual == actual[0], False)))
    return count if count > 1 and np.ptp(expected[:count]) > 0 else 0


def last_writer(blank: Blank, trial: Trial, function: Callable, quantity: str, at: Place) -> str:
    """Who wrote the number, and in which line; NOBODY; or empty where no array holds it, or a
    function wrote it that the reader hasn't met yet."""
    array = {"qk": SHARED.get(blank.file, "logits"), "logits": "logits", "out": "out"}.get(quantity)
    if array is None or (trial.name.endswith("in partitions") and quantity != "out"):
        return ""
    try:
        trace = trial.trace(function, at.block)
    except Exception:  # there is enough to say
        return ""
    if array not in {one.name for one in trace.arrays}:
        return NOBODY
    writes = trace.only(array=array, kind="write")
    return of_record(writes, at.place, blank, function, last=quantity != "qk")


def of_record(writes: Trace, index: int, blank: Blank, function: Callable, last: bool) -> str:
    """The thread that wrote an element of the last axis, and the line if it is the function's."""
    if not len(writes):
        return NOBODY
    number = writes.the_array().indices(writes.records.address)[-1]
    # The memory of logits is out_smem too: there, add_warps writes something else.
    is_other = np.array([site.function == "add_warps" for site in writes.sites])
    hits = np.flatnonzero((number == index) & ~is_other[writes.records.place])
    if not len(hits):
        return NOBODY
    record = hits[-1 if last else 0]
    site, thread = writes.sites[writes.records.place[record]], writes.threads[record]
    if site.function == function.py_func.__name__:
        words = f"thread {thread} wrote it: line {site.line} of {site.function}: {site.code}"
        return in_its_own_lines(words, blank, function)
    if comes_later(site.function, blank):
        return ""
    return f"thread {thread} wrote it, in {site.function}"
