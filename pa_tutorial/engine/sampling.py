"""From scores to the next token."""

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.arguments import require, require_readable, require_type, whole_number
from pa_tutorial.engine.request import SamplingParams


def require_inputs(scores: Tensor, params: SamplingParams) -> None:
    require_type(isinstance(params, SamplingParams), "params", params, "SamplingParams")
    require_readable("scores", scores)
    require(scores.is_floating_point(), "scores.dtype", scores.dtype, "of real numbers")
    require(scores.dim() == 1, "scores.shape", list(scores.shape), "[vocab_size]")
    params.checked(len(scores))


def probabilities(scores: Tensor, params: SamplingParams) -> Tensor:
    """The probability of drawing each token.

    scores   [vocab_size]
    returns  [vocab_size] float64; the sum is 1

    The temperature is applied first, then top_k. Of the remaining tokens, the likeliest are kept
    until their total probability reaches top_p.
    """
    require_inputs(scores, params)
    require(params.temperature > 0, "temperature", params.temperature, "above 0: see choose_token")
    scores = scores.double().cpu()
    # Shift the largest score to 0: divided by a very low temperature it would become infinite.
    scores = (scores - scores.max()) / params.temperature
    if 0 < params.top_k < len(scores):
        least = scores.topk(params.top_k).values[-1]
        scores = scores.masked_fill(scores < least, float("-inf"))
    likely = scores.softmax(dim=-1)
    if params.top_p < 1:
        ordered, order = likely.sort(descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered  # the probability of all likelier tokens
        likely[order[before >= params.top_p]] = 0.0
        likely = likely / likely.sum()
    return likely


def random_number(seed: int, sample: int, num_generated: int) -> float:
    """In [0, 1). Depends only on the arguments, not on which other sequences run, on preemption,
    or on how often a step was tried."""
    numbers = {"seed": seed, "sample": sample, "num_generated": num_generated}
    whole = [whole_number(name, number, least=0) for name, number in numbers.items()]
    return float(np.random.default_rng(whole).random())


def choose_token(scores: Tensor, params: SamplingParams, sample: int, num_generated: int) -> int:
    """The next token of one sequence.

    scores         [vocab_size]
    sample         which sample of its request
    num_generated  tokens that it has generated so far

    At temperature 0 it is the likeliest token; if several are, the one with the lowest id.
    """
    require_inputs(scores, params)
    number = random_number(params.seed, sample, num_generated)
    if params.temperature == 0:
        return int(scores.argmax())
    # The tokens divide the interval from 0 to 1; choose the one that the random number hits.
    ends = probabilities(scores, params).cumsum(dim=-1)
    return int(torch.searchsorted(ends, number * ends[-1], right=True))
