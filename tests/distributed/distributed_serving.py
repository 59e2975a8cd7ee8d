"""Models and requests to serve, on one device and on ranks, which import this too."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch

from pa_tutorial.attention import tiny_lm
from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM
from pa_tutorial.distributed.group import Group
from pa_tutorial.distributed.runner import serve
from pa_tutorial.engine import LLM, SamplingParams
from pa_tutorial.engine.model import Llama, LlamaConfig
from pa_tutorial.engine.runner import Model

NUM_REQUESTS = 8
LONGEST_PROMPT = 40
# Chunked prefill, more requests than may run, and a pool that is too small for those that do.
TIGHT = {"num_blocks": 24, "block_size": 4}
TIGHT |= {"token_budget": 48, "chunk_size": 15, "max_num_seqs": 10}
# 2 layers, 8 query heads, 4 KV heads, head_size 16, hidden_size 64, mlp_size 96, 100 tokens.
LLAMA = LlamaConfig(2, 8, 4, 16, 64, 96, 100, max_len=128, eos_tokens=(7,))
CONFIGS = {
    "llama": LLAMA,
    # One KV head: all ranks have it. 97 scores are a multiple of no number of ranks.
    "qwen2": replace(
        LLAMA, num_layers=1, num_heads=4, num_kv_heads=1, vocab_size=97, qkv_bias=True, is_tied=True
    ),
    "biased": replace(LLAMA, num_kv_heads=2, qkv_bias=True, out_bias=True, mlp_bias=True),
    "alibi": TinyConfig(1, 4, 4, head_size=16, vocab_size=64, alibi=True),
}


def new_model(name: str) -> Model:
    """The same on every rank. In float64, sums in another order change the 16th digit.

    name  "tiny" (the trained TinyLM: 4 heads, 2 KV heads), or one of CONFIGS, with random weights
    """
    if name == "tiny":
        return tiny_lm.load().double()
    config = CONFIGS[name]
    model = (TinyLM if isinstance(config, TinyConfig) else Llama)(config).requires_grad_(False)
    random = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        # So wide that every layer changes which token is the likeliest; norms and biases too.
        width = 1.0 if weight.dim() == 1 else 2.0 * weight.shape[-1] ** -0.5
        weight.normal_(0.0, width, generator=random)
    return model.double()


def requests(vocab_size: int) -> tuple[list[list[int]], list[SamplingParams], list[int]]:
    """Prompts, parameters, arrivals. A third of the prompts begins like one before."""
    rng = np.random.default_rng(3)
    prompts: list[list[int]] = []
    params, arrivals = [], []
    for index in range(NUM_REQUESTS):
        prompt = rng.integers(0, vocab_size, rng.integers(1, LONGEST_PROMPT + 1)).tolist()
        if index % 3 == 2:
            older = prompts[int(rng.integers(index))]
            prompt = (older + prompt)[:LONGEST_PROMPT]
        prompts.append(prompt)
        options = {"max_tokens": int(rng.integers(1, 10)), "seed": index}
        if index % 4 == 1:
            options |= {"temperature": 0.9, "num_samples": 3, "top_k": 10}
        params.append(SamplingParams(**options))
        arrivals.append(int(rng.integers(0, 9)))
    return prompts, params, arrivals


def answer_all(llm: LLM) -> list[list[list[int]]]:
    """The tokens of the answers to all requests."""
    done = llm.generate(*requests(llm.engine.model.config.vocab_size), progress=False)
    assert {completion.error for completion in done} == {None}
    assert llm.statistics[-1].num_preemptions > 0
    return [one.token_ids for one in done]


def serve_all(group: Group, name: str) -> list[list[list[int]]] | None:
    """On every rank: the requests, as a program would serve them."""
    return serve(new_model(name), None, group, answer_all, **TIGHT)


@cache
def one_device(name: str) -> list[list[list[int]]]:
    return answer_all(LLM(new_model(name), None, **TIGHT))
