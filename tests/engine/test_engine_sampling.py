"""Sampling: the distribution is that of transformers, and the draws follow it.

That a sample depends on its request and its number alone: test_engine_machine.py.
"""

import pytest
import torch
from torch import Tensor

from pa_tutorial.engine import SamplingParams
from pa_tutorial.engine.sampling import choose_token, probabilities, random_number

transformers = pytest.importorskip(
    "transformers", reason="transformers is the reference of the engine: an extra for tests"
)

SETTINGS = [
    SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    for temperature in (0.3, 1.0, 2.5)
    for top_k, top_p in ((0, 1.0), (1, 1.0), (7, 1.0), (0, 0.6), (0, 0.95), (20, 0.8), (500, 0.01))
]


def random_scores(seed: int, vocab_size: int = 200) -> Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def transformers_probabilities(scores: Tensor, params: SamplingParams) -> Tensor:
    """What model.generate(do_sample=True) draws from: its warpers, in its order."""
    warpers = [transformers.TemperatureLogitsWarper(float(params.temperature))]
    if params.top_k:
        warpers.append(transformers.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(transformers.TopPLogitsWarper(params.top_p))
    warped = scores.double()[None]
    for warper in warpers:
        warped = warper(None, warped)
    return warped.softmax(dim=-1)[0]


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_probabilities_are_those_of_transformers(params) -> None:
    for seed in range(20):
        scores = random_scores(seed)
        ours, theirs = probabilities(scores, params), transformers_probabilities(scores, params)
        assert torch.equal(ours > 0, theirs > 0), "the same tokens"
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-15)
        assert float(ours.sum()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "options", "kept"),
    [
        # All that are as good as the last of top_k; of equal ones at the edge of top_p, those with
        # the lowest ids, as many as transformers keeps.
        ([1.0, 3.0, 2.0, 2.0, 2.0, 0.0], {"top_k": 2}, [1, 2, 3, 4]),
        ([0.0, 4.0, 1.0, 1.0, 1.0, 1.0], {"top_p": 0.87}, [1, 2, 3]),
        # The token that reaches top_p exactly is kept, and the next is not.
        ([0.0] * 4, {"top_p": 0.5}, [0, 1]),
    ],
    ids=str,
)
def test_at_the_edges_as_many_are_kept_as_by_transformers(scores, options, kept) -> None:
    params = SamplingParams(temperature=1.0, **options)
    ours = probabilities(torch.tensor(scores), params)
    theirs = transformers_probabilities(torch.tensor(scores), params)
    assert ours.nonzero().flatten().tolist() == kept
    torch.testing.assert_close(ours.sort().values, theirs.sort().values)
    greedy = choose_token(torch.tensor(scores), SamplingParams(), 0, 0)
    assert greedy == scores.index(max(scores)), "of equally likely ones that with the lowest id"


def test_draws_follow_the_probabilities() -> None:
    """4000 draws, of many samples in many steps."""
    scores, number = random_scores(3, vocab_size=12) / 3, 4000
    params = SamplingParams(temperature=0.7, top_k=6, seed=12)
    places = [divmod(n, 64) for n in range(number)]
    assert len({random_number(7, *place) for place in places}) == number
    draws = torch.tensor([choose_token(scores, params, *place) for place in places])
    drawn = torch.bincount(draws, minlength=12) / number
    expected = transformers_probabilities(scores, params)
    assert (drawn[expected == 0] == 0).all()
    # A standard deviation is at most (0.25 / number) ** 0.5 = 0.008.
    assert (drawn - expected).abs().max() < 0.03


@pytest.mark.parametrize("temperature", [0.0, 1e-2, 5e-324])
@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"top_p": 0.5}], ids=str)
def test_a_tiny_temperature_is_greedy(temperature, options) -> None:
    for seed in range(10):
        scores = random_scores(seed)
        scores[scores.argmax()] += 1.0  # so that 0.01 is tiny
        params = SamplingParams(temperature=temperature, **options)
        assert choose_token(scores, params, 0, seed) == int(scores.argmax())
