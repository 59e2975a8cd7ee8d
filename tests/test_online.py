"""Online softmax: over lists and over tensors, split and merged in every way, on extreme scores."""

import math
import random
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.attention.online import (
    Part,
    add_token,
    divide,
    empty_part,
    exp_from,
    exps_from,
    merge,
    merge_lists,
    nothing_seen,
    one_pass,
    online_attention,
    part_of,
    three_passes,
)
from pa_tutorial.checks.comparing import bounds_of, relative_errors, to_float64
from pa_tutorial.walk.cases import DECODE_CASES
from pa_tutorial.walk.problem import DecodeProblem

hypothesis = pytest.importorskip(
    "hypothesis", reason="hypothesis draws the tests: an extra for tests"
)
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies

Lists = list[list[float]]

EXTREME = {
    "all_minus_300": [-300.0] * 7,
    "near_minus_300": [-300.0, -299.5, -301.0, -300.25],
    "all_10000": [10_000.0] * 5,
    "near_10000": [9_999.0, 10_000.5, 10_001.0],
    "all_equal": [0.25] * 9,
    "one_token": [-3.0],
    "one_token_far_below": [-1e4],
    "rising": [-300.0 + 40 * i for i in range(16)],
    "falling": [300.0 - 40 * i for i in range(16)],
    "far_apart": [-1e4, 1e4, -1e4],
    "masked_first": [-math.inf, -math.inf, 1.0, 2.0],
    "masked_between": [1.0, -math.inf, 2.0],
    "masked_last": [1.0, 2.0, -math.inf],
}


def values_for(scores: list[float]) -> Lists:
    """Two dimensions: one counts the tokens, one alternates."""
    return [[float(i), float(1 - 2 * (i % 2))] for i in range(len(scores))]


def exact(scores: list[float], values: Lists) -> list[float]:
    """Softmax and weighted sum with 50 digits; the oracle of this file."""
    with localcontext(prec=50):
        m = max(score for score in scores if score > -math.inf)
        weights = [
            Decimal(0) if score == -math.inf else (Decimal(score) - Decimal(m)).exp()
            for score in scores
        ]
        columns = zip(*values, strict=True)
        return [
            float(sum(w * Decimal(x) for w, x in zip(weights, column, strict=True)) / sum(weights))
            for column in columns
        ]


def assert_close(actual: list[float], scores: list[float], values: Lists) -> None:
    """Within a few roundings of the largest v: there is no cancellation in the weights."""
    size = max(abs(x) for v in values for x in v)
    expected = exact(scores, values)
    assert actual == pytest.approx(expected, rel=0, abs=1e-13 * len(scores) * max(size, 1.0))


@pytest.mark.parametrize("name", EXTREME)
def test_one_pass_gives_what_three_passes_give(name) -> None:
    scores, values = EXTREME[name], values_for(EXTREME[name])
    assert_close(three_passes(scores, values), scores, values)
    assert_close(divide(one_pass(scores, values)[-1]), scores, values)


@pytest.mark.parametrize("name", EXTREME)
def test_it_can_stop_after_every_token(name) -> None:
    scores, values = EXTREME[name], values_for(EXTREME[name])
    parts = one_pass(scores, values)
    assert len(parts) == len(scores) + 1
    for count, part in enumerate(parts):
        seen = scores[:count]
        assert part.m == max(seen, default=-math.inf)
        if any(score > -math.inf for score in seen):
            assert_close(divide(part), seen, values[:count])
        else:
            assert part == nothing_seen(2)


def test_the_sum_and_the_accumulator_count_from_the_maximum() -> None:
    part = add_token(add_token(nothing_seen(1), 1.0, [10.0]), 3.0, [100.0])
    assert part.m == 3.0
    assert part.l == pytest.approx(math.exp(-2) + 1)
    assert part.acc == pytest.approx([math.exp(-2) * 10 + 100])


def test_a_masked_token_changes_nothing() -> None:
    part = add_token(nothing_seen(1), 1.0, [10.0])
    assert add_token(part, -math.inf, [99.0]) == part
    nothing = add_token(nothing_seen(1), -math.inf, [99.0])
    assert nothing == nothing_seen(1)  # without the guard: NaN
    assert add_token(nothing, 1.0, [10.0]) == part


def test_the_trap_is_there() -> None:
    assert math.isnan(-math.inf - (-math.inf))
    assert exp_from(-math.inf, -math.inf) == 0.0
    infinite = torch.tensor([-math.inf])
    assert torch.exp(infinite - infinite).isnan()
    assert exps_from(infinite, infinite) == 0.0


def test_nothing_seen_has_no_output() -> None:
    with pytest.raises(ValueError, match="l is 0: no token was seen"):
        divide(nothing_seen(2))
    with pytest.raises(ValueError, match="l is 0: no token was seen"):
        divide(merge_lists(nothing_seen(2), nothing_seen(2)))


def test_a_step_is_a_merge_with_a_part_of_one_token() -> None:
    part = one_pass([0.5, -2.0], [[1.0], [3.0]])[-1]
    for score in (-5.0, 0.5, 7.0, -math.inf):
        assert add_token(part, score, [4.0]) == merge_lists(part, Part(score, 1.0, [4.0]))


def test_a_v_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        add_token(nothing_seen(2), 1.0, [1.0])
    with pytest.raises(ValueError, match="zip"):
        merge_lists(nothing_seen(2), nothing_seen(3))


@pytest.mark.parametrize("attend", [one_pass, three_passes])
@pytest.mark.parametrize("values", [[[1.0]], [[1.0]] * 3, [[1.0, 2.0], [1.0]]])
def test_scores_and_values_must_fit(attend, values) -> None:
    with pytest.raises(ValueError, match="zip"):
        attend([0.5, 1.5], values)


