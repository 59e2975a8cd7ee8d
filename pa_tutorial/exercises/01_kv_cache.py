"""Exercises of notebook 01: attention of one query, the cache, generation."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pa_tutorial.attention.cached import KVCache
from pa_tutorial.attention.tiny_lm import TinyLM, encode, load
from pa_tutorial.cases import CASES
from pa_tutorial.checks.comparing import bounds_of
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.exercise import Exercise, WrongAnswer
from pa_tutorial.ladder import STAGES, require_written

NOTEBOOK = "01_kv_cache"


# 1. ---------------------------------------------------------------------------------------------


def attend_newest(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of the newest token.

    q        [num_heads, head_size]           the query of the last token
    k, v     [seq_len, num_heads, head_size]  keys and values of all tokens
    returns  [num_heads, head_size]
    """
    # 1. one score for every head and token: scale * (q . k_j)
    # 2. the softmax over the tokens turns scores into weights
    # 3. the output is the sum of v_j, each times its weight
    ### BEGIN SOLUTION
    qk = scale * torch.einsum("hd,jhd->hj", q, k)
    weights = torch.softmax(qk, dim=-1)
    return torch.einsum("hj,jhd->hd", weights, v)
    ### END SOLUTION


def attend_newest_trials() -> list[Trial]:
    def run(case_id: str, function: Callable | None) -> dict[str, Tensor]:
        answer = function or attend_newest

        def as_stage(q: Tensor, k: Tensor, v: Tensor, scale: float, slopes: None) -> Tensor:
            return require_written(answer(q[0], k, v, scale))[None]

        return STAGES["kv_cache"].run(CASES[case_id], as_stage)

    names = ("one_token", "ordinary_softmax", "sharp_softmax", "huge_scores", "equal_scores")
    return [
        Trial(
            name=case.id,
            isolates=case.isolates,
            meaning=case.meaning,
            run=partial(run, case.id),
            references={"the oracle": case.expected},
            bounds=bounds_of(case.id),
            axes=case.axes,
            problem=case,
        )
        for case in (CASES[f"decode/{name}"] for name in names)
    ]


# 2. ---------------------------------------------------------------------------------------------


def append_to_cache(keys: Tensor, values: Tensor, seq_len: int, k: Tensor, v: Tensor) -> int:
    """Write new tokens behind the tokens that are there; return the new length.

    keys, values  [max_len, num_kv_heads, head_size]         the reserved memory
    seq_len       tokens in it so far
    k, v          [num_new_tokens, num_kv_heads, head_size]  one token, or a whole prompt
    returns       tokens in it afterwards
    """
    # 1. the new tokens go to places seq_len, seq_len + 1, …
    # 2. nothing else may change
    ### BEGIN SOLUTION
    end = seq_len + len(k)
    keys[seq_len:end] = k
    values[seq_len:end] = v
    return end
    ### END SOLUTION


EMPTY = 9.0  # stands in the comparison where the reserved memory is untouched


def append_to_cache_trials() -> list[Trial]:
    def run(steps: tuple[int, ...], function: Callable | None) -> dict[str, Tensor]:
        answer = function or append_to_cache
        keys, values = (torch.full((10, 2, 4), float("nan")) for _ in "kv")
        seq_len = 0
        for k, v in _new_tokens(steps):
            seq_len = require_written(answer(keys, values, seq_len, k, v))
        return {"out": torch.stack([keys, values]).nan_to_num(EMPTY)}

    def expected(steps: tuple[int, ...]) -> dict[str, Tensor]:
        out = torch.full((2, 10, 2, 4), EMPTY)
        for side in (0, 1):
            out[side, : sum(steps)] = torch.cat([pair[side] for pair in _new_tokens(steps)])
        return {"out": out}

    cases = (
        ("prompt", "several tokens at once", (4,)),
        ("prompt_then_tokens", "one token after another", (3, 1, 1, 1)),
        ("full", "the last place is used too", (7, 3)),
    )
    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning=f"Places are wrong; {EMPTY:.0f} stands for a place that was not written.",
            run=partial(run, steps),
            references={"the tokens themselves": partial(expected, steps)},
            bounds={"out": 0.0},
            axes=("K or V", "place", "head", "dimension"),
        )
        for name, isolates, steps in cases
    ]


