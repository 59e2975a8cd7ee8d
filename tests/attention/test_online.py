"""Online softmax: split and merged in every way, on extreme scores."""

import math
import random

import pytest
import torch

from pa_tutorial.attention.online import Part, empty_part, merge, part_of

hypothesis = pytest.importorskip(
    "hypothesis", reason="hypothesis draws the tests: an extra for tests"
)
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies

Lists = list[list[float]]


def values_for(scores: list[float]) -> Lists:
    """Two dimensions: one counts the tokens, one alternates."""
    return [[float(i), float(1 - 2 * (i % 2))] for i in range(len(scores))]


def assert_close(actual: list[float], scores: list[float], values: Lists) -> None:
    """Within a few roundings of the largest v: there is no cancellation in the weights."""
    size = max(abs(x) for v in values for x in v)
    weights, v = torch.tensor(scores, dtype=torch.float64).softmax(0), torch.tensor(values).double()
    bound = 1e-13 * len(scores) * max(size, 1.0)
    assert actual == pytest.approx((weights @ v).tolist(), rel=0, abs=bound)


def float64_part(scores: list[float], values: Lists) -> Part:
    """Of one query."""
    qk = torch.tensor([scores], dtype=torch.float64)
    return part_of(qk, torch.tensor(values, dtype=torch.float64))


def output(part: Part) -> list[float]:
    return (part.acc / part.l[..., None])[0].tolist()


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


def merged_in_any_order(parts: list[Part], order: random.Random) -> Part:
    """Two parts at random become one, until one is left: every order, every grouping."""
    parts = list(parts)
    while len(parts) > 1:
        order.shuffle(parts)
        parts.append(merge(parts.pop(), parts.pop()))
    return parts[0]


@settings(max_examples=300, deadline=None, derandomize=True)
@hypothesis.example([-300.0] * 7, set(), random.Random(0))
@hypothesis.example([-math.inf, -math.inf, 1.0, -math.inf], {1, 2, 3}, random.Random(0))
@hypothesis.example([-1e4, 1e4, -1e4], {1}, random.Random(0))
@given(scores_lists, st.sets(st.integers(1, 23)), st.randoms(use_true_random=False))
@pytest.mark.online_softmax
def test_any_split_and_any_order_of_merging_is_exact(scores, cuts, order) -> None:
    values = values_for(scores)
    parts = [float64_part(scores[p], values[p]) for p in pieces(len(scores), cuts)]
    parts += [empty_part((1,), 2)]  # a part of no token changes nothing wherever it comes in
    part = merged_in_any_order(parts, order)
    assert part.m.item() == max(scores)
    assert_close(output(part), scores, values)


@pytest.mark.parametrize("name", ["one", "other"])
@pytest.mark.parametrize("field", Part._fields)
def test_a_part_of_another_shape_or_type_is_refused(name: str, field: str) -> None:
    """Each field of each part by itself: broadcast, it would be merged with the wrong queries."""
    part = Part(torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2, 3, 8))
    value = getattr(part, field)
    for wrong, message in (
        (value[:1], rf"^{name} has shapes .*; m, l and acc must have "),
        (value.int(), rf"{name}.{field}.dtype is torch.int32; it must be of real numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            merge(**{"one": part, "other": part} | {name: part._replace(**{field: wrong})})


def test_the_order_of_two_parts_changes_no_bit() -> None:
    qk, v = torch.randn(4, 1, 29), torch.randn(4, 29, 64)
    one, other = part_of(qk[..., :9], v[:, :9]), part_of(qk[..., 9:], v[:, 9:])
    assert all(map(torch.equal, merge(one, other), merge(other, one)))
