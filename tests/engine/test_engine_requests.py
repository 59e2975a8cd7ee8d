"""Bad requests: each is refused alone, with an error that says what was wrong; others go on."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from engine_helpers import VOCAB_SIZE, alone, run_to_the_end, small_model

from pa_tutorial.engine import LLM, SamplingParams
from pa_tutorial.walk.ladder import STAGES

GOOD = ([1, 2, 3], [4, 5, 6, 7, 8])
PARAMS = SamplingParams(max_tokens=4)
TOKENS = f"it must be a token id, 0 to {VOCAB_SIZE - 1}"


def make_llm(**options: object) -> LLM:
    return LLM(small_model(), **({"num_blocks": 9, "block_size": 4} | options))


def require_refused_alone(
    prompt: object, params: object, message: str, llm: LLM | None = None
) -> None:
    """Between two good ones, which get the tokens that they get alone."""
    llm = llm or make_llm()
    prompts = [GOOD[0], prompt, GOOD[1]]
    first, bad, last = llm.generate(prompts, [PARAMS, params, PARAMS], progress=False)
    assert isinstance(bad.error, ValueError | TypeError)
    assert message in str(bad.error)
    assert (bad.token_ids, bad.finish_reasons) == ([], [])
    with pytest.raises(type(bad.error)):
        _ = bad.text
    for good, tokens in ((first, GOOD[0]), (last, GOOD[1])):
        assert good.error is None
        assert good.token_ids == [alone(list(tokens), PARAMS)]
    assert llm.engine.allocator.num_free == llm.engine.allocator.num_usable


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt is []; it must be at least one token"),
        ([1, -1], f"prompt[1] is -1; {TOKENS}"),
        ([VOCAB_SIZE], f"prompt[0] is {VOCAB_SIZE}; {TOKENS}"),
        ([1.0], f"prompt[0] is 1.0; {TOKENS}"),
        ([True], f"prompt[0] is True; {TOKENS}"),
        (["1"], f"prompt[0] is '1'; {TOKENS}"),
        ([None], f"prompt[0] is None; {TOKENS}"),
        ([[1]], f"prompt[0] is [1]; {TOKENS}"),
        (np.array([1.0]), f"prompt[0] is np.float64(1.0); {TOKENS}"),
        (np.array([True]), f"prompt[0] is np.True_; {TOKENS}"),
        (torch.tensor([1.5]), f"prompt[0] is tensor(1.5000); {TOKENS}"),
        (torch.tensor([[1, 2]]), f"prompt[0] is tensor([1, 2]); {TOKENS}"),
        ([1] * 33, "len(prompt) + max_tokens - 1 is 36; it must be at most 32, the slots"),
        ([1] * 30, "len(prompt) + max_tokens - 1 is 33; it must be at most 32, the slots"),
        ([1] * 62, "len(prompt) + max_tokens - 1 is 65; it must be at most 64, the positions"),
        ("text", "prompt is text; this model has no tokenizer"),
        (5, "prompt is 5; it must be text or token ids"),
        (None, "prompt is None; it must be text or token ids"),
    ],
)
def test_a_bad_prompt_is_refused_alone(prompt: object, message: str) -> None:
    require_refused_alone(prompt, PARAMS, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; it must be a whole number, at least 1"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5; it must be a whole number"),
        ({"max_tokens": True}, "max_tokens is True; it must be a whole number"),
        ({"max_tokens": "4"}, "max_tokens is 4; it must be a whole number"),
        ({"temperature": -0.1}, "temperature is -0.1; it must be a finite number, at least 0"),
        ({"temperature": float("nan")}, "temperature is nan; it must be a finite number"),
        ({"temperature": float("inf")}, "temperature is inf; it must be a finite number"),
        ({"temperature": "hot"}, "temperature is hot; it must be a finite number"),
        ({"temperature": None}, "temperature is None; it must be a finite number"),
        ({"temperature": 10**400}, "it must be a finite number"),
        ({"top_k": -1}, "top_k is -1; it must be a whole number, at least 0"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be in (0, 1]"),
        ({"top_p": 1.1}, "top_p is 1.1; it must be in (0, 1]"),
        ({"top_p": float("nan")}, "top_p is nan; it must be in (0, 1]"),
        ({"seed": -1}, "seed is -1; it must be a whole number, at least 0"),
        ({"seed": 0.5}, "seed is 0.5; it must be a whole number, at least 0"),
        ({"num_samples": 0}, "num_samples is 0; it must be a whole number, at least 1"),
        ({"num_samples": 65}, "num_samples is 65; it must be at most 64, the sequences"),
        ({"stop_tokens": (VOCAB_SIZE,)}, f"stop_tokens[0] is {VOCAB_SIZE}; {TOKENS}"),
        ({"stop_tokens": "ab"}, f"stop_tokens[0] is 'a'; {TOKENS}"),
        ({"stop_tokens": 5}, "stop_tokens is 5; it must be token ids"),
        ({"stop_tokens": iter([5])}, "stop_tokens is <list_iterator"),
        ({"stop_tokens": None}, "stop_tokens is None; it must be token ids"),
    ],
)
def test_bad_parameters_are_refused_alone(changes: dict[str, object], message: str) -> None:
    params = SamplingParams(**({"max_tokens": 4} | changes))
    require_refused_alone([1, 2], params, message)


@pytest.mark.parametrize("params", [None, {"max_tokens": 4}, 4])
def test_parameters_of_another_type_are_refused_alone(params: object) -> None:
    require_refused_alone([1, 2], params, "it must be SamplingParams")


def test_the_watermark_is_no_place_for_a_sequence() -> None:
    message = "len(prompt) + max_tokens - 1 is 16; it must be at most 12"
    require_refused_alone([1] * 13, PARAMS, message, make_llm(num_blocks=6, watermark=2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("text",), "prompts is 'text'; it must be a list of prompts"),
        ((5,), "prompts is 5; it must be a list of prompts"),
        ((None,), "prompts is None; it must be a list of prompts"),
        (([[1]], 5), "params is 5; it must be SamplingParams, or a list of them"),
        (([[1]], None), "params is None; it must be SamplingParams, or a list of them"),
        (([[1]], [PARAMS, PARAMS]), "params has 2; it must be one for each prompt"),
        (([[1]], PARAMS, []), "arrivals has 0; it must be one for each prompt"),
        (([[1]], PARAMS, 5), "arrivals is 5; it must be a list of steps"),
        (([[1]], PARAMS, [-1]), "arrivals[0] is -1; it must be a whole number, at least 0"),
        (([[1]], PARAMS, ["1"]), "arrivals[0] is '1'; it must be a whole number"),
        (([[1]], PARAMS, [float("inf")]), "arrivals[0] is inf; it must be a whole number"),
        (([[1]], PARAMS, [None]), "arrivals[0] is None; it must be a whole number"),
    ],
)
def test_arguments_that_do_not_suit_are_named(arguments: tuple, message: str) -> None:
    llm = make_llm()
    with pytest.raises((TypeError, ValueError)) as raised:
        llm.generate(*arguments, progress=False)
    assert message in str(raised.value)
    assert llm.engine.is_idle


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stage": "paged"}, "stage is 'paged'; it must be one of full_recompute"),
        ({"stage": "kv_cache"}, "stage is 'kv_cache', which reads no blocks; it must be one of"),
        ({"num_blocks": 1}, "num_blocks is 1; it must be at least 2"),
        ({"block_size": 0}, "block_size is 0; it must be at least 1"),
        ({"watermark": -1}, "watermark is -1; it must be 0 to 8"),
        ({"token_budget": 0}, "token_budget is 0; it must be at least 1"),
        ({"chunk_size": 0}, "chunk_size is 0; it must be at least 1"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be at least 1"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=r"it must be") as raised:
        make_llm(**options)
    assert message in str(raised.value)


def test_a_stage_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    absent = replace(STAGES["cpu"], absence=lambda: "There is no CPU.")
    monkeypatch.setitem(STAGES, "cpu", absent)
    with pytest.raises(ValueError, match=r"stage is 'cpu', which cannot run here: There is no CPU"):
        make_llm(stage="cpu")


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-9])
def test_a_very_low_temperature_chooses_the_likeliest_token(temperature: float) -> None:
    cold = SamplingParams(max_tokens=8, temperature=temperature)
    (completion,) = make_llm().generate([GOOD[0]], cold, progress=False)
    assert completion.error is None
    assert completion.token_ids == [alone(list(GOOD[0]), SamplingParams(max_tokens=8))]


def test_prompts_that_arrive_later_get_the_same_tokens() -> None:
    llm = make_llm()
    completions = llm.generate([*GOOD, GOOD[0]], PARAMS, arrivals=[7, 0, 3], progress=False)
    for completion, prompt in zip(completions, [*GOOD, GOOD[0]], strict=True):
        assert completion.token_ids == [alone(list(prompt), PARAMS)]


def test_an_interrupt_leaves_an_empty_pool_to_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = make_llm()
    step, calls = llm.engine.step, []

    def interrupted() -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(list(GOOD), PARAMS, progress=False)
    assert llm.engine.is_idle
    assert llm.engine.allocator.num_free == llm.engine.allocator.num_usable
    (completion,) = llm.generate([GOOD[0]], PARAMS, progress=False)
    assert completion.token_ids == [alone(list(GOOD[0]), PARAMS)]


class Unlike(list):
    """A collection whose `in` asks for something else, as that of a pandas Series does."""

    def __contains__(self, item: object) -> bool:
        raise TypeError("not this one")


@pytest.mark.parametrize("kind", [tuple, set, np.array, torch.tensor, Unlike])
def test_stop_tokens_of_any_kind_stop(kind: Callable) -> None:
    tokens = alone(list(GOOD[0]), SamplingParams(max_tokens=8))
    stop_tokens = kind([tokens[1]])
    params = SamplingParams(max_tokens=8, stop_tokens=stop_tokens)
    engine = make_llm().engine
    requests = [engine.add(list(GOOD[0]), params) for _ in range(2)]
    run_to_the_end(engine, most_steps=20)
    for request in requests:
        (sample,) = request.samples
        assert sample.finish_reason == "stop"
        assert sample.generated == tokens[: tokens.index(tokens[1]) + 1]


def test_no_stop_tokens_as_empty_text_end_nothing() -> None:
    """`5 in ""` raises."""
    params = SamplingParams(max_tokens=8, stop_tokens="")
    engine = make_llm().engine
    request = engine.add(list(GOOD[0]), params)
    run_to_the_end(engine, most_steps=20)
    assert request.samples[0].finish_reason == "length"


@pytest.mark.parametrize("prompt", [np.array([1, 2, 3]), torch.tensor([1, 2, 3]), (1, 2, 3)])
def test_whole_numbers_of_other_libraries_are_token_ids(prompt: object) -> None:
    other, plain = make_llm().generate([prompt, [1, 2, 3]], PARAMS, progress=False)
    assert other.error is None
    assert other.token_ids == plain.token_ids


def test_a_cancelled_request_leaves_its_list_and_a_finished_one_stays_as_it_is() -> None:
    engine = make_llm(max_num_seqs=1).engine
    running, waiting = (engine.add(list(prompt), PARAMS) for prompt in GOOD)
    engine.step()
    engine.cancel(waiting)
    engine.cancel(waiting)
    run_to_the_end(engine, most_steps=10)
    engine.cancel(running)
    assert waiting.samples[0].finish_reason == "cancelled"
    assert waiting.samples[0].generated == []
    assert running.samples[0].finish_reason == "length"
    assert running.samples[0].generated == alone(list(GOOD[0]), PARAMS)


def test_a_prompt_is_served_from_the_step_before_which_it_arrives() -> None:
    """Whatever the order of the prompts in the list."""
    llm = make_llm(num_blocks=30)
    prompts = [[7, 6, 5, 4], [1, 2, 3]]
    llm.generate(prompts, PARAMS, arrivals=[5, 2], progress=False)
    computed = [step.num_prefill for step in llm.statistics]
    assert [(step, number) for step, number in enumerate(computed) if number] == [(2, 3), (5, 4)]
