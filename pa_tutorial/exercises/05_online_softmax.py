"""Blanks of notebook 05: one pass, minus infinity, parts and their merge; an exercise about lse."""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from decimal import Decimal, localcontext
from typing import Any

import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError, require_written
from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.checks.diagnosing import told_apart
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import called, graded, require_tensors
from pa_tutorial.exercises.random_inputs import reseeded, seeded

Tokens = tuple[Sequence[float], Sequence[Sequence[float]]]  # scores, and the v of each
Scores = Sequence[float]
MASKED = -math.inf
BOUND = 1e-9  # of a number, relative to it where it is large


def exact(parts: Sequence[Tokens]) -> tuple[Decimal, Decimal, list[Decimal]]:
    """m, l and acc over the tokens of all these parts: from the definition, with 50 digits."""
    scores = [Decimal(score) for part, _ in parts for score in part]
    columns = zip(*(v for _, part in parts for v in part), strict=True)
    with localcontext(prec=50):
        m = max(scores, default=Decimal("-Infinity"))
        weights = [(s - m).exp() if s.is_finite() else Decimal(0) for s in scores]
        acc = [sum(w * Decimal(x) for w, x in zip(weights, c, strict=True)) for c in columns]
        return m, Decimal(sum(weights)), acc


def raised(parts: Sequence[Scores], draw: int) -> list[list[float]]:
    """Each score larger by up to 1/2, for another draw; equal ones stay equal, -inf stays."""
    rng = seeded(0, draw)
    more = {score: rng.random() / 2 if draw else 0.0 for part in parts for score in part}
    return [[score + more[score] for score in part] for part in parts]


def tokens_of(parts: Sequence[Scores] | None, draw: int) -> list[Tokens]:
    """The tokens of each part, with a v of 3 elements; for None those of the worked example, 8
    and 3."""
    if parts is None:
        example = reseeded(WORKED_EXAMPLE, draw)
        qk = example.expected()["qk"][0, 0].tolist()
        # 3 elements, not as many as there are queries
        values = example.inputs().values[0][:, 0, :3].tolist()
        return [(qk[:8], values[:8]), (qk[8:], values[8:])]
    # above 0 in another draw: no output is so close to 0 that rounding shows
    rng = seeded(0, draw)
    random = rng.random if draw else rng.standard_normal
    return [(part, (random((len(part), 3)) + 0.5).tolist()) for part in raised(parts, draw)]


def require_number(what: str, found: float, wanted: float) -> None:
    """Raises AnswerError for a number that isn't the wanted one, which may be -inf."""
    if math.isnan(found):
        raise AnswerError(f"{what} should be {wanted:.3f}, is NaN")
    if found != wanted and not abs(found - wanted) <= BOUND * max(1.0, abs(wanted)):
        found, wanted = told_apart(found, wanted, 4)
        raise AnswerError(f"{what} should be {wanted}, is {found}")


def require_as_wanted(part: Any, wanted: tuple, of: str) -> None:
    """Raises AnswerError for the first of m, l and acc that is wrong.

    of  where the part comes from, behind the name of a number
    """
    m, l, acc = wanted
    require_number(f"m {of}", float(part.m), float(m))
    require_number(f"l {of}", float(part.l), float(l))
    if len(part.acc) != len(acc):
        raise AnswerError(f"acc {of} has {len(part.acc)} elements, and v has {len(acc)}")
    for dim, (found, right) in enumerate(zip(part.acc, acc, strict=True)):
        require_number(f"acc[{dim}] {of}", float(found), float(right))


def require_part(pages: Any, part: object) -> Any:
    if not isinstance(require_written(part), pages.Part):
        raise AnswerError(f"it returned a {type(part).__name__}; it must return a Part")
    return part


def rows_of(part: Any) -> Tensor:
    """[3, head_size] float64: m and l again and again, and acc, so that each has its own error."""
    m, l, acc = part
    numbers = [float(number) for number in acc]
    rows = [[float(m)] * len(numbers), [float(l)] * len(numbers), numbers]
    return torch.tensor(rows, dtype=torch.float64)


