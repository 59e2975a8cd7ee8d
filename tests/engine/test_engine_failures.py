"""Failures in the middle of a step: nobody loses a token or a block, and no lie is cached."""

import signal
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from engine_helpers import (
    alone,
    require_all_returned,
    require_answered,
    require_sound,
    run_to_the_end,
    small_model,
)

from pa_tutorial.engine import BadScores, Engine, SamplingParams
from pa_tutorial.engine.request import Request
from pa_tutorial.paging.errors import OutOfBlocks

pytestmark = pytest.mark.usefixtures("interrupts_arrive")

NUM_LAYERS = 2
BAD_TOKEN = 14
PROMPTS = (
    ([1, 2, 3, 4, 5, 6], SamplingParams(max_tokens=4)),
    ([1, 2, 3, 4, 7], SamplingParams(max_tokens=3, num_samples=2, temperature=1.0, seed=3)),
    ([8, 2], SamplingParams(max_tokens=6)),
)
NUM_RUNS = 10  # of the model, for all of them: how many places there are to fail
IN_TURN = pytest.mark.parametrize("place", range(NUM_RUNS))


class Trouble(Exception):
    """What fails here."""


class TroubledModel:
    """The small model. trouble(run, layer, tokens) is called when K and V of a layer are written;
    spoil(run, tokens, rows, scores) may change the scores."""

    def __init__(self) -> None:
        self.inner = small_model(NUM_LAYERS)
        self.config, self.parameters = self.inner.config, self.inner.parameters
        self.num_runs = 0
        self.trouble: Callable = lambda run, layer, tokens: None
        self.spoil: Callable = lambda run, tokens, rows, scores: None

    def run(self, tokens, positions, attend, rows=None):
        run, self.num_runs = self.num_runs, self.num_runs + 1

        def attend_in_trouble(layer, q, k, v):
            out = attend(layer, q, k, v)
            self.trouble(run, layer, tokens.tolist())
            return out

        scores = self.inner.run(tokens, positions, attend_in_trouble, rows=rows)
        self.spoil(run, tokens, rows, scores)
        return scores


def make_engine(**options: object) -> Engine:
    """Too few blocks for all: one is preempted even when nothing fails.

    And the stage that is quickest on few tokens.
    """
    sizes = {"num_blocks": 7, "block_size": 2, "chunk_size": 4, "stage": "paged_gather"}
    return Engine(TroubledModel(), **(sizes | options))


def ask(engine: Engine) -> list[Request]:
    return [engine.add(*pair) for pair in PROMPTS]


def serve(engine: Engine) -> list[Request]:
    requests = ask(engine)
    for _ in range(200):
        if engine.is_idle:
            return requests
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


def once(number: int, error: type[BaseException] = Trouble) -> tuple[Callable, list[int]]:
    """A function that raises in its call of this number; and the calls so far."""
    calls: list[int] = []

    def trouble() -> None:
        calls.append(len(calls))
        if calls[-1] == number:
            raise error("once")

    return trouble, calls


def num_failures(engine: Engine) -> int:
    return sum(step.error is not None for step in engine.statistics)


def test_the_requests_share_blocks_are_cut_and_preempted_without_any_failure() -> None:
    engine = make_engine()
    requests = serve(engine)
    assert engine.model.num_runs == NUM_RUNS
    require_nothing_lost(engine, requests)
    assert engine.statistics[-1].num_preemptions > 0
    assert engine.statistics[-1].hit_rate > 0
    assert num_failures(engine) == 0


@pytest.mark.parametrize("num_blocks", [7, 40])
@pytest.mark.parametrize("layer", range(NUM_LAYERS))
@IN_TURN
def test_a_model_that_raises_once_loses_nothing(place: int, layer: int, num_blocks: int) -> None:
    engine = make_engine(num_blocks=num_blocks)
    trouble, _ = once(place * NUM_LAYERS + layer)
    engine.model.trouble = lambda run, layer, tokens: trouble()
    require_nothing_lost(engine, serve(engine))
    assert num_failures(engine) == 1


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("every", [3, 1], ids=["every_third", "every"])
def test_no_free_block_for_once_loses_nothing(prefix_caching: bool, every: int) -> None:
    """At every question of a block table, as if another had been quicker."""
    place, asked = 0, True
    while asked:
        engine = make_engine(prefix_caching=prefix_caching)
        refuse_once(engine, place)
        require_nothing_lost(engine, serve(engine))
        asked, place = engine.allocator.refused, place + every
    assert place > 20