def _new_tokens(steps: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    """(k, v) of each step: different whole numbers everywhere, above EMPTY."""
    numbers = torch.arange(10.0, 10 + 2 * sum(steps) * 8).reshape(2, -1, 2, 4)
    return list(zip(numbers[0].split(steps), numbers[1].split(steps), strict=True))


# 3. ---------------------------------------------------------------------------------------------


def generate_with_cache(model: TinyLM, prompt: Tensor, num_tokens: int) -> Tensor:
    """Greedy generation that computes every token once.

    prompt   [prompt_len] int64
    returns  [num_tokens] int64, the generated tokens

    model.new_caches() makes one empty cache a layer;
    model(tokens, caches) appends to them and returns scores [len(tokens), vocab_size].
    """
    # 1. prefill: give the model the whole prompt and empty caches
    # 2. the next token is the argmax of the last row of the scores
    # 3. decode: give the model only that token, with the same caches; repeat
    ### BEGIN SOLUTION
    caches = model.new_caches()
    generated = []
    tokens = prompt
    for _ in range(num_tokens):
        scores = model(tokens, caches)
        tokens = scores[-1].argmax(keepdim=True)
        generated.append(tokens)
    return torch.cat(generated)
    ### END SOLUTION


class CountingLM:
    """A TinyLM that counts the tokens given to it; all that the exercise may use of a model."""

    def __init__(self) -> None:
        self.model = load()
        self.tokens_computed = 0

    def new_caches(self) -> list[KVCache]:
        return self.model.new_caches()

    def __call__(self, tokens: Tensor, caches: list[KVCache] | None = None) -> Tensor:
        self.tokens_computed += len(tokens)
        return self.model(tokens, caches)


def generate_with_cache_trials() -> list[Trial]:
    prompts = ("The", "An assertion is", "If the object is")

    def run(prompt: str, num_tokens: int, function: Callable | None) -> dict[str, Tensor]:
        model = CountingLM()
        answer = function or generate_with_cache
        tokens = require_written(answer(model, encode(prompt), num_tokens))
        return {"out": torch.cat([tokens, torch.tensor([model.tokens_computed])])[:, None]}

    def expected(prompt: str, num_tokens: int) -> dict[str, Tensor]:
        tokens = load().generate(encode(prompt), num_tokens, use_cache=False)
        work = torch.tensor([len(encode(prompt)) + num_tokens - 1])
        return {"out": torch.cat([tokens, work])[:, None]}

    return [
        Trial(
            name=f"prompt_of_{len(encode(prompt))}_bytes",
            isolates=f"{prompt!r} and {num_tokens} tokens; the last number counts the work",
            meaning="Tokens differ from generation without a cache, or the model computed "
            "more than prompt_len + num_tokens - 1 tokens.",
            run=partial(run, prompt, num_tokens),
            references={"generation without a cache": partial(expected, prompt, num_tokens)},
            bounds={"out": 0.0},
            axes=("number", "entry"),
        )
        for prompt, num_tokens in zip(prompts, (1, 8, 20), strict=True)
    ]


# ------------------------------------------------------------------------------------------------

EXERCISES = (
    Exercise(
        notebook=NOTEBOOK,
        text="One decode step needs one query. Compute the output of the newest token "
        "from its query and all keys and values. Every head has its own K and V here.",
        solution=attend_newest,
        wrong=(
            WrongAnswer("qk = scale * torch", "qk = torch", "the scale is forgotten"),
            WrongAnswer("dim=-1", "dim=0", "the softmax runs over heads instead of tokens"),
            WrongAnswer(
                "torch.softmax(qk, dim=-1)",
                "qk.exp() / qk.exp().sum(-1, keepdim=True)",
                "exp overflows for huge scores: the maximum is not subtracted",
            ),
            WrongAnswer(
                'torch.einsum("hj,jhd->hd", weights, v)',
                'torch.einsum("hj,jhd->hd", weights[:, :-1], v[:-1])',
                "the newest token does not see itself",
            ),
        ),
        trials=attend_newest_trials,
    ),
    Exercise(
        notebook=NOTEBOOK,
        text="A contiguous cache is a piece of reserved memory and a length. "
        "Write the function that adds tokens to it: a prompt at once, or one token.",
        solution=append_to_cache,
        wrong=(
            WrongAnswer("keys[seq_len:end] = k", "keys[: len(k)] = k", "old keys are overwritten"),
            WrongAnswer("return end", "return seq_len + 1", "a prompt counts as one token"),
            WrongAnswer("values[seq_len:end] = v", "values[seq_len:end] = k", "K stands in V"),
            WrongAnswer("values[seq_len:end] = v", "pass", "V is forgotten"),
            WrongAnswer(
                "    keys[seq_len:end] = k",
                "    keys[seq_len:] = k[-1]",
                "one token is written to every place that is left",
            ),
        ),
        trials=append_to_cache_trials,
    ),
    Exercise(
        notebook=NOTEBOOK,
        text="Put prefill and decode together: generate text so that every token "
        "goes through the model once. The check counts them.",
        solution=generate_with_cache,
        wrong=(
            WrongAnswer(
                "        scores = model(tokens, caches)",
                "        scores = model(torch.cat([prompt, *generated]))",
                "right tokens, but everything is computed again at each step",
            ),
            WrongAnswer(
                "        scores = model(tokens, caches)",
                "        scores = model(tokens, model.new_caches())",
                "a new, empty cache at every step: the prompt is forgotten",
            ),
            WrongAnswer(
                "        scores = model(tokens, caches)",
                "        scores = model(torch.cat([prompt, *generated]), caches)",
                "the whole sequence is appended again at every step",
            ),
            WrongAnswer("scores[-1]", "scores[0]", "the first row is read instead of the last"),
        ),
        trials=generate_with_cache_trials,
    ),
)
