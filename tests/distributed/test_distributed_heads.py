"""How heads and linear layers are cut over ranks, over how many they can be, and what is sent."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from pa_tutorial.distributed.group import Group
from pa_tutorial.distributed.heads import heads_of, require_num_ranks, shard_heads
from pa_tutorial.distributed.runner import serve
from pa_tutorial.distributed.wire import Wire
from pa_tutorial.engine import LLM, SamplingParams
from pa_tutorial.engine.model import Llama
from tests.distributed.distributed_serving import LLAMA, new_model


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "mlp_size", "allowed"),
    [
        (8, 4, 12, [1, 2, 4]),  # 8 ranks cannot share 12 numbers between the halves of the MLP
        (6, 2, 96, [1, 2, 6]),  # 3 ranks and 2 KV heads: one head would be cut in two
        (6, 1, 96, [1, 2, 3, 6]),
    ],
)
def test_exactly_these_numbers_of_ranks_are_allowed_and_each_has_the_kv_heads_of_its_queries(
    num_heads: int, num_kv_heads: int, mlp_size: int, allowed: list[int]
) -> None:
    sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "mlp_size": mlp_size}
    model = Llama(replace(LLAMA, num_layers=1, **sizes))
    for num_ranks in allowed:
        require_num_ranks(model, num_ranks)
        cut = [heads_of(rank, num_ranks, num_heads, num_kv_heads) for rank in range(num_ranks)]
        for heads, kv_heads in cut:
            assert {head * num_kv_heads // num_heads for head in heads} == {*kv_heads}
        assert [head for heads, _ in cut for head in heads] == list(range(num_heads))
    for num_ranks in {*range(-1, num_heads + 3)} - {*allowed}:
        with pytest.raises(
            ValueError, match=rf"num_ranks is {num_ranks}; .* \[1, 2, .* query heads"
        ):
            require_num_ranks(model, num_ranks)


def test_an_unknown_layer_is_refused_and_no_layer_is_changed() -> None:
    """Such a layer would stay whole, and multiply a part by all."""
    model = Llama(replace(LLAMA, num_layers=1))
    model.layers[0].mlp_extra = nn.Linear(64, 64)
    shapes = [weight.shape for weight in model.parameters()]
    group = Group(0, 2, torch.device("cpu"), *[None] * 3)  # it has no need of the others
    with pytest.raises(ValueError, match=r"layer is layers\.0\.mlp_extra; it must be one that"):
        shard_heads(model, group)
    assert shapes == [weight.shape for weight in model.parameters()]


# 4 ranks: TinyLM has 2 KV heads, so two ranks have the same one. "biased": with a bias in a sum
# over ranks, torch would send weights instead of parts. 97 scores of qwen2 are padded.
@pytest.mark.rest("bytes_of_an_agreement; notebook 27, which prints what a step sends")
@pytest.mark.parametrize(("num_ranks", "name"), [(2, "biased"), (4, "tiny"), (2, "qwen2")])
def test_a_step_sends_hashes_sums_and_scores_and_no_more_with_a_longer_context(
    ranks_of: Callable, num_ranks: int, name: str
) -> None:
    def sent(group: Group) -> list[tuple[str, int]]:
        """A prompt of 50 tokens and one of 2, then 39 decode steps of both."""

        def work(llm: LLM) -> list[tuple[str, int]]:
            params = SamplingParams(max_tokens=40, ignore_eos=True)
            with Wire() as wire:
                llm.generate([[1] * 50, [2, 3]], params, progress=False)
            return wire.collectives

        return serve(new_model(name), None, group, work)

    config = new_model(name).config
    found = ranks_of(num_ranks).run(sent)[0]
    own_scores = -(-config.vocab_size // num_ranks)
    sums = 2 * config.num_layers
    assert len(found) == 40 * (4 + sums)
    for step in range(40):
        length, message, hashes, *joined, scores = found[step * (4 + sums) :][: 4 + sums]
        assert length == ("broadcast", 8), "the length of a message, then the message"
        assert message[0] == "broadcast"
        assert hashes == ("all_gather", 8)
        assert joined == [("all_reduce", (2 if step else 52) * config.hidden_size * 8)] * sums
        assert scores == ("all_gather", 2 * own_scores * 8)
    growth = found[-3 - sums][1] - found[5 + sums][1]
    assert growth <= 4 * 2 * 3 + 16, "3 blocks more, of 2 sequences"
