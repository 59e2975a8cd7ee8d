"""A very small model, requests answered without an engine, and what must hold after a step."""

from collections import Counter
from functools import cache

import torch

from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM
from pa_tutorial.engine import Engine
from pa_tutorial.engine.request import Request
from pa_tutorial.engine.sampling import choose_token
from tests.paging.block_helpers import require_balanced

VOCAB_SIZE = 16
MAX_LEN = 64


@cache
def small_model(num_layers: int = 1) -> TinyLM:
    """In float64, so that a batch rounds no differently than a sequence alone."""
    torch.manual_seed(0)
    heads = {"num_heads": 2, "num_kv_heads": 1, "head_size": 8}
    sizes = {"max_len": MAX_LEN, "mlp_ratio": 1, "vocab_size": VOCAB_SIZE}
    sizes |= {"alibi": num_layers == 1}
    return TinyLM(TinyConfig(num_layers, **heads, **sizes)).requires_grad_(False).double()


def require_answered(request: Request, num_layers: int = 1) -> None:
    """All samples, and each as the model answers alone, without a cache."""
    assert request.error is None, request.error
    assert len(request.samples) == request.params.num_samples
    for sample in request.samples:
        generated = sample.generated
        # The model sees no token to the right: one run has the scores before each of them.
        first = len(request.prompt) - 1
        scores = small_model(num_layers)(torch.tensor([*request.prompt, *generated]))[first:-1]
        expected = [
            choose_token(row.float(), request.params, sample.index, number)
            for number, row in enumerate(scores)
        ]
        assert generated == expected, f"request {request.number}, sample {sample.index}"
        *before, last = (token in request.params.stop_tokens for token in generated)
        assert not any(before), "it goes on after a stop token"
        assert len(generated) <= request.params.max_tokens, "it goes on too long"
        assert last or len(generated) == request.params.max_tokens, "it ends too early"


def require_all_returned(engine: Engine) -> None:
    assert engine.is_idle
    assert engine.pages.num_free == engine.pages.num_blocks - 1, "a block leaked"
    assert not engine.pages.sequences
    assert not any(engine.pages.allocator.ref_counts)


def require_sound(engine: Engine, requests: list[Request]) -> None:
    """What holds between two steps: lists, reference counts, the pool."""
    scheduler = engine.scheduler
    groups = scheduler.waiting, scheduler.running, scheduler.suspects
    listed = Counter(sequence for group in groups for sequence in group)
    for sequence in (sample for request in requests for sample in request.samples):
        assert listed[sequence] == (sequence.finish_reason is None), "in one list, or finished"
    for group in groups:
        assert group == sorted(group, key=lambda sequence: sequence.age)
    assert len(scheduler.running) <= scheduler.max_num_seqs
    assert all(sequence.num_in_pages == 0 for sequence in scheduler.waiting)
    holders = {sequence.age: sequence for sequence in listed if sequence.num_in_pages}
    tables = engine.pages.sequences
    assert holders.keys() == tables.keys()
    require_balanced(engine.pages.allocator, tables.values())
    for age, sequence in holders.items():
        assert tables[age].token_ids == sequence.token_ids[: sequence.num_in_pages]
        assert len(tables[age].blocks) == -(-sequence.num_in_pages // engine.pages.block_size)
