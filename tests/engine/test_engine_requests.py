"""Bad requests: each is refused alone, with an error that says what was wrong; others go on."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from pa_tutorial.attention.backend import Backend
from pa_tutorial.attention.paged import gather_backend, online_backend
from pa_tutorial.engine import LLM, SamplingParams
from pa_tutorial.engine.batch import build_batch
from pa_tutorial.kernels.cpu.backend import cpu_backend
from tests.engine.engine_helpers import VOCAB_SIZE, require_all_returned, small_model

GOOD = ([1, 2, 3], [4, 5, 6, 7, 8])
PARAMS = SamplingParams(max_tokens=4, stop_tokens={VOCAB_SIZE - 1})  # which they don't reach
LONG = "len(prompt) + max_tokens - 1"


def alone(prompt: list[int]) -> list[int]:
    return small_model().generate(torch.tensor(prompt), 4, use_cache=False).tolist()


def make_llm(**options: object) -> LLM:
    return LLM(small_model(), **({"num_blocks": 9, "block_size": 4} | options))


# The limits. Values of other kinds: tests/test_bad_inputs.py; no token: the scene refused_alone.
REFUSED = [
    ([1, -1], PARAMS, f"prompt[1] is -1; it must be a token id, 0 to {VOCAB_SIZE - 1}"),
    ([1] * 30, PARAMS, f"{LONG} is 33; it must be at most 32, the slots"),
    ([1] * 62, PARAMS, f"{LONG} is 65; it must be at most 64, the positions"),
    ("text", PARAMS, "prompt is text; this model has no tokenizer"),
    ([1], {"max_tokens": 4}, "params is {'max_tokens': 4}"),
    ([1], replace(PARAMS, top_p=1.1), "top_p is 1.1"),
    ([1], replace(PARAMS, num_samples=65), "num_samples is 65; it must be at most 64"),
    ([1], replace(PARAMS, stop_tokens=(VOCAB_SIZE,)), f"stop_tokens[0] is {VOCAB_SIZE}"),
]


@pytest.mark.parametrize(("prompt", "params", "message"), REFUSED)
def test_a_bad_request_is_refused_alone(prompt: object, params: object, message: str) -> None:
    """Between two good ones, which get the tokens that they get alone."""
    llm = make_llm()
    prompts = [GOOD[0], prompt, GOOD[1]]
    first, refused, last = llm.generate(prompts, [PARAMS, params, PARAMS], progress=False)
    assert message in str(refused.error)
    assert (refused.token_ids, refused.finish_reasons) == ([], [])
    with pytest.raises(type(refused.error)):
        _ = refused.text
    assert (first.error, last.error, llm.statistics[0].num_running) == (None, None, 2)
    assert [first.token_ids, last.token_ids] == [[alone(prompt)] for prompt in GOOD]
    require_all_returned(llm.engine)


def test_every_position_of_the_model_may_be_used() -> None:
    llm = make_llm(num_blocks=17)
    assert llm.generate([[1] * 61], PARAMS, progress=False)[0].error is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("prompts", ["text"]), ("params", [[[1]], [PARAMS] * 2]), ("arrivals", [[[1]], PARAMS, []])],
)
def test_what_is_no_list_with_one_for_each_prompt_is_refused(name: str, arguments: list) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{name} (is|has)"):
        make_llm().generate(*arguments, progress=False)


def test_a_backend_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(cpu_backend), "why_absent", lambda self: "There is no CPU.")
    with pytest.raises(ValueError, match=r"CpuBackend, which cannot run here: There is no CPU"):
        make_llm(backend=cpu_backend)


@pytest.mark.parametrize("backend", [gather_backend, online_backend])
@pytest.mark.parametrize(("name", "value"), [("block_tables", 9), ("seq_lens", 5)])
def test_a_bad_step_is_refused_by_a_new_launch_and_by_one_used_again(
    backend: Backend, name: str, value: int
) -> None:
    engine = make_llm(backend=backend).engine
    for token in (1, 2):
        engine.add([token], PARAMS)
    batch, runner = build_batch(engine.scheduler.schedule(), engine.pages), engine.runner
    wrong = getattr(batch, name).clone()
    wrong[1] = value
    with pytest.raises(ValueError, match=rf"{name}\[1\] .* {value};"):
        runner.run(replace(batch, **{name: wrong}))
    scores = runner.run(batch)  # from here on, there is a launch for such a step
    with pytest.raises(ValueError, match=rf"{name}\[1\] .* {value};"):
        runner.run(replace(batch, **{name: wrong}))
    assert torch.equal(runner.run(batch), scores)


def test_an_interrupt_leaves_an_empty_pool_to_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = make_llm()
    monkeypatch.setattr(llm.engine.runner, "run", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        llm.generate(GOOD, PARAMS, progress=False)
    monkeypatch.undo()
    require_all_returned(llm.engine)
    (completion,) = llm.generate(GOOD[:1], PARAMS, progress=False)
    assert completion.token_ids == [alone(GOOD[0])]


def test_a_prompt_is_served_from_the_step_before_which_it_arrives() -> None:
    """Whatever the order of the prompts in the list."""
    llm = make_llm(num_blocks=30)
    prompts = [[7, 6, 5, 4], [1, 2, 3]]
    completions = llm.generate(prompts, PARAMS, arrivals=[5, 2], progress=False)
    computed = [step.num_prefill for step in llm.statistics]
    assert [(step, number) for step, number in enumerate(computed) if number] == [(2, 3), (5, 4)]
    assert [one.token_ids for one in completions] == [[alone(prompt)] for prompt in prompts]