def m_and_l(parts: Sequence[Tokens]) -> Tensor:
    return torch.tensor([[float(number) for number in exact(parts)[:2]]], dtype=torch.float64)


def rows_of_exact(parts: Sequence[Tokens]) -> Tensor:
    return rows_of(exact(parts))


# add_token ----------------------------------------------------------------------------------------

PASSES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, scores
    ("the worked example", "11 tokens", "", None),
    ("falling", "only the first token sets the maximum", "", [300.0, 250.0, 299.0, 10.0]),
    ("near_minus_1000", "all near -1,000", "", [-1000.0, -1001.5, -999.0]),
    ("rising_by_800", "each is the largest by far", "", [800.0 * i - 9e3 for i in range(9)]),
    ("one token", "the first of all", "", [-3.0]),
)


def stream(scores: Scores | None, draw: int) -> Tokens:
    parts = tokens_of(None if scores is None else [scores], draw)
    return [s for part, _ in parts for s in part], [v for _, values in parts for v in values]


def run_pass(pages: Any, scores: Scores | None, draw: int) -> Tensor:
    scores, values = stream(scores, draw)
    part, found = pages.Part(MASKED, 0.0, [0.0] * len(values[0])), []
    for token, (score, v) in enumerate(zip(scores, values, strict=True)):
        of = f"after token {token} (score {score:.3f}, the largest before it {part.m:.3f})"
        part = require_part(pages, called(pages.add_token, part, score, v))
        require_as_wanted(part, exact([(scores[: token + 1], values[: token + 1])]), of)
        found.append(rows_of(part))
    if len(scores) == 1:  # in one case of all
        require_exp_from(pages)
    return torch.stack(found)


def require_exp_from(pages: Any) -> None:
    """Raises AnswerError if a masked token makes NaN, as in a part without tokens."""
    part = pages.Part(MASKED, 0.0, [0.0])
    for masked_or_not in (MASKED, MASKED, 0.5, MASKED):
        part = pages.add_token(part, masked_or_not, [9.0])
        if math.isnan(part.l):
            raise AnswerError(
                "the numbers are right, but one exponential isn't taken with exp_from. Section 4 "
                "will mend exp_from for scores of -∞, where any other one gives NaN"
            )


def all_of_a_pass(scores: Scores | None, draw: int) -> Tensor:
    return m_and_l([stream(scores, draw)])


def sums_of_a_pass(scores: Scores | None, draw: int) -> Tensor:
    scores, values = stream(scores, draw)
    lengths = range(1, len(scores) + 1)
    return torch.stack([rows_of_exact([(scores[:n], values[:n])]) for n in lengths])


# exp_from -----------------------------------------------------------------------------------------

EXPS = (
    # name, what it isolates, what its failure means, score, m
    ("score -inf, m -inf", "a masked token, and none before it", "", MASKED, MASKED),
    ("score -inf, m 0.5", "a masked token", "", MASKED, 0.5),
    ("score 0.25, m 0.5", "an ordinary token", "", 0.25, 0.5),
    ("score 2, m 2", "the largest score", "", 2.0, 2.0),
    ("score -1000, m 0", "a score far below", "", -1000.0, 0.0),
)


def run_exp(pages: Any, score: float, m: float, draw: int) -> Tensor:
    score, wanted = lower(score, m, draw), the_rule(score, m, draw)
    found = require_written(called(pages.exp_from, score, m))
    require_number(f"exp_from({score:g}, {m:g})", float(found), wanted.item())
    return torch.tensor([[float(found)]], dtype=torch.float64)


def lower(score: float, m: float, draw: int) -> float:
    """For another draw a lower score, unless it is the largest."""
    return score if score == m or not draw else score - seeded(5, draw).random()


def the_rule(score: float, m: float, draw: int) -> Tensor:
    score = lower(score, m, draw)
    wanted = 0.0 if score == MASKED else math.exp(score - m)
    return torch.tensor([[wanted]], dtype=torch.float64)


