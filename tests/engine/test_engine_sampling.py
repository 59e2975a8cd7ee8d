"""Sampling: the distribution is that of transformers, the draws follow it, and nothing else."""

from functools import cache

import numpy as np
import pytest
import torch
from hf_models import (
    VOCAB_SIZE,
    end_tokens,
    folder_of,
    model_named,
    require_no_retry,
    transformers,
)
from torch import Tensor

from pa_tutorial.engine import LLM, Completion, SamplingParams
from pa_tutorial.engine.sampling import choose_token, probabilities, random_number

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


def test_the_settings_cut_at_many_places() -> None:
    scores = random_scores(0)
    kept = {int((transformers_probabilities(scores, params) > 0).sum()) for params in SETTINGS}
    assert {1, 7, 200} < kept
    assert len(kept) > 5


def test_all_that_are_as_good_as_the_last_of_top_k_are_kept() -> None:
    scores = torch.tensor([1.0, 3.0, 2.0, 2.0, 2.0, 0.0])
    params = SamplingParams(temperature=1.0, top_k=2)
    ours = probabilities(scores, params)
    assert (ours > 0).tolist() == [False, True, True, True, True, False]
    torch.testing.assert_close(ours, transformers_probabilities(scores, params))


def test_of_equal_tokens_at_the_edge_of_top_p_the_lowest_ids_are_kept() -> None:
    """As many as transformers keeps; which of them, its sort does not say."""
    scores = torch.tensor([0.0, 4.0, 1.0, 1.0, 1.0, 1.0])
    parts = scores.double().softmax(dim=-1)
    params = SamplingParams(temperature=1.0, top_p=float(parts[1] + 1.5 * parts[2]))
    ours, theirs = probabilities(scores, params), transformers_probabilities(scores, params)
    assert (ours > 0).tolist() == [False, True, True, True, False, False]
    torch.testing.assert_close(ours.sort().values, theirs.sort().values)


def test_the_token_that_reaches_top_p_is_kept_and_the_next_is_not() -> None:
    scores = torch.tensor([0.5, 0.25, 0.125, 0.125]).log2() * np.log(2.0)
    for top_p, number in ((0.25, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.999, 4)):
        params = SamplingParams(temperature=1.0, top_p=top_p)
        assert int((probabilities(scores, params) > 0).sum()) == number


def test_tokens_that_hold_exactly_top_p_are_enough() -> None:
    scores, params = torch.zeros(4), SamplingParams(temperature=1.0, top_p=0.5)
    assert int((transformers_probabilities(scores, params) > 0).sum()) == 2
    assert int((probabilities(scores, params) > 0).sum()) == 2


# Draws


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=11),
        SamplingParams(temperature=0.7, top_k=6, seed=12),
        SamplingParams(temperature=1.5, top_p=0.8, seed=13),
    ],
    ids=str,
)
@pytest.mark.parametrize("along", ["steps", "samples"])
def test_draws_follow_the_probabilities(params, along) -> None:
    """Chi-square over 4000 draws, of one sample step after step, and of many samples."""
    scores, number = random_scores(3, vocab_size=12) / 3, 4000
    places = [(0, n) if along == "steps" else (n, 5) for n in range(number)]
    draws = [choose_token(scores, params, *place) for place in places]
    expected = number * transformers_probabilities(scores, params)
    counts = torch.bincount(torch.tensor(draws), minlength=len(scores))
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    assert expected[kept].min() > 5
    chi_square = float(((counts - expected)[kept] ** 2 / expected[kept]).sum())
    degrees = int(kept.sum()) - 1
    # Its mean is `degrees`, its variance twice that: this is passed by all but 1 of 10 000 seeds.
    assert chi_square < degrees + 4.5 * (2 * degrees) ** 0.5


def test_random_numbers_are_even_and_differ_in_each_argument() -> None:
    numbers = np.array([random_number(*p) for p in np.ndindex(10, 10, 10)])
    assert len(set(numbers)) == 1000
    assert ((numbers >= 0) & (numbers < 1)).all()
    counts = np.histogram(numbers, bins=10, range=(0, 1))[0]
    assert ((counts - 100) ** 2 / 100).sum() < 9 + 4.5 * 18**0.5


@pytest.mark.parametrize("temperature", [1e-2, 1e-6, 1e-300, 5e-324])
@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"top_p": 0.5}], ids=str)
def test_a_tiny_temperature_is_greedy(temperature, options) -> None:
    for seed in range(10):
        scores = random_scores(seed)
        scores[scores.argmax()] += 1.0  # so that 0.01 is tiny
        params = SamplingParams(temperature=temperature, **options)
        assert choose_token(scores, params, 0, seed) == int(scores.argmax())


@pytest.mark.parametrize("best", [(3, 4), (70, 140, 199)], ids=str)
def test_of_equally_likely_tokens_greedy_takes_the_lowest_id(best) -> None:
    scores = random_scores(0)
    scores[list(best)] = 99.0
    assert choose_token(scores, SamplingParams(temperature=0.0), 0, 0) == best[0]


