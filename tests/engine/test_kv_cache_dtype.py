"""An engine with an 8-bit cache: its bytes, its answers, and what is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pa_tutorial.attention import tiny_lm
from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM
from pa_tutorial.checks.engine_check import SCENES, Served
from pa_tutorial.engine import Engine, SamplingParams
from pa_tutorial.kernels.cuda_backends import naive_backend
from pa_tutorial.paging.block_pages import BlockPages
from tests.engine.engine_helpers import VOCAB_SIZE, require_all_returned, small_model

PROMPTS = ("The for statement", "The class ", "if ", "A name is", "import", "Each item in a set")


def narrow_model(dtype: torch.dtype = torch.float32) -> TinyLM:
    """Random, with heads of 16 elements, which is x of an 8-bit cache."""
    torch.manual_seed(0)
    config = TinyConfig(1, 2, 1, head_size=16, max_len=64, mlp_ratio=1, vocab_size=VOCAB_SIZE)
    return TinyLM(config).requires_grad_(False).to(dtype)


def served(
    model: TinyLM, kv_cache_dtype: str | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[list[int]], list[list[Tensor]], int]:
    """The tokens that follow each prompt, the scores of each token, the bytes of a block."""
    engine = Engine(model, BlockPages(512, 16), kv_cache_dtype=kv_cache_dtype)
    run, scores = engine.runner.run, [[] for _ in PROMPTS]

    def noted(batch: object) -> Tensor:
        found = run(batch)
        for sequence, row in zip(batch.sampled, found, strict=True):
            scores[sequence.request.number].append(row)
        return found

    monkeypatch.setattr(engine.runner, "run", noted)
    for prompt in PROMPTS:
        tokens = [byte % model.config.vocab_size for byte in prompt.encode()]
        engine.add(tokens, SamplingParams(max_tokens=32))
    requests = [sequence.request for sequence in engine.scheduler.waiting]
    while not engine.is_idle:
        engine.step()
    assert [request.samples[0].finish_reason for request in requests] == ["length"] * len(PROMPTS)
    require_all_returned(engine)
    bytes_per_block = engine.runner.cache.bytes_per_block
    return [request.samples[0].generated for request in requests], scores, bytes_per_block


@pytest.mark.parametrize(
    ("make", "kv_cache_dtype"),
    [
        (tiny_lm.load, "fp8"),
        (tiny_lm.load, "fp8_e5m2"),
        (lambda: narrow_model(torch.float16), "fp8"),
    ],
    ids=["trained", "trained_e5m2", "float16"],
)
def test_every_request_finishes_over_blocks_of_fewer_bytes(
    make: Callable[[], TinyLM], kv_cache_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many tokens are the same depends on the model; `pytest -rP` shows it."""
    model = make()
    ours, theirs = (served(model, dtype, monkeypatch) for dtype in (kv_cache_dtype, None))
    assert ours[2] * next(model.parameters()).itemsize == theirs[2]
    equal, distance = 0, 0.0
    for one, two, *scores in zip(*ours[:1], *theirs[:1], ours[1], theirs[1], strict=True):
        equal += sum(a == b for a, b in zip(one, two, strict=True))
        for step, (mine, other) in enumerate(zip(*scores, strict=True)):
            if one[:step] == two[:step]:  # both have read the same tokens
                distance = max(distance, (mine - other).abs().max().item())
    share = equal / sum(map(len, ours[0]))
    print(f"{share:.1%} of the tokens are equal; scores differ by up to {distance:.3f}")


@pytest.mark.parametrize("name", ["shared_prefix", "parallel_samples_preempted"])
def test_a_scene_ends_over_an_8_bit_cache(name: str) -> None:
    """Blocks are shared, copied and computed again, whatever the bytes in them."""
    served = Served(**SCENES[name].options, kv_cache_dtype="fp8")
    SCENES[name].play(served)
    served.run()
    assert all(request.error is None for request in served.requests.values())
    require_all_returned(served.engine)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (narrow_model, {"kv_cache_dtype": "int8"}, r"kv_cache_dtype is 'int8'; .* fp8, fp8_e4m3"),
        (narrow_model, {"kv_cache_dtype": torch.float16}, r"kv_cache_dtype is .*float16"),
        (small_model, {"kv_cache_dtype": "fp8"}, r"kv_cache_dtype is 'fp8'; .* torch.float64"),
        (
            narrow_model,
            {"kv_cache_dtype": "fp8", "backend": naive_backend},
            r"NaiveBackend can't run .* kv_cache_dtype 'fp8': k_cache.dtype is .* no float8",
        ),
    ],
    ids=["unknown", "no_name", "float64", "backend"],
)
def test_an_8_bit_cache_that_cannot_be_is_refused(
    make: Callable[[], TinyLM], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Engine(make(), BlockPages(9, 16), **options)