# part_of ------------------------------------------------------------------------------------------

PIECES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, scores
    ("8 tokens of the worked example", "one query", "", None),
    ("many queries", "some tokens are masked", "", [0.5, 3.0, -2.0, 1.25, 2.5]),
    ("near_10000", "all near 10,000", "", [9_999.0, 10_000.5, 10_001.0]),
    ("near_minus_1000", "all near -1,000", "", [-1000.0, -1001.5, -999.0]),
)


def queries_of(scores: Scores | None, draw: int) -> tuple[list[Scores], Sequence[Scores]]:
    """The scores that each query gives the tokens, and the v of these."""
    if scores is None:
        (own, values), _ = tokens_of(None, draw)
        return [own], values
    ((own, values),) = tokens_of([scores], draw)
    masked = [MASKED] * len(own)
    return [own, own[::-1], [own[0], *masked[1:]], masked], values


def run_part_of(pages: Any, scores: Scores | None, draw: int) -> Tensor:
    """On [2, num_queries, num_tokens]: the second head has the queries in the opposite order."""
    rows, values = queries_of(scores, draw)
    double = {"dtype": torch.float64}
    qk, v = torch.tensor([rows, rows[::-1]], **double), torch.tensor([values] * 2, **double)
    part = require_part(pages, pages.part_of(qk.clone(), v.clone()))
    require_shapes(part, [2, len(rows)], v.shape[-1])
    found = []
    for head, row in ((head, row) for head in (0, 1) for row in range(len(rows))):
        own = qk[head, row].tolist()
        sees = "" if max(own) > MASKED else ", which sees no token,"
        one = pages.Part(*(numbers[head, row] for numbers in part))
        require_as_wanted(one, exact([(own, values)]), f"of head {head}, query {row}{sees}")
        found.append(rows_of(one))
    return torch.stack(found)


def require_shapes(part: Any, shape: list[int], head_size: int) -> None:
    for name, like in (("m", shape), ("l", shape), ("acc", [*shape, head_size])):
        tensor = getattr(part, name)
        if not torch.is_tensor(tensor) or list(tensor.shape) != like:
            found = list(tensor.shape) if torch.is_tensor(tensor) else type(tensor).__name__
            raise AnswerError(f"{name} must have the shape {like}; yours is {found}")


def first_query(scores: Scores | None, draw: int) -> Tensor:
    rows, values = queries_of(scores, draw)
    return m_and_l([(rows[0], values)])


def sums_of_a_piece(scores: Scores | None, draw: int) -> Tensor:
    rows, values = queries_of(scores, draw)
    return torch.stack([rows_of_exact([(own, values)]) for own in (*rows, *rows[::-1])])


# merge --------------------------------------------------------------------------------------------

NOTHING = (MASKED, MASKED)
OWN_M = (
    "Each part uses its own m. Before adding, multiply its l and its acc by "
    "exp(its m - common m), which is never above 1; without m, exp overflows or is 0."
)
NO_TOKEN = "A part without a token has the weight exp(-inf) = 0. But -inf - (-inf) is NaN."
MERGE_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, the scores of each part
    ("the worked example", "head 0, 11 tokens as 8 and 3", OWN_M, None),
    ("two_parts", "two parts of three", OWN_M, [(0.5, -2.0, 1.25), (3.0, 2.5, 2.0)]),
    ("different_sizes", "parts of 1, 2 and 5 tokens", "A part counts by its l, not as 1.",
     [(1.5,), (1.0, 2.0), (1.25, 0.5, 1.0, 0.0, 1.75)]),
    ("equal_maxima", "all parts have the same maximum", "l must be added up too, not only acc.",
     [(2.0, 1.0), (2.0, -1.0, 0.5), (2.0,)]),
    ("far_apart", "near -300 and near 300", OWN_M, [(-300.0, -299.5), (300.0, 301.0)]),
    ("near_minus_300", "all near -300", OWN_M, [(-300.0, -299.5), (-301.0, -298.5, -300.25)]),
    ("near_300", "all near 300", OWN_M, [(300.0, 299.5), (301.0, 298.5, 300.25)]),
    ("many_parts", "16 parts, rising by about 40", OWN_M, [(40.0 * i - 300,) for i in range(16)]),
    ("empty_first", "two empty parts first", NO_TOKEN, [NOTHING, NOTHING, (1.0, 2.0), (0.5,)]),
    ("empty_between", "an empty part in the middle", NO_TOKEN, [(1.0, 2.0), NOTHING, (0.5,)]),
    ("empty_last", "two empty parts last", NO_TOKEN, [(0.5, -1.0), (1.5,), NOTHING, NOTHING]),
)  # fmt: skip