# Any split, any order of merging

scores_lists = st.lists(
    st.one_of(
        st.floats(-5, 5),
        st.floats(-310, -290),
        st.floats(9_990, 10_010),
        st.sampled_from([0.0, -300.0, 1e4, -math.inf]),
    ),
    min_size=1,
    max_size=24,
).filter(lambda scores: max(scores) > -math.inf)


def pieces(length: int, cuts: set[int]) -> list[slice]:
    """0 … length, cut at the given places."""
    ends = sorted({cut for cut in cuts if 0 < cut < length} | {length})
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def merged_in_any_order(parts: list[Part], merge_two, order: random.Random) -> Part:
    """Two parts at random become one, until one is left: every order, every grouping."""
    parts = list(parts)
    while len(parts) > 1:
        order.shuffle(parts)
        parts.append(merge_two(parts.pop(), parts.pop()))
    return parts[0]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(scores_lists, st.sets(st.integers(1, 23)), st.randoms(use_true_random=False))
def test_any_split_and_any_order_of_merging_lists(scores, cuts, order) -> None:
    values = values_for(scores)
    parts = [one_pass(scores[p], values[p])[-1] for p in pieces(len(scores), cuts)]
    part = merged_in_any_order(parts, merge_lists, order)
    assert part.m == max(scores)
    assert_close(divide(part), scores, values)


CASES = {
    case.name: case
    for case in DECODE_CASES
    if not case.about_blocks and max(case.seq_lens) <= 160 and case.head_size == 64
}


def scores_and_values(case: DecodeProblem, sequence: int) -> tuple[Tensor, Tensor]:
    """qk [num_heads, 1, seq_len] of the stage kv_cache, v [num_heads, seq_len, head_size]."""
    inputs = case.inputs()
    q, k, v = inputs.q[sequence : sequence + 1], inputs.keys[sequence], inputs.values[sequence]
    probe: dict[str, Tensor] = {}
    cached_attention(q, k, v, inputs.scale, inputs.alibi_slopes, probe)
    group = case.num_heads // case.num_kv_heads
    return probe["qk"], v.float().repeat_interleave(group, dim=1).transpose(0, 1)


@pytest.mark.online_softmax
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(data=st.data(), order=st.randoms(use_true_random=False))
def test_any_split_and_any_order_is_within_the_bound(name, data, order) -> None:
    case = CASES[name]
    for sequence, seq_len in enumerate(case.seq_lens):
        qk, v = scores_and_values(case, sequence)
        cuts = data.draw(st.sets(st.integers(1, max(1, seq_len - 1)), max_size=12))
        parts = [part_of(qk[..., p], v[:, p]) for p in pieces(seq_len, cuts)]
        # Parts of no token, and of masked tokens only, change nothing wherever they come in.
        parts += [empty_part(qk.shape[:2], case.head_size), part_of(qk - math.inf, v)]
        part = merged_in_any_order(parts, merge, order)
        out = (part.acc / part.l[..., None])[:, 0].to(case.dtype)
        errors = relative_errors(to_float64(out), case.expected()["out"][sequence])
        assert errors.max() <= bounds_of(case.id)["out"]


def test_the_order_of_two_parts_changes_no_bit() -> None:
    qk, v = scores_and_values(CASES["ordinary_softmax"], 0)
    one, other = part_of(qk[..., :9], v[:, :9]), part_of(qk[..., 9:], v[:, 9:])
    assert all(map(torch.equal, merge(one, other), merge(other, one)))


def test_a_part_of_masked_tokens_is_empty_and_has_no_nan() -> None:
    qk = torch.full((2, 3, 4), -math.inf)
    part = part_of(qk, torch.randn(2, 4, 5))
    empty = empty_part((2, 3), 5)
    assert all(map(torch.equal, part, empty))
    assert all(map(torch.equal, merge(part, part), empty))


def test_some_queries_may_see_no_token_of_a_part() -> None:
    qk = torch.tensor([[[-math.inf, -math.inf], [1.0, 2.0]]])
    v = torch.randn(1, 2, 5, generator=torch.Generator().manual_seed(0))
    part = part_of(qk, v)
    assert part.l[0, 0] == 0
    assert torch.equal(part.acc[0, 0], torch.zeros(5))
    expected = torch.softmax(qk[0, 1], dim=0) @ v[0]
    assert torch.allclose(part.acc[0, 1] / part.l[0, 1], expected)


def test_lists_and_tensors_agree() -> None:
    """The same m, l and acc, not only the same output."""
    rng = np.random.default_rng(0)
    scores, values = rng.standard_normal(11) * 3, rng.standard_normal((11, 4))
    by_hand = one_pass(scores.tolist(), values.tolist())[-1]
    m, l, acc = part_of(torch.tensor(scores)[None], torch.tensor(values))
    assert m.item() == by_hand.m
    assert l.item() == pytest.approx(by_hand.l)
    assert acc[0].tolist() == pytest.approx(by_hand.acc)


@pytest.mark.parametrize("new", [1, 2, 5])
def test_the_causal_mask_holds_for_several_new_tokens(new) -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(5, heads, 8, generator=draw) for heads in (4, 2, 2))
    slopes = torch.rand(4, generator=draw)
    expected = cached_attention(q[-new:], k, v, 0.3, slopes)
    assert torch.allclose(online_attention(q[-new:], k, v, 0.3, slopes), expected, atol=1e-6)


def test_the_output_has_the_type_of_q() -> None:
    q, k, v = (torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0)) for _ in range(3))
    assert online_attention(q.bfloat16(), k, v, 0.3).dtype == torch.bfloat16
    assert online_attention(q, k.half(), v.half(), 0.3).dtype == torch.float32