@pytest.mark.parametrize("temperature", [1.0, 1e308])
@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_a_token_that_cannot_be_is_never_drawn(temperature, scale) -> None:
    scores = random_scores(1, 20) * scale
    scores[::2] = float("-inf")
    params = SamplingParams(temperature=temperature)
    drawn = {choose_token(scores, params, 0, number) for number in range(50)}
    assert all(token % 2 for token in drawn)


# Through the engine. Sample i of a request depends on the request, i and the model, and on
# nothing else: not on who runs beside it, on preemption, chunks, the prefix cache or num_samples.

REQUESTS = [
    (list(range(3, 3 + length)), SamplingParams(14, 1.2, seed=seed, num_samples=number, **options))
    for length, seed, number, options in (
        (1, 1, 4, {}),
        (9, 1, 3, {"top_k": 20}),
        (16, 2, 4, {"top_p": 0.9}),
        (30, 3, 1, {}),
        (30, 3, 4, {"top_k": 40, "top_p": 0.95}),
        (45, 5, 2, {"ignore_eos": True}),
    )
]


def answer(requests: list, **options: object) -> tuple[list[Completion], LLM]:
    llm = LLM(folder_of("llama"), block_size=8, **options)
    prompts, params = zip(*requests, strict=True)
    completions = llm.generate(prompts, params, progress=False)
    assert [completion.error for completion in completions] == [None] * len(completions)
    require_no_retry(llm)
    return completions, llm


@cache
def alone() -> list[Completion]:
    """Each request in an engine of its own, with room for all."""
    return [answer([request])[0][0] for request in REQUESTS]


@cache
def reference_samples(number: int) -> list[list[int]]:
    """Of a request, token by token: the scores of transformers, without a cache, and a choice."""
    prompt, params = REQUESTS[number]
    ends = () if params.ignore_eos else end_tokens(model_named("llama"))
    samples = []
    for sample in range(params.num_samples):
        tokens = list(prompt)
        while len(tokens) - len(prompt) < params.max_tokens:
            with torch.no_grad():
                scores = model_named("llama")(torch.tensor([tokens])).logits[0, -1]
            tokens.append(choose_token(scores, params, sample, len(tokens) - len(prompt)))
            if tokens[-1] in ends:
                break
        samples.append(tokens[len(prompt) :])
    return samples


@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_samples_are_drawn_from_the_scores_of_transformers(number) -> None:
    assert alone()[number].token_ids == reference_samples(number)


@pytest.mark.parametrize("num_blocks", [200, 12])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("chunk_size", [4, 64])
def test_samples_do_not_depend_on_who_runs_beside_them(num_blocks, caching, chunk_size) -> None:
    order = np.random.default_rng(num_blocks + chunk_size).permutation(len(REQUESTS))
    completions, llm = answer(
        [REQUESTS[index] for index in order],
        num_blocks=num_blocks,
        prefix_caching=caching,
        chunk_size=chunk_size,
    )
    assert (llm.statistics[-1].num_preemptions > 0) == (num_blocks < 200)
    for index, completion in zip(order, completions, strict=True):
        assert completion.token_ids == alone()[index].token_ids, index


@pytest.mark.parametrize("number", range(1, 5))
def test_the_first_samples_are_the_same_however_many_are_asked_for(number) -> None:
    prompt, params = REQUESTS[4]
    fewer = SamplingParams(**(vars(params) | {"num_samples": number}))
    (completion,), _ = answer([(prompt, fewer)])
    assert completion.token_ids == alone()[4].token_ids[:number]


def test_samples_of_a_request_differ_and_so_do_seeds() -> None:
    samples = [tuple(tokens) for tokens in alone()[4].token_ids]
    assert len(set(samples)) == len(samples) == 4
    prompt, params = REQUESTS[4]
    other = SamplingParams(**(vars(params) | {"seed": 4}))
    (completion,), _ = answer([(prompt, other)])
    assert not set(map(tuple, completion.token_ids)) & set(samples)


def test_greedy_samples_are_all_the_same() -> None:
    (completion,), _ = answer([([3, 4, 5], SamplingParams(8, num_samples=3, ignore_eos=True))])
    assert completion.token_ids == [completion.token_ids[0]] * 3
    assert len(set(completion.token_ids[0])) > 1


def test_top_k_1_is_greedy() -> None:
    both = [SamplingParams(12), SamplingParams(12, temperature=3.0, top_k=1, seed=9)]
    prompt = [VOCAB_SIZE - 1, 4, 50]
    first, second = answer([(prompt, params) for params in both])[0]
    assert first.token_ids == second.token_ids


@pytest.mark.parametrize("chunk_size", [2, 64])
def test_samples_that_are_still_to_come_have_their_places(chunk_size) -> None:
    """Two requests that wait to be forked: together they would be more than may run."""
    params = SamplingParams(6, 1.0, num_samples=3, ignore_eos=True)
    requests = [(list(range(first, first + 9)), params) for first in (3, 20, 40)]
    completions, llm = answer(requests, max_num_seqs=4, chunk_size=chunk_size)
    assert max(step.num_running for step in llm.statistics) <= 4
    for request, completion in zip(requests, completions, strict=True):
        assert completion.token_ids == answer([request])[0][0].token_ids
