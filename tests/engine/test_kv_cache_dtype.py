"""An engine with an 8-bit cache: its bytes, its answers, and what is refused."""

import pytest
import torch
from torch import Tensor

from pa_tutorial.attention import tiny_lm
from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM
from pa_tutorial.engine import Engine, SamplingParams
from pa_tutorial.kernels.cuda_backends import naive_backend
from pa_tutorial.paging.block_pages import BlockPages
from tests.engine.engine_helpers import VOCAB_SIZE, require_all_returned

PROMPTS = ("The for statement", "The class ", "if ", "A name is", "import", "Each item in a set")


def narrow_model(dtype: torch.dtype = torch.float32) -> TinyLM:
    """Random, with heads of 16 elements, which is x of an 8-bit cache."""
    torch.manual_seed(0)
    config = TinyConfig(1, 2, 1, head_size=16, max_len=64, mlp_ratio=1, vocab_size=VOCAB_SIZE)
    return TinyLM(config).requires_grad_(False).to(dtype)


def served(
    model: TinyLM, kv_cache_dtype: str | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, list[list[tuple[int, Tensor]]]]:
    """The bytes of a block; each prompt's tokens, with the scores by which they were chosen."""
    engine = Engine(model, BlockPages(512, 16), kv_cache_dtype=kv_cache_dtype)
    run, scores = engine.runner.run, [[] for _ in PROMPTS]

    def noted(batch: object) -> Tensor:
        found = run(batch)
        for sequence, row in zip(batch.sampled, found, strict=True):
            scores[sequence.request.number].append(row)
        return found

    monkeypatch.setattr(engine.runner, "run", noted)
    prompts = [[byte % model.config.vocab_size for byte in text.encode()] for text in PROMPTS]
    requests = [engine.add(prompt, SamplingParams(max_tokens=32)) for prompt in prompts]
    while not engine.is_idle:
        engine.step()
    require_all_returned(engine)
    answers = [request.samples[0].generated for request in requests]
    pairs = [list(zip(*both, strict=True)) for both in zip(answers, scores, strict=True)]
    return engine.runner.cache.bytes_per_block, pairs


@pytest.mark.parametrize(
    ("model", "kv_cache_dtype"),
    [(tiny_lm.load(), "fp8"), (tiny_lm.load(), "fp8_e5m2"), (narrow_model(torch.float16), "fp8")],
    ids=["trained", "trained_e5m2", "float16"],
)
def test_every_request_finishes_over_blocks_of_fewer_bytes(
    model: TinyLM, kv_cache_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many tokens are the same depends on the model; `pytest -rP` shows it."""
    (narrow, ours), (wide, theirs) = (
        served(model, dtype, monkeypatch) for dtype in (kv_cache_dtype, None)
    )
    assert narrow * next(model.parameters()).itemsize == wide
    equal, distance = 0, 0.0
    for one, other in zip(ours, theirs, strict=True):
        is_same = True  # both have read the same tokens
        for (token, mine), (other_token, scores) in zip(one, other, strict=True):
            distance = max(distance, is_same * (mine - scores).abs().max().item())
            is_same &= token == other_token
            equal += token == other_token
    share = equal / (32 * len(PROMPTS))
    print(f"{share:.1%} of the tokens are equal; scores differ by up to {distance:.3f}")


def test_a_backend_that_reads_no_8_bit_cache_is_refused() -> None:
    with pytest.raises(ValueError, match=r"NaiveBackend can't run .*kv_cache_dtype 'fp8'"):
        Engine(narrow_model(), BlockPages(9, 16), backend=naive_backend, kv_cache_dtype="fp8")
