"""Bad requests: each is refused alone, with an error that says what was wrong; others go on."""

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from pa_tutorial.attention.backend import Backend
from pa_tutorial.attention.paged import gather_backend, online_backend
from pa_tutorial.engine import LLM, SamplingParams, load_checkpoint
from pa_tutorial.engine.batch import build_batch
from pa_tutorial.kernels.cpu.backend import cpu_backend
from tests.engine.engine_helpers import VOCAB_SIZE, require_all_returned, small_model

GOOD = ([1, 2, 3], [4, 5, 6, 7, 8])
PARAMS = SamplingParams(max_tokens=4)
TOKEN = f"it must be a token id, 0 to {VOCAB_SIZE - 1}"
LONG = "len(prompt) + max_tokens - 1"
COUNT = "it must be at least 1"
FINITE, PART = "it must be a finite number, at least 0", "it must be in (0, 1]"


def alone(prompt: list[int]) -> list[int]:
    return small_model().generate(torch.tensor(prompt), 4, use_cache=False).tolist()


def make_llm(**options: object) -> LLM:
    return LLM(small_model(), **({"num_blocks": 9, "block_size": 4} | options))


# A prompt, or what is changed in the parameters.
REFUSED = [
    ([], "prompt is []; it must be at least one token"),
    ([1, -1], f"prompt[1] is -1; {TOKEN}"),
    ([VOCAB_SIZE], f"prompt[0] is {VOCAB_SIZE}; {TOKEN}"),
    ([1] * 30, f"{LONG} is 33; it must be at most 32, the slots"),
    ([1] * 62, f"{LONG} is 65; it must be at most 64, the positions"),
    ("text", "prompt is text; this model has no tokenizer"),
    (5, "prompt is 5; it must be text or token ids"),
    ({3, 1}, "prompt is {1, 3}; it must be text or token ids"),
    ({"max_tokens": 0}, f"max_tokens is 0; {COUNT}"),
    ({"temperature": -0.1}, f"temperature is -0.1; {FINITE}"),
    ({"temperature": 10**400}, f"temperature is {10**400}; {FINITE}"),
    ({"ignore_eos": "no"}, "ignore_eos is of type str; it must be True or False"),
    ({"top_p": 0.0}, f"top_p is 0.0; {PART}"),
    ({"top_p": 1.1}, f"top_p is 1.1; {PART}"),
    ({"num_samples": 0}, f"num_samples is 0; {COUNT}"),
    ({"num_samples": 65}, "num_samples is 65; it must be at most 64, the sequences"),
    ({"stop_tokens": (VOCAB_SIZE,)}, f"stop_tokens[0] is {VOCAB_SIZE}; {TOKEN}"),
]


@pytest.mark.parametrize(("bad", "message"), REFUSED, ids=[message[:80] for _, message in REFUSED])
def test_a_bad_request_is_refused_alone(bad: object, message: str) -> None:
    """Between two good ones, which get the tokens that they get alone."""
    prompt, params = ([1, 2], replace(PARAMS, **bad)) if isinstance(bad, dict) else (bad, PARAMS)
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


def generating(*arguments: object) -> Callable:
    return lambda: make_llm().generate(*arguments, progress=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (generating("text"), "prompts is 'text'; it must be a list of prompts"),
        (generating({"a", "b"}), "it must be a list of prompts"),
        (generating({"a": 1}), "prompts is {'a': 1}; it must be a list of prompts"),
        (generating(5), "prompts is 5; it must be a list of prompts"),
        (generating([[1]], 5), "params is 5; it must be SamplingParams, or a list of them"),
        (generating([[1]], [PARAMS] * 2), "params has 2; it must be one for each prompt"),
        (generating([[1]], PARAMS, []), "arrivals has 0; it must be one for each prompt"),
        (lambda: LLM(5), "model is of type int; it must be a Model, such as TinyLM"),
        (lambda: load_checkpoint(5), "folder is of type int; it must be a path"),
        (lambda: make_llm().engine.cancel(5), "request is of type int; it must be a Request"),
        (lambda: make_llm(backend="cpu"), "backend is of type str; it must be a Backend, such as"),
        (lambda: make_llm(block_size=0), "block_size is 0; it must be at least 1"),
        (lambda: make_llm(token_budget=0), "token_budget is 0; it must be at least 1"),
        (lambda: make_llm(chunk_size=0), "chunk_size is 0; it must be at least 1"),
        (lambda: make_llm(max_num_seqs=0), "max_num_seqs is 0; it must be at least 1"),
    ],
)
def test_unsuitable_arguments_are_refused(call: Callable, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        call()
    assert message in str(raised.value)


@pytest.mark.parametrize("backend", [gather_backend, online_backend])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("block_tables", 9, r"block_tables\[1\] names block 9; it must be 0 to 8"),
        ("block_tables", -1, r"block_tables\[1\] names block -1; it must be 0 to 8"),
        ("seq_lens", 0, r"seq_lens\[1\] is 0; it must be 1 to 4"),
        ("seq_lens", 5, r"seq_lens\[1\] is 5; it must be 1 to 4"),
    ],
)
def test_a_bad_step_is_refused_by_a_new_launch_and_by_one_used_again(
    backend: Backend, name: str, value: int, message: str
) -> None:
    engine = make_llm(backend=backend).engine
    for token in (1, 2):
        engine.add([token], PARAMS)
    batch, runner = build_batch(engine.scheduler.schedule(), engine.pages), engine.runner
    wrong = getattr(batch, name).clone()
    wrong[1] = value
    with pytest.raises(ValueError, match=message):
        runner.run(replace(batch, **{name: wrong}))
    scores = runner.run(batch)  # from here on, there is a launch for such a step
    with pytest.raises(ValueError, match=message):
        runner.run(replace(batch, **{name: wrong}))
    assert torch.equal(runner.run(batch), scores)


def test_parameters_of_another_type_are_refused_alone() -> None:
    bad, good = make_llm().generate([[1], [1]], [{"max_tokens": 4}, PARAMS], progress=False)
    assert "params is {'max_tokens': 4}; it must be SamplingParams" in str(bad.error)
    assert good.error is None


def test_a_backend_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(cpu_backend), "why_absent", lambda self: "There is no CPU.")
    with pytest.raises(
        ValueError, match=r"backend is CpuBackend, which cannot run here: There is no CPU"
    ):
        make_llm(backend=cpu_backend)


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


@pytest.mark.parametrize("kind", [set, np.array, torch.tensor])
def test_token_ids_may_come_in_any_collection(kind: Callable) -> None:
    """As stop tokens, and, where they have an order, as a prompt."""
    expected = alone(GOOD[0])
    params = SamplingParams(max_tokens=4, stop_tokens=kind([expected[1]]))
    prompt = list(GOOD[0]) if kind is set else kind(GOOD[0])
    for completion in make_llm().generate([prompt] * 2, params, progress=False):
        assert completion.finish_reasons == ["stop"]
        assert completion.token_ids == [expected[: expected.index(expected[1]) + 1]]


def test_a_prompt_is_served_from_the_step_before_which_it_arrives() -> None:
    """Whatever the order of the prompts in the list."""
    llm = make_llm(num_blocks=30)
    prompts = [[7, 6, 5, 4], [1, 2, 3]]
    completions = llm.generate(prompts, PARAMS, arrivals=[5, 2], progress=False)
    computed = [step.num_prefill for step in llm.statistics]
    assert [(step, number) for step, number in enumerate(computed) if number] == [(2, 3), (5, 4)]
    assert [one.token_ids for one in completions] == [[alone(prompt)] for prompt in prompts]