def queries_in_parts(parts: Sequence[Scores] | None, draw: int) -> tuple[list[Tokens], ...]:
    """The tokens of each part, of two queries: the second has the parts from the last to the
    first."""
    own = tokens_of(parts, draw)
    return own, own[::-1]


def run_merge(pages: Any, parts: Sequence[Scores] | None, draw: int) -> Tensor:
    """Merges the parts of two queries one by one."""
    queries = queries_in_parts(parts, draw)
    whole, found = pages.Part(*tensors(queries, slice(0, 1))), []
    for number in range(1, len(queries[0])):
        whole = merged(pages, whole, pages.Part(*tensors(queries, slice(number, number + 1))))
        for query, own in enumerate(queries):
            one = pages.Part(*(numbers[query] for numbers in whole))
            of = f"of query {query}, parts 0 to {number} merged"
            require_as_wanted(one, exact(own[: number + 1]), of)
            found.append(rows_of(one))
    return torch.stack(found)


def tensors(queries: Sequence[list[Tokens]], parts: slice) -> tuple[Tensor, ...]:
    """m, l [num_queries] and acc [num_queries, head_size] over some parts of each query."""
    numbers = [exact(own[parts]) for own in queries]
    flat = [(float(m), float(l), [float(a) for a in acc]) for m, l, acc in numbers]
    columns = zip(*flat, strict=True)
    return tuple(torch.tensor(column, dtype=torch.float64) for column in columns)


def merged(pages: Any, one: Any, other: Any) -> Any:
    """What merge returns. AnswerError if it changed one of the two."""
    before = deepcopy((one, other))
    part = require_part(pages, pages.merge(one, other))
    require_shapes(part, list(one.m.shape), one.acc.shape[-1])
    for mine, its in zip((one, other), before, strict=True):
        if not all(map(torch.equal, mine, its)):
            raise AnswerError("it changed one of the two parts; it must only read them")
    return part


def all_parts(parts: Sequence[Scores] | None, draw: int) -> Tensor:
    return m_and_l(tokens_of(parts, draw))


def sums_of_all_parts(parts: Sequence[Scores] | None, draw: int) -> Tensor:
    queries = queries_in_parts(parts, draw)
    ends = range(2, len(queries[0]) + 1)
    return torch.stack([rows_of_exact(own[:end]) for end in ends for own in queries])


# merge_outputs ------------------------------------------------------------------------------------


