"""Random requests to an engine with far too few blocks; every answer must be as if alone.

Prompts are few and tokens fewer, so that prefix hits, copies, preemption and eviction happen all
the time. After every step the lists, the reference counts and the pool are counted again.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from pa_tutorial.attention.paged import gather_backend
from pa_tutorial.engine import Engine, SamplingParams
from pa_tutorial.engine.request import Request
from pa_tutorial.paging.block_pages import BlockPages
from tests.engine.engine_helpers import (
    VOCAB_SIZE,
    require_all_returned,
    require_answered,
    require_sound,
    small_model,
)

RUNS = [(0, 300), (1, 3_000), (2, 3_000), (3, 3_000)]  # seed and steps
HOURS = [pytest.param(seed, 50_000, marks=pytest.mark.hours) for seed in range(100, 104)]
STEPS_PER_ENGINE = 40  # then all must end


@dataclass
class Driver:
    """One engine and its requests."""

    random: Random
    requests: list[Request] = field(default_factory=list)
    cancelled: set[Request] = field(default_factory=set)

    def __post_init__(self) -> None:
        pick = self.random.choice
        self.engine = Engine(
            small_model(),
            BlockPages(
                num_blocks=pick([6, 8, 12, 20]),
                block_size=pick([1, 2, 3, 4]),
                prefix_caching=pick([True, True, False]),
                watermark=pick([0, 0, 1, 2]),
            ),
            backend=gather_backend,  # the quickest on few tokens
            token_budget=pick([1, 2, 4, 8, 40]),
            chunk_size=pick([1, 2, 5, None]),
            max_num_seqs=pick([2, 4, 8]),
        )

    def arrive(self) -> None:
        pick, number = self.random.choice, self.random.randrange
        # Few beginnings, so that prefixes are shared.
        prompt = [pick([1, 2])] * number(9) + [number(3) for _ in range(number(6))]
        params = SamplingParams(
            max_tokens=1 + number(12),
            temperature=pick([0.0, 0.0, 0.7, 1.5]),
            top_k=pick([0, 5]),
            top_p=pick([1.0, 0.8]),
            seed=number(3),
            num_samples=pick([1, 1, 1, 2, 3]),
            stop_tokens=pick([(), (number(VOCAB_SIZE),)]),
        )
        with suppress(ValueError):  # empty, or too much for the pool
            self.requests.append(self.engine.add(prompt, params))

    def cancel(self) -> None:
        going = [request for request in self.requests if not request.is_finished]
        if going:
            request = self.random.choice(going)
            self.engine.cancel(request)
            self.cancelled.add(request)

    def step(self) -> None:
        engine, scheduler = self.engine, self.engine.scheduler
        going = [s for request in self.requests for s in request.samples if not s.finish_reason]
        oldest = min(going, key=lambda sequence: sequence.age, default=None)
        before = oldest and oldest.num_in_pages
        lengths = {sequence: len(sequence.token_ids) for sequence in going}
        statistics = engine.step()
        assert statistics.error is None
        plan = scheduler.plan if going else []
        self.require_plan(plan)
        for sequence, length in lengths.items():
            assert len(sequence.token_ids) - length in (0, 1)
        if oldest and not oldest.finish_reason and len(oldest.token_ids) == lengths[oldest]:
            assert oldest.num_in_pages > before, "starves"
        require_sound(engine, self.requests)

    def require_plan(self, plan: list) -> None:
        """The budget, the chunk size, and that no slot is written twice."""
        scheduler = self.engine.scheduler
        slots = [slot for scheduled in plan for slot in scheduled.slots if slot >= 0]
        assert len(slots) == len(set(slots)), "two sequences write to one slot"
        copied = [destination for scheduled in plan for _, destination in scheduled.copies]
        assert len(copied) == len(set(copied))
        num_tokens = [len(scheduled.slots) for scheduled in plan]
        assert sum(num_tokens) <= scheduler.token_budget
        assert max(num_tokens, default=1) <= scheduler.chunk_size
        assert min(num_tokens, default=1) >= 1

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            for _ in range(self.random.choice([0, 0, 0, 1, 1, 3])):
                self.arrive()
            if self.random.random() < 0.1:
                self.cancel()
            self.step()
        while not self.engine.is_idle:  # it ends: in each step the oldest goes on
            self.step()
        require_all_returned(self.engine)
        for request in self.requests:
            assert request.is_finished
            if request not in self.cancelled:
                require_answered(request)


@pytest.mark.rest(keep=["0-300"])
@pytest.mark.engine
@pytest.mark.parametrize(("seed", "num_steps"), [*RUNS, *HOURS])
def test_random_requests_are_answered_as_if_each_were_alone(seed: int, num_steps: int) -> None:
    random = Random(seed)
    while num_steps > 0:
        driver = Driver(random)
        driver.run(STEPS_PER_ENGINE)
        num_steps -= len(driver.engine.statistics)
