"""How heads and linear layers are cut over ranks, and over how many they can be.

What a step sends: notebook 27.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from pa_tutorial.distributed.group import Group
from pa_tutorial.distributed.heads import heads_of, require_num_ranks, shard_heads
from pa_tutorial.engine.model import Llama
from tests.distributed.distributed_serving import LLAMA


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
        with pytest.raises(ValueError, match=rf"num_ranks is {num_ranks}; .* \[1, 2, "):
            require_num_ranks(model, num_ranks)


def test_an_unknown_layer_is_refused_and_no_layer_is_changed() -> None:
    """Such a layer would stay whole, and multiply a part by all."""
    model = Llama(replace(LLAMA, num_layers=1))
    model.layers[0].mlp_extra = nn.Linear(64, 64)
    shapes = [weight.shape for weight in model.parameters()]
    group = Group(0, 2, torch.device("cpu"), *[None] * 3)  # it has no need of the others
    with pytest.raises(ValueError, match=r"layer is layers\.0\.mlp_extra"):
        shard_heads(model, group)
    assert shapes == [weight.shape for weight in model.parameters()]
