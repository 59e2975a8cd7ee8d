"""A second reference: transformers' own continuous batching, over a paged cache of its own."""

import threading

import pytest
from hf_models import SEEDS, end_tokens, folder_of, random_model, reference, transformers
from test_engine_transformers import MODELS, requests

from pa_tutorial.engine import LLM, SamplingParams

NUM_REQUESTS, MAX_TOKENS = 8, 14
# Of pages of 8 tokens. Without these numbers it takes all the memory that it finds.
POOL = {"page_size": 8, "num_blocks": 64, "max_batch_tokens": 40}


def generate_batch(name: str, prompts: list[list[int]]) -> list[list[int]]:
    """All prompts at once, in a thread of transformers' own, which has ended afterwards."""
    model = random_model(name, SEEDS[name])
    model.set_attn_implementation("paged|eager")
    answers = model.generate_batch(
        prompts,
        transformers.GenerationConfig(
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            eos_token_id=end_tokens(model),
            pad_token_id=0,
        ),
        transformers.ContinuousBatchingConfig(**POOL),
    )
    assert [answer.error for answer in answers.values()] == [None] * len(prompts)
    return [answer.generated_tokens for answer in answers.values()]


@pytest.mark.parametrize("name", MODELS)
def test_two_engines_with_pages_give_the_same_tokens(name) -> None:
    prompts = [prompt for prompt, _ in requests()[:NUM_REQUESTS]]
    assert sum(map(len, prompts)) > 4 * POOL["max_batch_tokens"], "both cut prompts into chunks"
    alone = [reference(random_model(name, SEEDS[name]), prompt, MAX_TOKENS) for prompt in prompts]
    assert min(one.margin for one in alone) > 1e-3
    theirs = generate_batch(name, prompts)
    assert not [thread for thread in threading.enumerate() if "generation" in thread.name]

    sizes = {"block_size": 8, "num_blocks": 64, "token_budget": POOL["max_batch_tokens"]}
    ours = LLM(folder_of(name), **sizes).generate(
        prompts, SamplingParams(max_tokens=MAX_TOKENS), progress=False
    )
    assert [completion.token_ids for completion in ours] == [[tokens] for tokens in theirs]
    assert len({len(tokens) for tokens in theirs}) > 1, "some end before the others"