def refuse_once(engine: Engine, place: int) -> None:
    """The answer to a table; `allocate` asks too, but then the blocks are promised already."""
    allocator = engine.allocator
    require_free, allocate = allocator.require_free, allocator.allocate
    refuse, _ = once(place, OutOfBlocks)
    allocator.refused = promised = False

    def require_free_or_refuse(num_blocks: int) -> None:
        if not promised:
            try:
                refuse()
            except OutOfBlocks:
                allocator.refused = True
                raise
        require_free(num_blocks)

    def allocate_what_is_promised() -> int:
        nonlocal promised
        promised = True
        try:
            return allocate()
        finally:
            promised = False

    allocator.require_free = require_free_or_refuse
    allocator.allocate = allocate_what_is_promised


@pytest.mark.parametrize("name", ["build_batch", "choose_token"])
@IN_TURN
def test_a_part_of_the_step_that_raises_once_loses_nothing(
    place: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pa_tutorial.engine.engine as module

    part = getattr(module, name)
    trouble, calls = once(place)

    def fails(*arguments: object) -> object:
        trouble()
        return part(*arguments)

    monkeypatch.setattr(module, name, fails)
    engine = make_engine()
    require_nothing_lost(engine, serve(engine))
    assert len(calls) > place
    assert num_failures(engine) == 1


@IN_TURN
def test_a_stage_that_raises_once_loses_nothing(place: int) -> None:
    engine = make_engine()
    trouble, _ = once(place)
    decode = engine.runner.stage.function

    def fails(*arguments: object) -> object:
        trouble()
        return decode(*arguments)

    engine.runner.stage = replace(engine.runner.stage, at=fails)
    require_nothing_lost(engine, serve(engine))
    assert num_failures(engine) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@IN_TURN
def test_bad_scores_of_one_row_once_lose_nothing(place: int, value: float) -> None:
    engine = make_engine()
    done: list[int] = []

    def spoil(run: int, tokens: torch.Tensor, rows: torch.Tensor, scores: torch.Tensor) -> None:
        if run >= place and len(scores) and not done:
            scores[-1] = value
            done.append(run)

    engine.model.spoil = spoil
    require_nothing_lost(engine, serve(engine))
    assert num_failures(engine) == 1


@IN_TURN
def test_bad_k_and_v_of_one_run_are_not_served_to_others(place: int) -> None:
    """NaN in every layer, and no error: in the middle of a prompt nobody looks at scores."""
    engine = make_engine()
    write = engine.runner.cache.write

    def spoiled(layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        nan = float("nan") if engine.model.num_runs == place + 1 else 0.0
        write(layer, k + nan, v + nan, slots)

    engine.runner.cache.write = spoiled
    require_nothing_lost(engine, serve(engine))


def test_nan_in_a_cached_block_is_computed_again() -> None:
    engine = make_engine(num_blocks=40)
    serve(engine)
    for block in engine.allocator.named_blocks():
        for cache in (*engine.runner.cache.k, *engine.runner.cache.v):
            cache[block] = torch.nan
    require_nothing_lost(engine, serve(engine))
    assert num_failures(engine) >= 1


@pytest.mark.parametrize("layer", range(NUM_LAYERS))
@IN_TURN
def test_an_interrupt_takes_the_step_back(place: int, layer: int) -> None:
    engine = make_engine()
    trouble, _ = once(place * NUM_LAYERS + layer, KeyboardInterrupt)
    engine.model.trouble = lambda run, layer, tokens: trouble()
    requests = ask(engine)
    with pytest.raises(KeyboardInterrupt):
        run_to_the_end(engine)
    require_sound(engine, requests)
    assert not any(request.error for request in requests)
    run_to_the_end(engine)
    assert num_failures(engine) == 0  # else a second failure has mended what the interrupt left
    require_nothing_lost(engine, requests)


def bad_request(engine: Engine) -> Request:
    """With a prefix that others have too."""
    return engine.add([1, 2, 3, 4, BAD_TOKEN], SamplingParams(max_tokens=3))


def raise_for_the_bad_token(run: int, layer: int, tokens: list[int]) -> None:
    if layer == NUM_LAYERS - 1 and BAD_TOKEN in tokens:
        raise Trouble("always")


def nan_after_the_bad_token(
    run: int, tokens: torch.Tensor, rows: torch.Tensor, scores: torch.Tensor
) -> None:
    scores[tokens[rows] == BAD_TOKEN] = torch.nan


@pytest.mark.parametrize("arrives", range(5))
@pytest.mark.parametrize(
    ("what", "does", "error"),
    [
        ("trouble", raise_for_the_bad_token, Trouble),
        ("spoil", nan_after_the_bad_token, BadScores),
    ],
)
def test_a_request_that_always_fails_ends_alone(
    arrives: int, what: str, does: Callable, error: type[Exception]
) -> None:
    assert not any(BAD_TOKEN in alone(*pair, num_layers=NUM_LAYERS) for pair in PROMPTS)
    engine = make_engine()
    setattr(engine.model, what, does)
    requests = ask(engine)
    for _ in range(arrives):
        engine.step()
    bad = bad_request(engine)
    run_to_the_end(engine)
    assert type(bad.error) is error
    assert [sample.finish_reason for sample in bad.samples] == ["error"]
    require_nothing_lost(engine, requests)


def test_all_samples_of_a_request_that_always_fails_end() -> None:
    engine = make_engine()
    requests = ask(engine)
    engine.step()
    engine.step()
    assert len(requests[1].samples) == 2
    marked = requests[1].samples[1].generated[-1]

    def spoil(run: int, tokens: torch.Tensor, rows: torch.Tensor, scores: torch.Tensor) -> None:
        scores[tokens[rows] == marked] = torch.nan

    engine.model.spoil = spoil
    run_to_the_end(engine)
    assert type(requests[1].error) is BadScores
    assert {sample.finish_reason for sample in requests[1].samples} <= {"error", "length"}
    require_all_returned(engine)


def test_a_failure_that_never_stops_ends_every_request() -> None:
    """And does not go on for ever."""
    engine = make_engine()

    def always(run: int, layer: int, tokens: list[int]) -> None:
        raise Trouble("always")

    engine.model.trouble = always
    requests = ask(engine)
    run_to_the_end(engine, most_steps=20)
    assert [type(request.error) for request in requests] == [Trouble] * 3
    require_all_returned(engine)
    engine.model.trouble = lambda run, layer, tokens: None
    require_nothing_lost(engine, serve(engine))


@pytest.mark.parametrize("num_samples", [1, 3])
def test_an_end_token_that_cannot_be_compared_ends_the_request(num_samples: int) -> None:
    """Why a sample ends is known before any is changed: else it grows with each new attempt."""
    engine = make_engine(num_blocks=40)

    class WithOneEnd(type(engine.model.config)):
        eos_tokens = 5  # must be several

    engine.model.config = WithOneEnd(**vars(engine.model.config))
    bad = engine.add([1, 2, 3], SamplingParams(max_tokens=2, num_samples=num_samples))
    good = engine.add([4, 5], SamplingParams(max_tokens=4, ignore_eos=True))
    run_to_the_end(engine, most_steps=20)
    assert type(bad.error) is TypeError
    assert [sample.generated for sample in bad.samples] == [[]]
    require_answered(good, NUM_LAYERS)
    require_all_returned(engine)


def test_copies_are_made_in_the_order_in_which_blocks_were_given_out() -> None:
    """Samples of the same tokens: 0 copies the last block and fills it, 1 finds it full and lets
    go of the original, which then takes the copy of another request, in the same step."""
    engine = make_engine(num_blocks=20, block_size=4)
    params = SamplingParams(max_tokens=6, num_samples=2)
    requests = [engine.add(prompt, params) for prompt in ([1, 2, 3], [5, 6])]
    engine.step()
    engine.step()
    (first, _), (_, last) = (pair for s in engine.scheduler.plan for pair in s.copies)
    assert first == last, "source of the first copy, destination of the second"
    run_to_the_end(engine)
    assert num_failures(engine) == 0
    for request in requests:
        require_answered(request, NUM_LAYERS)


@pytest.mark.parametrize("place", ["remove", "fork", "clear", "_give", "finish", "preempt"])
def test_an_interrupt_waits_until_lists_and_tables_are_whole(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Ctrl-C in the middle of the scheduler's own work."""
    engine = make_engine(num_blocks=8)
    requests = [
        engine.add([number, 2, 3, 4, 5], SamplingParams(max_tokens=9, num_samples=1 + number % 2))
        for number in range(5)
    ]
    method, calls = getattr(engine.scheduler, place), 0

    def interrupted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls % 7 == 1:  # a prompt of three chunks must find three steps in a row
            signal.raise_signal(signal.SIGINT)
        return method(*arguments)

    monkeypatch.setattr(engine.scheduler, place, interrupted)
    num_interrupts = 0
    for _ in range(400):
        if engine.is_idle:
            break
        try:
            engine.step()
        except KeyboardInterrupt:
            num_interrupts += 1
    assert engine.is_idle
    assert num_interrupts > 0
    for request in requests:
        require_answered(request, NUM_LAYERS)
    require_all_returned(engine)


def test_other_threads_have_nothing_to_hold_back() -> None:
    thread = threading.Thread(target=serve, args=(make_engine(),))
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
