"""The scheduler alone: who computes how much in the next step, and who gives up blocks."""

import pytest

from pa_tutorial.engine.request import Request, SamplingParams
from pa_tutorial.engine.scheduler import Scheduler
from pa_tutorial.paging.block_pages import BlockPages


def make_scheduler(num_blocks: int = 33, watermark: int = 0, **options: int) -> Scheduler:
    return Scheduler(BlockPages(num_blocks, 4, watermark=watermark), **options)


def ask(scheduler: Scheduler, number: int, length: int, max_tokens: int = 16) -> None:
    """A new request whose tokens are those of no other."""
    prompt = [100 * number + index for index in range(length)]
    scheduler.admit(Request(number, prompt, SamplingParams(max_tokens)))


def step(scheduler: Scheduler) -> dict[int, int]:
    """Schedule, and give every sequence that is due a token; request -> tokens computed."""
    computed: dict[int, int] = {}
    for scheduled in scheduler.schedule():
        sequence = scheduled.sequence
        computed[sequence.request.number] = len(scheduled.slots)
        if scheduled.is_last:
            sequence.token_ids.append(0)
            if len(sequence.generated) == sequence.request.params.max_tokens:
                scheduler.finish(sequence, "length")
    return computed


# The pool and the limits; length and max_tokens of each request; who computes how many tokens.
PLANS = {
    "the budget goes to the oldest first": (
        {"token_budget": 10, "chunk_size": 6},
        [(8, 3)] * 3,
        [{0: 6, 1: 4}, {0: 2, 1: 4, 2: 4}, {0: 1, 1: 1, 2: 4}],
    ),
    "a budget of one token goes on, token by token": (
        {"token_budget": 1},
        [(2, 2), (1, 1)],
        [{0: 1}, {0: 1}, {0: 1}, {1: 1}],
    ),
    "the last token of a budget is used, by one that runs and by one that is let in": (
        {"token_budget": 3, "chunk_size": 2},
        [(2, 2), (1, 2)],
        [{0: 2, 1: 1}, {0: 1, 1: 1}],
    ),
    "after a preemption no sequence is let in": (
        {"num_blocks": 4},
        [(8, 4), (4, 4), (1, 1)],
        [{0: 8, 1: 4}, {0: 1}, {0: 1}, {0: 1}, {1: 5, 2: 1}],
    ),
    "the watermark counts all of a prompt, not its first chunk": (
        {"num_blocks": 7, "watermark": 2, "chunk_size": 5},
        [(1, 3), (13, 1)],
        [{0: 1}, {0: 1}, {0: 1}, {1: 5}],
    ),
    "running sequences may use the watermark": (
        {"num_blocks": 5, "watermark": 2},
        [(4, 5), (4, 5)],
        [{0: 4, 1: 4}, *[{0: 1, 1: 1}] * 4, {}],
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_sequences_compute_as_planned(name: str) -> None:
    options, requests, plans = PLANS[name]
    scheduler = make_scheduler(**options)
    for number, sizes in enumerate(requests):
        ask(scheduler, number, *sizes)
    assert [step(scheduler) for _ in plans] == plans


@pytest.mark.parametrize(
    ("length", "max_tokens", "is_refused"), [(8, 1, False), (8, 2, True), (9, 1, True)]
)
def test_what_can_never_start_is_refused(length: int, max_tokens: int, is_refused: bool) -> None:
    scheduler = make_scheduler(num_blocks=4, watermark=1)
    if is_refused:
        with pytest.raises(ValueError, match="the slots that the pool can give to one sequence"):
            ask(scheduler, 0, length, max_tokens)
        assert scheduler.is_idle
    else:
        ask(scheduler, 0, length, max_tokens)
        assert step(scheduler) == {0: length}


def test_a_known_prefix_costs_no_budget_and_no_new_blocks() -> None:
    scheduler = make_scheduler(num_blocks=6, token_budget=8)
    for number in range(2):
        scheduler.admit(Request(number, list(range(9)), SamplingParams(max_tokens=3)))
    step(scheduler)
    assert step(scheduler) == {0: 1, 1: 1}
    assert scheduler.pages.num_usable - scheduler.pages.num_free == 4
    assert (scheduler.num_looked_up, scheduler.num_cached) == (18, 8)
