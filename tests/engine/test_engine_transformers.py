"""Greedy tokens of the engine are those of transformers: one engine for all, one prompt alone."""

from functools import cache

import numpy as np
import pytest

from pa_tutorial.checks.ladder import backend_named
from pa_tutorial.engine import LLM, SamplingParams
from tests.engine.hf_models import (
    END_TOKENS,
    VOCAB_SIZE,
    folder_of,
    model_named,
    reference,
    require_no_retry,
)

MODELS = ("llama", "qwen2")
NUM_REQUESTS, LONGEST_PROMPT, MOST_TOKENS = 32, 60, 28


@cache
def requests() -> list[tuple[list[int], int]]:
    """32 prompts, each with its max_tokens. A third begins like one before, at any length."""
    rng = np.random.default_rng(5)
    prompts: list[list[int]] = []
    for index in range(NUM_REQUESTS):
        prompt = rng.integers(0, VOCAB_SIZE, rng.integers(1, LONGEST_PROMPT + 1)).tolist()
        if index % 3 == 2:
            older = prompts[rng.integers(index)]
            shared = int(rng.integers(1, len(older) + 1))
            prompt = (older[:shared] + prompt)[:LONGEST_PROMPT]
        prompts.append(prompt)
    prompts[0], prompts[1] = prompts[0][:1], prompts[1][:2]
    prompts[6] = prompts[5]  # the same twice
    most = rng.integers(1, MOST_TOKENS + 1, NUM_REQUESTS).tolist()
    return list(zip(prompts, most, strict=True))


@cache
def references(name: str) -> list[list[int]]:
    found = [reference(model_named(name), *request) for request in requests()]
    assert {tokens[-1] for tokens in found} >= END_TOKENS[name], "some end"
    return found


# (backend, prefix caching, block size, blocks, chunk size, token budget, sequences at once, seed of
# the order of arrival). Chosen such that every two values of chunk, caching and pool meet.
ROOMY, TIGHT = 300, 13  # blocks of 8 tokens; the longest request needs 11
COVERING = [
    ("paged_online", True, 8, ROOMY, 64, 256, 64, None),
    ("paged_online", True, 8, TIGHT, 16, 64, 64, 1),
    ("paged_online", True, 8, TIGHT, 1, 16, 16, 2),
    ("paged_online", False, 8, TIGHT, 3, 33, 5, 3),
    ("paged_online", False, 8, ROOMY, 1, 7, 64, None),
    ("paged_online", True, 1, 250, 3, 20, 8, 4),
    ("paged_online", False, 128, ROOMY, 16, 256, 64, 6),
    # One block size, because the kernel is compiled for each; the ladder has the others.
    ("cpu", True, 16, 7, 3, 256, 64, None),
    ("cpu", False, 16, ROOMY, 3, 64, 3, 9),
]


@pytest.mark.rest("notebook 26 compares the tokens of a Qwen2 with those of transformers")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("settings", COVERING, ids=lambda one: "-".join(map(str, one)))
def test_tokens_are_those_of_transformers(settings: tuple, name: str) -> None:
    backend, *sizes, seed = settings
    caching, block_size, num_blocks, chunk_size, token_budget, max_num_seqs = sizes
    pool = {"prefix_caching": caching, "block_size": block_size, "num_blocks": num_blocks}
    limits = {"chunk_size": chunk_size, "token_budget": token_budget, "max_num_seqs": max_num_seqs}
    llm = LLM(folder_of(name), backend=backend_named(backend), **pool, **limits)
    prompts, most = zip(*requests(), strict=True)
    latest = 1 if seed is None else 40
    arrivals = np.random.default_rng(seed).integers(0, latest, NUM_REQUESTS).tolist()
    params = [SamplingParams(max_tokens=number) for number in most]
    completions = llm.generate(prompts, params, arrivals, progress=False)
    for completion, expected in zip(completions, references(name), strict=True):
        assert completion.error is None
        assert completion.token_ids == [expected]
        is_end = expected[-1] in END_TOKENS[name]
        assert completion.finish_reasons == ["stop" if is_end else "length"]
    require_no_retry(llm)
    last = llm.statistics[-1]
    assert (last.num_running, last.num_waiting, last.blocks_used) == (0, 0, 0)
    assert (last.num_preemptions > 0) == (num_blocks != ROOMY)
    assert (last.hit_rate > 0) == caching
    assert max(step.num_prefill + step.num_decode for step in llm.statistics) <= token_budget
