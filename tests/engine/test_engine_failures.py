"""Failures in the middle of a step: nobody loses a token or a block, and no lie is cached."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count

import pytest
import torch
from torch import Tensor

from pa_tutorial.attention.paged import gather_backend
from pa_tutorial.engine import Engine, SamplingParams
from pa_tutorial.engine import engine as engine_module
from pa_tutorial.engine.request import Request
from pa_tutorial.paging.block_pages import BlockPages
from pa_tutorial.paging.errors import OutOfBlocks
from tests.engine.engine_helpers import (
    require_all_returned,
    require_answered,
    require_sound,
    small_model,
)

NUM_LAYERS = 2
PROMPTS = (
    ([1, 2, 3, 4, 5, 6], SamplingParams(max_tokens=4)),
    ([1, 2, 3, 4, 7], SamplingParams(max_tokens=3, num_samples=2, temperature=1.0, seed=3)),
    ([8, 2], SamplingParams(max_tokens=6)),
)
NUM_RUNS = 10  # of the model, for all of them: how many places there are to fail


class Trouble(Exception):
    """What fails here."""


def make_engine() -> Engine:
    """Too few blocks for all: one is preempted even when nothing fails.

    And the backend that is quickest on few tokens.
    """
    pages = BlockPages(num_blocks=7, block_size=2)
    return Engine(small_model(NUM_LAYERS), pages, backend=gather_backend, chunk_size=4)


def serve(engine: Engine) -> list[Request]:
    """All PROMPTS, to the end."""
    requests = [engine.add(*pair) for pair in PROMPTS]
    for _ in range(200):
        if engine.is_idle:
            return requests
        with suppress(KeyboardInterrupt):
            engine.step()
        require_sound(engine, requests)
    raise AssertionError("never ends")


def require_nothing_lost(engine: Engine, requests: list[Request]) -> None:
    """Every answer is right, every block is back, and what is cached now is true."""
    for _ in range(2):
        for request in requests:
            require_answered(request, NUM_LAYERS)
        require_all_returned(engine)
        requests = serve(engine)


def raises(error: type[BaseException], *_: object) -> None:
    raise error("once")


def last_scores(value: float, run: Callable, batch: object) -> Tensor:
    scores = run(batch)
    scores[-1:] = value
    return scores


def nan_in_the_cache(write: Callable, layer: int, k: Tensor, v: Tensor, *places: object) -> None:
    """And no error: in the middle of a prompt nobody looks at scores."""
    write(layer, k + torch.nan, v + torch.nan, *places)


# The part that fails and how, how many calls of it a step has, and how many steps may fail: not one
# after Ctrl-C, else a second failure has mended what the interrupt left.
FAILURES = {
    "the model": ("attention", partial(raises, Trouble), NUM_LAYERS, {1}),
    "Ctrl-C": ("attention", partial(raises, KeyboardInterrupt), NUM_LAYERS, {0}),
    "the batch": ("build_batch", partial(raises, Trouble), 1, {1}),
    "the choice": ("choose_token", partial(raises, Trouble), 1, {1}),
    "a block": ("append", partial(raises, OutOfBlocks), 3, {0}),  # as if another had been quicker
    # in the middle of a prompt there are no scores
    "NaN": ("run", partial(last_scores, torch.nan), 1, {0, 1}),
    "-inf": ("run", partial(last_scores, -torch.inf), 1, {0, 1}),
    "NaN in the cache": ("write", nan_in_the_cache, NUM_LAYERS, {0, 1, 2}),
}


@pytest.mark.parametrize("place", range(NUM_RUNS))
@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_in_one_place_loses_nothing(
    place: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    name, instead, calls_a_step, how_many = FAILURES[what]
    owners = {"attention": engine.runner, "run": engine.runner, "write": engine.runner.cache}
    owner = (owners | {"append": engine.pages}).get(name, engine_module)
    part, numbers = getattr(owner, name), count()
    failing = place * calls_a_step + place % calls_a_step

    def fail_once(*arguments: object) -> object:
        return instead(part, *arguments) if next(numbers) == failing else part(*arguments)

    monkeypatch.setattr(owner, name, fail_once)
    require_nothing_lost(engine, serve(engine))
    assert next(numbers) > failing
    assert sum(step.error is not None for step in engine.statistics) in how_many
