"""Exercises of notebook 01: attention of one query, chunked generation."""

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.attention.cached import KVCache
from pa_tutorial.attention.tiny_lm import TinyLM, encode, load
from pa_tutorial.checks.calls import AnswerError, Function
from pa_tutorial.checks.ladder import STAGES
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import graded, on_steps, require_shape, require_tensor


# 1. ---------------------------------------------------------------------------------------------
def attend_newest(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of the newest token.

    q        [num_heads, head_size]           the query of the last token
    k, v     [seq_len, num_heads, head_size]  keys and values of all tokens
    returns  [num_heads, head_size]
    """
    # 1. one score per head and token: scale * (q . k_j)
    # 2. the softmax over the tokens turns scores into weights
    # 3. the output is the sum over the tokens of weight times v_j
    ### BEGIN SOLUTION
    qk = scale * torch.einsum("hd,jhd->hj", q, k)
    weights = torch.softmax(qk, dim=-1)
    return torch.einsum("hj,jhd->hd", weights, v)
    ### END SOLUTION


ATTEND_CASES = (
    *("one_token", "ordinary_softmax", "sharp_softmax", "equal_scores", "other_scale"),
    *("deep_negative_scores", "huge_scores"),
)


def attend_run(answer: Function, case: DecodeProblem) -> dict[str, Tensor]:
    def as_stage(q: Tensor, k: Tensor, v: Tensor, scale: float, slopes: None) -> Tensor:
        return require_shape(answer(q[0], k, v, scale), list(q[0].shape))[None]

    return STAGES["kv_cache"].run(case, as_stage)


# 2. ---------------------------------------------------------------------------------------------
def generate_in_chunks(model: TinyLM, prompt: Tensor, num_tokens: int, chunk_len: int) -> Tensor:
    """Greedy generation with a cache, where no call gets more than chunk_len tokens.

    prompt   [prompt_len] int64
    returns  [num_tokens] int64, the generated tokens without the prompt

    model.new_caches() makes one empty cache per layer;
    model(tokens, caches) appends to them and returns scores [len(tokens), vocab_size].
    """
    # 1. prefill: give the model the prompt, chunk_len tokens at a time, with the same caches
    # 2. the next token is the argmax of the last token's scores
    # 3. decode: give the model only that token; repeat until there are num_tokens
    ### BEGIN SOLUTION
    caches = model.new_caches()
    for chunk in prompt.split(chunk_len):
        scores = model(chunk, caches)
    generated = [scores[-1].argmax(keepdim=True)]
    while len(generated) < num_tokens:
        scores = model(generated[-1], caches)
        generated.append(scores[-1].argmax(keepdim=True))
    return torch.cat(generated)
    ### END SOLUTION


class CountingLM:
    """A TinyLM that counts the tokens given to it; all that the exercise may use of a model."""

    def __init__(self) -> None:
        self.model = load()
        self.calls: list[int] = []

    def new_caches(self) -> list[KVCache]:
        return self.model.new_caches()

    def __call__(self, tokens: Tensor, caches: list[KVCache] | None = None) -> Tensor:
        self.calls.append(len(tokens))
        return self.model(tokens, caches)


_CHUNKS = "The caches must be the same for all chunks, and no chunk may be missing."
CHUNK_CASES = (
    # name, what it isolates, what its failure means, prompt, num_tokens, chunk_len
    ("prefill_only", "one token from a prompt in one chunk", _CHUNKS, "The", 1, 8),
    ("even_chunks", "16 prompt tokens, 8 at a time", _CHUNKS, "If the object is", 12, 8),
    ("last_chunk_is_short", "15 prompt tokens, 4 at a time", _CHUNKS, "An assertion is", 12, 4),
    ("chunks_of_one", "one prompt token at a time", _CHUNKS, "A list is", 20, 1),
)
WORDS = "a an any class each if in instance is list method new not object of or that the two when"


def other_prompt(rng: np.random.Generator, _: str, prompt: str, *sizes: int) -> tuple:
    """Random words, cut to the length of the prompt."""
    words = rng.choice(WORDS.split(), size=len(prompt))
    return None, " ".join(words)[: len(prompt)], *sizes


def chunks_run(answer: Function, prompt: str, num_tokens: int, chunk_len: int) -> Tensor:
    model, tokens = CountingLM(), encode(prompt)
    generated = answer(model, tokens, num_tokens, chunk_len)
    enough = len(tokens) + num_tokens - 1
    require_tensor(generated, tokens.new_empty(num_tokens))
    if max(model.calls, default=0) > chunk_len:
        raise AnswerError(f"one call got {max(model.calls)} tokens; {chunk_len} are allowed")
    if sum(model.calls) > enough:
        raise AnswerError(
            f"the model was given {sum(model.calls)} tokens, {enough} are enough: "
            "was an old token given again, or the last generated one?"
        )
    fewest = -(-len(tokens) // chunk_len) + num_tokens - 1
    if len(model.calls) > fewest:
        raise AnswerError(f"it called the model {len(model.calls)} times; {fewest} are enough")
    return generated[:, None]


def generation_without_a_cache(prompt: str, num_tokens: int, chunk_len: int) -> Tensor:
    return load().generate(encode(prompt), num_tokens, use_cache=False)[:, None]


EXERCISES = (
    Exercise(
        solution=attend_newest,
        cases=on_steps(ATTEND_CASES, attend_run),
        is_warm_up=True,
    ),
    Exercise(
        solution=generate_in_chunks,
        cases=graded(
            CHUNK_CASES, chunks_run, generation_without_a_cache, ("generated token",), other_prompt
        ),
    ),
)
