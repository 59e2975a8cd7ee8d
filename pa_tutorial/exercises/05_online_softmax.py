"""Exercises of notebook 05: one pass over the scores, merging parts, merging finished outputs."""

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal, localcontext

import torch
from torch import Tensor

from pa_tutorial.attention.online import Part
from pa_tutorial.checks.calls import AnswerError, Function
from pa_tutorial.checks.cases import WORKED_EXAMPLE
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import called, graded, require_floats, require_tensors
from pa_tutorial.exercises.once import once
from pa_tutorial.exercises.random_inputs import reseeded, seeded

Tokens = tuple[Sequence[float], Sequence[Sequence[float]]]  # scores, and the v of each


def _exact(parts: Sequence[Tokens]) -> tuple[Decimal, Decimal, list[Decimal]]:
    """m, l and acc over the tokens of all these parts: from the definition, with 50 digits."""
    scores = [Decimal(score) for part, _ in parts for score in part]
    columns = zip(*(v for _, part in parts for v in part), strict=True)
    with localcontext(prec=50):
        m = max(scores, default=Decimal("-Infinity"))
        weights = [(s - m).exp() if s.is_finite() else Decimal(0) for s in scores]
        acc = [sum(w * Decimal(x) for w, x in zip(weights, c, strict=True)) for c in columns]
        return m, Decimal(sum(weights)), acc


def _raised(parts: Sequence[Sequence[float]], draw: int) -> list[list[float]]:
    """Each score larger by up to 1/2, for another draw; equal ones stay equal, -inf stays."""
    rng = seeded(0, draw)
    more = {score: rng.random() / 2 if draw else 0.0 for part in parts for score in part}
    return [[score + more[score] for score in part] for part in parts]


# 1. ---------------------------------------------------------------------------------------------
def running_max_and_sum(scores: Iterator[float]) -> tuple[float, float]:
    """The maximum m of the scores and the sum l of exp(score - m), in one pass.

    scores   an iterator: `for score in scores` gives each score once, and only once;
             -inf for a masked token (one that the query does not see)
    returns  (m, l); (-inf, 0.0) if no token is seen
    """
    # 1. what are m and l before the first score?
    # 2. for each score: what is the maximum now?
    # 3. l uses the old maximum: bring it to the new one, then add the new score's term
    # 4. -inf - (-inf) is NaN: when would you compute it, and what should you do instead?
    ### BEGIN SOLUTION
    m, l = -math.inf, 0.0
    for score in scores:
        if score == -math.inf:
            continue
        m_new = max(m, score)
        l = l * math.exp(m - m_new) + math.exp(score - m_new)
        m = m_new
    return m, l
    ### END SOLUTION


MASKED = -math.inf
_FROM_M = "exp(-1,000) is 0 and exp(10,000) overflows: subtract the maximum before exp."
_RESCALE = "l so far uses the old maximum: multiply it by exp(old m - new m)."
_UNSEEN = "A masked token adds 0. While no token was seen, m is -inf and l is 0."
PASS_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, scores
    ("ordinary", "scores near 0", _RESCALE, [0.5, -2.0, 1.25, -0.5, 3.0, 0.0, 2.5, 3.5, 1.0]),
    ("equal", "all scores equal", "Each exp(score - m) is 1: l counts the tokens.", [0.25] * 9),
    ("one_token", "one token", "m is its score and l is exp(0) = 1.", [-3.0]),
    ("near_minus_300", "all near -300", _FROM_M, [-300.0, -299.5, -301.0, -300.25]),
    ("near_minus_1000", "all near -1,000", _FROM_M, [-1000.0, -1001.5, -999.0]),
    ("near_10000", "all near 10,000", _FROM_M, [9_999.0, 10_000.5, 10_001.0, 9_999.5]),
    ("rising", "each score is the largest so far", _RESCALE, [float(i) for i in range(33)]),
    ("rising_by_800", "each is the largest by far", _RESCALE, [800.0 * i - 9e3 for i in range(33)]),
    ("falling", "the first is the largest", "Only a larger score changes m.",
     [300.0 - i for i in range(33)]),
    ("masked_first", "the first tokens are masked", _UNSEEN, [MASKED, MASKED, 1.0, 2.0]),
    ("masked_between", "a token in the middle is masked", _UNSEEN, [1.0, MASKED, 2.0]),
    ("masked_last", "the last token is masked", _UNSEEN, [1.0, 2.0, MASKED]),
    ("nothing_visible", "all tokens are masked", _UNSEEN, [MASKED, MASKED]),
    ("empty", "there is no token", _UNSEEN, []),
)  # fmt: skip