def merge_outputs(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """Merge the finished outputs of several parts, by the logarithms of their sums.

    outs     [num_parts, num_heads, head_size] float32   acc / l of each part
    lses     [num_parts, num_heads] float32              m + log(l) of each part
    returns  out [num_heads, head_size], lse [num_heads] over the tokens of all parts, float32

    A part without a token has lse = -inf, and any finite numbers in its out. Another head of
    that part may hold tokens. For each head, at least one part holds a token.
    """
    # 1. exp(lse) is the sum of exp(score) over the part: that is its weight, but it may overflow
    # 2. so subtract the largest lse of each head before exp
    # 3. out is the weighted mean of the outs
    # 4. lse is the logarithm of the sum of all exp(lse): don't forget what you subtracted
    ### BEGIN SOLUTION
    m = lses.amax(dim=0)
    weights = torch.exp(lses - m)  # [num_parts, num_heads]
    total = weights.sum(dim=0)
    out = (outs * weights[..., None]).sum(dim=0) / total[:, None]
    return out, m + total.log()
    ### END SOLUTION


LEFTOVER = 9.0  # fills the out of a part without a token
WEIGHT = (
    "A part weighs exp(lse), e to the power of lse: subtract the head's largest lse before exp, "
    "add it again after the (natural) log. Divide out by the sum of the weights."
)


OUTPUTS_CASES = (
    *(
        (name, isolates, WEIGHT if meaning == OWN_M else meaning, scores, 1.0)
        for name, isolates, meaning, scores in MERGE_CASES
    ),
    ("own_maximum", "head 0 near -300, head 1 near 300", "Each head needs its own maximum.",
     [(-300.0, -299.5), (-301.0, -298.5)], 600.0),
)  # fmt: skip
OUTPUTS = "out|lse", "head", "dim"


def heads_of(scores: list | None, shift: float, draw: int) -> list[list[Tokens]]:
    """Head 0 has the parts as they are; head 1 from the last to the first, scores shifted."""
    parts = tokens_of(scores, draw)
    return [parts, [([s + shift for s in part], v) for part, v in reversed(parts)]]


def finished(parts: Sequence[Tokens]) -> tuple[list[float], float]:
    """out and lse over the tokens of these parts."""
    m, l, acc = exact(parts)
    if l == 0:
        return [LEFTOVER] * len(acc), -math.inf
    return [float(a / l) for a in acc], float(m + l.ln())


def outs_and_lses(*case: float) -> tuple[Tensor, Tensor]:
    by_head = [[finished([part]) for part in parts] for parts in heads_of(*case)]
    outs, lses = (torch.tensor([[pair[i] for pair in head] for head in by_head]) for i in (0, 1))
    return outs.transpose(0, 1).contiguous(), lses.T.contiguous()


def side_by_side(out: Tensor, lse: Tensor) -> Tensor:
    """[2, num_heads, head_size]: out, and the lse of each head again and again."""
    return torch.stack([out, lse[:, None].expand_as(out)])


def outputs_run(answer: Callable, *case: float) -> Tensor:
    outs, lses = outs_and_lses(*case)
    merged = called(answer, outs, lses)
    return side_by_side(*require_tensors(merged, "out and lse", [outs[0], lses[0]]))


def attention_with_50_digits(*case: float) -> Tensor:
    both = zip(*map(finished, heads_of(*case)), strict=True)
    return side_by_side(*(torch.tensor(side, dtype=torch.float64) for side in both))


def outputs_bound(*case: float) -> float:
    """An lse near 300 is known to 2 ** -16 in float32, and so are the weights made of it."""
    lses = outs_and_lses(*case)[1]
    return 2**-21 * max(4.0, float(lses[lses.isfinite()].abs().max()))


SUMS, M_AND_L = ("part", "m|l|acc", "element"), ("query", "m|l")
CASES: dict[str, Callable[[int], list[Trial]]] = {
    "add_token": graded(
        PASSES, run_pass, sums_of_a_pass, SUMS, bound=BOUND, goal=(all_of_a_pass, M_AND_L)
    ),
    "exp_from": graded(EXPS, run_exp, the_rule, ("pair", "weight"), bound=BOUND),
    "part_of": graded(
        PIECES, run_part_of, sums_of_a_piece, SUMS, bound=BOUND, goal=(first_query, M_AND_L)
    ),
    "merge": graded(
        MERGE_CASES, run_merge, sums_of_all_parts, SUMS, bound=BOUND, goal=(all_parts, M_AND_L)
    ),
}
EXERCISES = (
    Exercise(
        solution=merge_outputs,
        cases=graded(
            OUTPUTS_CASES, outputs_run, attention_with_50_digits, OUTPUTS, bound=outputs_bound
        ),
    ),
)
