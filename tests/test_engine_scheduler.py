"""The scheduler alone: who computes in the next step, and who gives up blocks."""

import pytest

from pa_tutorial.engine.request import Request, SamplingParams
from pa_tutorial.engine.scheduler import Scheduler
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator

BLOCK_SIZE = 4


def make_scheduler(num_blocks: int = 33, watermark: int = 0, **options: int) -> Scheduler:
    return Scheduler(PrefixCachingAllocator(num_blocks, watermark), BLOCK_SIZE, **options)


def ask(scheduler: Scheduler, number: int, length: int = 4, **params: int) -> Request:
    """A new request whose tokens are those of no other."""
    prompt = [100 * number + index for index in range(length)]
    request = Request(number, prompt, SamplingParams(**params))
    scheduler.admit(request)
    return request


def step(scheduler: Scheduler) -> dict[int, int]:
    """Schedule, and give every sequence that is due a token; request -> tokens computed."""
    computed: dict[int, int] = {}
    for scheduled in scheduler.schedule():
        sequence = scheduled.sequence
        request = sequence.request
        computed[request.number] = computed.get(request.number, 0) + len(scheduled.slots)
        if scheduled.is_last:
            scheduler.clear(sequence)
            missing = request.params.num_samples - len(request.samples)
            for sample in [sequence, *scheduler.fork(sequence, missing)]:
                sample.token_ids.append(sample.index)
                if len(sample.generated) == request.params.max_tokens:
                    scheduler.finish(sample, "length")
    return computed


@pytest.mark.parametrize("chunk_size", [2, 8])
def test_places_are_kept_for_samples_that_are_not_forked_yet(chunk_size: int) -> None:
    scheduler = make_scheduler(max_num_seqs=3, chunk_size=chunk_size)
    ask(scheduler, 0, num_samples=3)
    ask(scheduler, 1)
    for _ in range(4):
        step(scheduler)
        assert len(scheduler.running) <= 3
    assert len(scheduler.waiting) == 1