def pass_run(answer: Function, scores: list[float], draw: int) -> Tensor:
    try:
        result = answer(once(*_raised([scores], draw)))
    except OverflowError:
        raise AnswerError(
            "math.exp overflowed, as it does above 709. Subtract the new maximum before you take "
            "the exponential: then its argument is never above 0"
        ) from None
    m_and_l = require_floats(result, "ml")
    return torch.tensor(m_and_l, dtype=torch.float64)[:, None]


def sums_with_50_digits(scores: list[float], draw: int) -> Tensor:
    m, l, _ = _exact([(part, [[]] * len(part)) for part in _raised([scores], draw)])
    return torch.tensor([[float(m)], [float(l)]], dtype=torch.float64)


# 2. ---------------------------------------------------------------------------------------------
def merge_parts(parts: Sequence[tuple[float, float, list[float]]]) -> list[float]:
    """The output of attention over the tokens of all parts, for one query.

    parts    a Part (m, l, acc) for each, acc a list of head_size floats. A part may hold no
             token: then m is -inf, l is 0 and acc is all 0. At least one part holds a token.
    returns  head_size floats
    """
    # 1. the common maximum is the largest m of all parts
    # 2. each part uses its own m: which factor brings its l and its acc to the common one?
    # 3. add up l, add up acc; divide once, at the end
    ### BEGIN SOLUTION
    m = max(part_m for part_m, _, _ in parts)
    l, acc = 0.0, [0.0] * len(parts[0][2])
    for part_m, part_l, part_acc in parts:
        rescale = math.exp(part_m - m)
        l += part_l * rescale
        acc = [a + x * rescale for a, x in zip(acc, part_acc, strict=True)]
    return [a / l for a in acc]
    ### END SOLUTION


NOTHING = (MASKED, MASKED)
_OWN_M = (
    "Each part uses its own m. Before adding, multiply its l and its acc by "
    "exp(its m - common m), which is never above 1; without m, exp overflows or is 0."
)
_NO_TOKEN = "A part without a token has the weight exp(-inf) = 0. But -inf - (-inf) is NaN."
MERGE_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, the scores of each part
    ("one_part", "one part", "The output is acc / l: acc is not divided yet, and only once.",
     [(1.0, -0.5, 2.0)]),
    ("two_parts", "two parts of three", _OWN_M, [(0.5, -2.0, 1.25), (3.0, 2.5, 2.0)]),
    ("different_sizes", "parts of 1, 2 and 5 tokens", "A part counts by its l, not as 1.",
     [(1.5,), (1.0, 2.0), (1.25, 0.5, 1.0, 0.0, 1.75)]),
    ("equal_maxima", "all parts have the same maximum", "l must be added up too, not only acc.",
     [(2.0, 1.0), (2.0, -1.0, 0.5), (2.0,)]),
    ("far_apart", "near -300 and near 300", _OWN_M, [(-300.0, -299.5), (300.0, 301.0)]),
    ("near_minus_300", "all near -300", _OWN_M, [(-300.0, -299.5), (-301.0, -298.5, -300.25)]),
    ("near_300", "all near 300", _OWN_M, [(300.0, 299.5), (301.0, 298.5, 300.25)]),
    ("many_parts", "16 parts, rising by about 40", _OWN_M, [(40.0 * i - 300,) for i in range(16)]),
    ("empty_first", "two empty parts first", _NO_TOKEN, [NOTHING, NOTHING, (1.0, 2.0), (0.5,)]),
    ("empty_between", "an empty part in the middle", _NO_TOKEN, [(1.0, 2.0), NOTHING, (0.5,)]),
    ("empty_last", "two empty parts last", _NO_TOKEN, [(0.5, -1.0), (1.5,), NOTHING, NOTHING]),
    ("worked_example", "head 0 of the worked example, 11 tokens as 8 and 3", _OWN_M, None),
)  # fmt: skip
PARTS_CASES = (
    *MERGE_CASES,  # and those for which a float has more room than a float32
    ("near_minus_1000", "all near -1,000", _OWN_M, [(-1000.0, -1001.0), (-999.5,)]),
    ("near_10000", "all near 10,000", _OWN_M, [(10_000.0, 9_999.0), (10_001.5,)]),
    ("very_far_apart", "near -10,000, 10,000, -10,000", _OWN_M, [(-1e4,), (1e4, 9e3), (-1e4,)]),
)  # fmt: skip


