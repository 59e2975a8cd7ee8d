"""The scheduler alone: who computes how much in the next step, and who gives up blocks."""

import pytest

from pa_tutorial.engine.request import Request, SamplingParams
from pa_tutorial.engine.scheduler import Scheduler
from pa_tutorial.paging.block_pages import BlockPages


def make_scheduler(num_blocks: int = 33, watermark: int = 0, **options: int) -> Scheduler:
    return Scheduler(BlockPages(num_blocks, 4, watermark=watermark), **options)


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
    for number, (length, max_tokens) in enumerate(requests):
        prompt = [100 * number + index for index in range(length)]  # tokens of no other request
        scheduler.admit(Request(number, prompt, SamplingParams(max_tokens)))
    assert [step(scheduler) for _ in plans] == plans
