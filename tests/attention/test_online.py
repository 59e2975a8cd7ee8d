"""Online softmax: split and merged in every way, on extreme scores."""

import math
import random

import pytest
import torch

from pa_tutorial.attention.online import Part, empty_part, merge, part_of

hypothesis = pytest.importorskip(
    "hypothesis", reason="hypothesis draws the tests: an extra for tests"
)
st = hypothesis.strategies

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


def merged_in_any_order(parts: list[Part], order: random.Random) -> Part:
    """Two parts at random become one, until one is left: every order, every grouping."""
    while len(parts) > 1:
        order.shuffle(parts)
        parts.append(merge(parts.pop(), parts.pop()))
    return parts[0]


@hypothesis.settings(max_examples=150, deadline=None, derandomize=True)
@hypothesis.example([-math.inf, -math.inf, 1.0, -math.inf], {1, 2, 3}, random.Random(0))
@hypothesis.example([-1e4, 1e4, -1e4], {1}, random.Random(0))
@hypothesis.given(scores_lists, st.sets(st.integers(1, 23)), st.randoms(use_true_random=False))
@pytest.mark.online_softmax
def test_any_split_and_any_order_of_merging_is_exact(scores, cuts, order) -> None:
    """Within a few roundings of the largest v: there is no cancellation in the weights."""
    qk = torch.tensor([scores], dtype=torch.float64)
    v = torch.tensor([[i, 1 - 2 * (i % 2)] for i in range(len(scores))], dtype=torch.float64)
    cuts = [cut for cut in sorted(cuts) if cut < len(scores)]
    pieces = zip(qk.tensor_split(cuts, dim=1), v.tensor_split(cuts), strict=True)
    # a part of no token changes nothing wherever it comes in
    part = merged_in_any_order(
        [*map(part_of, *zip(*pieces, strict=True)), empty_part((1,), 2)], order
    )
    assert part.m.item() == max(scores)
    expected = qk.softmax(dim=1) @ v
    bound = 1e-13 * len(scores) * max(v.abs().max().item(), 1.0)
    torch.testing.assert_close(part.acc / part.l[:, None], expected, rtol=0, atol=bound)


@pytest.mark.parametrize("name", ["one", "other"])
@pytest.mark.parametrize("field", Part._fields)
def test_a_part_of_another_shape_or_type_is_refused(name: str, field: str) -> None:
    """Each field of each part by itself: broadcast, it would be merged with the wrong queries."""
    part = Part(torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2, 3, 8))
    value = getattr(part, field)
    for wrong, message in ((value[:1], f"^{name} has shapes"), (value.int(), f"{name}.{field}")):
        with pytest.raises(ValueError, match=message):
            merge(**{"one": part, "other": part} | {name: part._replace(**{field: wrong})})
