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


def test_the_budget_goes_to_the_oldest_first() -> None:
    scheduler = make_scheduler(token_budget=10, chunk_size=6)
    for number in range(3):
        ask(scheduler, number, length=8, max_tokens=3)
    assert step(scheduler) == {0: 6, 1: 4}
    assert step(scheduler) == {0: 2, 1: 4, 2: 4}
    assert step(scheduler) == {0: 1, 1: 1, 2: 4}


def test_a_chunk_is_no_longer_than_the_chunk_size_however_large_the_budget() -> None:
    scheduler = make_scheduler(token_budget=100, chunk_size=3)
    ask(scheduler, 0, length=8)
    assert [step(scheduler)[0] for _ in range(4)] == [3, 3, 2, 1]


def test_nobody_overtakes_one_that_finds_no_blocks() -> None:
    scheduler = make_scheduler(num_blocks=6)
    ask(scheduler, 0, length=12, max_tokens=3)
    ask(scheduler, 1, length=12, max_tokens=1)  # needs 3 blocks; 2 are free
    ask(scheduler, 2, length=4, max_tokens=1)
    assert step(scheduler) == {0: 12}


def test_the_youngest_gives_up_its_blocks_and_comes_back_with_its_tokens() -> None:
    scheduler = make_scheduler(num_blocks=5)
    requests = [ask(scheduler, number, length=4, max_tokens=9) for number in range(4)]
    step(scheduler)  # four blocks, all full
    assert step(scheduler) == {0: 1, 1: 1}  # 0 takes the block of 3, 1 that of 2
    assert [request.samples[0].num_preemptions for request in requests] == [0, 0, 1, 1]
    assert [sequence.request.number for sequence in scheduler.waiting] == [2, 3]
    assert [len(request.samples[0].generated) for request in requests] == [2, 2, 1, 1]
    while not scheduler.is_idle:
        step(scheduler)
    assert all(len(request.samples[0].generated) == 9 for request in requests)
    assert scheduler.allocator.num_free == 4


def test_who_gives_up_its_blocks_lets_nobody_in_during_that_step() -> None:
    scheduler = make_scheduler(num_blocks=4)
    ask(scheduler, 0, length=8, max_tokens=4)
    ask(scheduler, 1, length=4, max_tokens=4)
    step(scheduler)
    ask(scheduler, 2, length=1, max_tokens=1)
    assert step(scheduler) == {0: 1}


def test_a_stream_of_short_requests_does_not_starve_a_long_one() -> None:
    scheduler = make_scheduler(num_blocks=9, token_budget=8, max_num_seqs=4)
    ask(scheduler, 0, length=1, max_tokens=12)
    long = ask(scheduler, 1, length=20, max_tokens=8)
    for number in range(2, 60):
        ask(scheduler, number, length=2, max_tokens=2)
        step(scheduler)
    assert long.is_finished


@pytest.mark.parametrize(("length", "fits"), [(12, True), (13, False)])
def test_the_watermark_stays_free_when_a_request_is_let_in(length: int, fits: bool) -> None:
    scheduler = make_scheduler(num_blocks=7, watermark=2)  # 4 may be taken, 1 is
    ask(scheduler, 0, length=1, max_tokens=3)
    ask(scheduler, 1, length=length, max_tokens=1)
    assert (1 in step(scheduler)) == fits


def test_those_that_run_may_use_the_watermark() -> None:
    scheduler = make_scheduler(num_blocks=5, watermark=2)
    ask(scheduler, 0, length=4, max_tokens=5)
    ask(scheduler, 1, length=4, max_tokens=5)
    step(scheduler)
    step(scheduler)
    assert scheduler.num_preemptions == 0
    assert scheduler.allocator.num_free == 0


@pytest.mark.parametrize(
    ("length", "max_tokens", "is_refused"), [(8, 1, False), (8, 2, True), (9, 1, True)]
)
def test_what_can_never_start_is_refused(length: int, max_tokens: int, is_refused: bool) -> None:
    scheduler = make_scheduler(num_blocks=4, watermark=1)
    if is_refused:
        with pytest.raises(ValueError, match="the slots that the pool can give to one sequence"):
            ask(scheduler, 0, length=length, max_tokens=max_tokens)
        assert scheduler.is_idle
    else:
        ask(scheduler, 0, length=length, max_tokens=max_tokens)
        while not scheduler.is_idle:
            assert step(scheduler)


def test_a_known_prefix_costs_no_budget_and_no_new_blocks() -> None:
    scheduler = make_scheduler(num_blocks=6, token_budget=8)
    prompt = list(range(9))
    for number in range(2):
        scheduler.admit(Request(number, prompt, SamplingParams(max_tokens=3)))
    step(scheduler)
    assert step(scheduler) == {0: 1, 1: 1}
    assert scheduler.allocator.num_usable - scheduler.allocator.num_free == 4
    assert (scheduler.num_looked_up, scheduler.num_cached) == (18, 8)


def test_a_suspect_is_served_alone_until_it_has_its_token() -> None:
    scheduler = make_scheduler(chunk_size=4)
    for number in range(3):
        ask(scheduler, number, length=6, max_tokens=6)
    step(scheduler)
    step(scheduler)
    failed = [scheduled.sequence for scheduled in scheduler.schedule()][:2]
    assert scheduler.suspect(failed) == []
    assert [step(scheduler) for _ in range(4)] == [{0: 4}, {0: 3}, {1: 4}, {1: 3}]
    assert len(scheduler.running) == 3
    assert set(step(scheduler)) == {0, 1, 2}


def test_only_who_was_alone_is_blamed() -> None:
    scheduler = make_scheduler()
    ask(scheduler, 0)
    ask(scheduler, 1)
    both = [scheduled.sequence for scheduled in scheduler.schedule()]
    assert scheduler.suspect(both) == []
    (first,) = [scheduled.sequence for scheduled in scheduler.schedule()]
    assert scheduler.suspect([first]) == [first]


def test_samples_beyond_the_budget_compute_nothing_and_keep_their_blocks() -> None:
    scheduler = make_scheduler(token_budget=4)
    request = ask(scheduler, 0, length=4, num_samples=6, max_tokens=3)
    step(scheduler)
    plan = scheduler.schedule()
    assert [scheduled.sequence.index for scheduled in plan] == [0, 1, 2, 3]
    assert all(sample.table is not None for sample in request.samples)