def _parts(scores: list[tuple[float, ...]] | None, draw: int) -> list[Tokens]:
    """The tokens of each part; for None those of the worked example."""
    if scores is None:
        example = reseeded(WORKED_EXAMPLE, draw)
        qk = example.expected()["qk"][0, 0].tolist()
        values = example.inputs().values[0][:, 0].tolist()
        return [(qk[:8], values[:8]), (qk[8:], values[8:])]
    # of one sign in another draw: no output is so close to 0 that rounding shows
    rng = seeded(0, draw)
    random = rng.random if draw else rng.standard_normal
    parts = _raised(scores, draw)
    return [(part, (random((len(part), 3)) + 0.5).tolist()) for part in parts]


def merge_run(answer: Function, scores: list | None, draw: int) -> Tensor:
    exact = [_exact([part]) for part in _parts(scores, draw)]
    parts = [Part(float(m), float(l), [float(a) for a in acc]) for m, l, acc in exact]
    names = [f"out[{i}]" for i in range(len(parts[0].acc))]
    return torch.tensor([require_floats(called(answer, parts), names)], dtype=torch.float64)


def attention_over_all_tokens(scores: list | None, draw: int) -> Tensor:
    _, l, acc = _exact(_parts(scores, draw))
    return torch.tensor([[float(a / l) for a in acc]], dtype=torch.float64)


# 3. ---------------------------------------------------------------------------------------------
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
_WEIGHT = (
    "A part weighs exp(lse), e to the power of lse: subtract the head's largest lse before exp, "
    "add it again after the (natural) log."
)


OUTPUTS_CASES = (
    *(
        (name, isolates, _WEIGHT if meaning == _OWN_M else meaning, scores, 1.0)
        for name, isolates, meaning, scores in MERGE_CASES
    ),
    ("own_maximum", "head 0 near -300, head 1 near 300", "Each head needs its own maximum.",
     [(-300.0, -299.5), (-301.0, -298.5)], 600.0),
)  # fmt: skip
OUTPUTS = "out|lse", "head", "dim"


def _heads(scores: list | None, shift: float, draw: int) -> list[list[Tokens]]:
    """Head 0 has the parts as they are; head 1 from the last to the first, scores shifted."""
    parts = _parts(scores, draw)
    return [parts, [([s + shift for s in part], v) for part, v in reversed(parts)]]


def _finished(parts: Sequence[Tokens]) -> tuple[list[float], float]:
    """out and lse over the tokens of these parts."""
    m, l, acc = _exact(parts)
    if l == 0:
        return [LEFTOVER] * len(acc), -math.inf
    return [float(a / l) for a in acc], float(m + l.ln())


def _outs_and_lses(*case: float) -> tuple[Tensor, Tensor]:
    by_head = [[_finished([part]) for part in parts] for parts in _heads(*case)]
    outs, lses = (torch.tensor([[pair[i] for pair in head] for head in by_head]) for i in (0, 1))
    return outs.transpose(0, 1).contiguous(), lses.T.contiguous()


def side_by_side(out: Tensor, lse: Tensor) -> Tensor:
    """[2, num_heads, head_size]: out, and the lse of each head again and again."""
    return torch.stack([out, lse[:, None].expand_as(out)])


def outputs_run(answer: Function, *case: float) -> Tensor:
    outs, lses = _outs_and_lses(*case)
    merged = called(answer, outs, lses)
    return side_by_side(*require_tensors(merged, "out and lse", [outs[0], lses[0]]))


def attention_with_50_digits(*case: float) -> Tensor:
    both = zip(*map(_finished, _heads(*case)), strict=True)
    return side_by_side(*(torch.tensor(side, dtype=torch.float64) for side in both))


def outputs_bound(*case: float) -> float:
    """An lse near 300 is known to 2 ** -16 in float32, and so are the weights made of it."""
    lses = _outs_and_lses(*case)[1]
    return 2**-21 * max(4.0, float(lses[lses.isfinite()].abs().max()))


EXERCISES = (
    Exercise(
        solution=running_max_and_sum,
        cases=graded(PASS_CASES, pass_run, sums_with_50_digits, ("m|l", "number"), bound=1e-12),
        is_warm_up=True,
    ),
    Exercise(
        solution=merge_parts,
        cases=graded(
            PARTS_CASES, merge_run, attention_over_all_tokens, ("query", "dim"), bound=1e-12
        ),
    ),
    Exercise(
        solution=merge_outputs,
        cases=graded(
            OUTPUTS_CASES, outputs_run, attention_with_50_digits, OUTPUTS, bound=outputs_bound
        ),
    ),
)
