"""How heads and linear layers are cut over ranks, over how many they can be, and what is sent."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pa_tutorial.distributed import paper
from pa_tutorial.distributed.group import hash_of
from pa_tutorial.distributed.heads import equal_splits, heads_of, require_num_ranks
from pa_tutorial.engine.model import Llama
from tests.distributed.distributed_serving import (
    CONFIGS,
    LLAMA,
    TIGHT,
    count_collectives,
    new_model,
    one_device,
    refuse_unknown_layer,
    serve_all,
    weights_of,
)


@pytest.mark.parametrize("num_heads", range(1, 13))
def test_a_query_head_has_its_kv_head_beside_it_and_no_other(num_heads: int) -> None:
    for num_kv_heads in (n for n in range(1, num_heads + 1) if num_heads % n == 0):
        queries_per_kv = num_heads // num_kv_heads
        for num_ranks in equal_splits(num_heads, num_kv_heads, ()):
            seen: list[int] = []
            for rank in range(num_ranks):
                heads, kv_heads = heads_of(rank, num_ranks, num_heads, num_kv_heads)
                seen += heads
                # To attention the rank is a whole model: its first heads share its first KV head.
                needed = [head // queries_per_kv for head in heads]
                times = len(heads) // len(kv_heads)
                assert needed == [kv_head for kv_head in kv_heads for _ in range(times)]
            assert seen == list(range(num_heads)), "each head once, in order"


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "mlp_size", "allowed"),
    [
        (8, 4, 96, [1, 2, 4, 8]),
        (8, 4, 12, [1, 2, 4]),  # 8 ranks cannot share 12 numbers between the halves of the MLP
        (6, 2, 96, [1, 2, 6]),  # 3 ranks and 2 KV heads: one head would be cut in two
        (6, 1, 96, [1, 2, 3, 6]),
        (3, 1, 97, [1]),
    ],
)
def test_exactly_these_numbers_of_ranks_are_allowed(
    num_heads: int, num_kv_heads: int, mlp_size: int, allowed: list[int]
) -> None:
    sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "mlp_size": mlp_size}
    model = Llama(replace(LLAMA, num_layers=1, **sizes))
    for num_ranks in range(-1, num_heads + 3):
        if num_ranks in allowed:
            require_num_ranks(model, num_ranks)
            continue
        with pytest.raises(ValueError, match="must be one of") as refused:
            require_num_ranks(model, num_ranks, "--tensor-parallel")
        assert str(refused.value) == (
            f"--tensor-parallel is {num_ranks}; it must be one of {allowed}: "
            f"the model has {num_heads} query heads and {num_kv_heads} KV heads"
        )


def test_an_unknown_layer_is_refused_and_no_layer_is_changed(ranks_of: Callable) -> None:
    """Such a layer would stay whole, and multiply a part by all."""
    message = "layer is layers.0.mlp_extra; it must be one that heads.py can cut"
    assert ranks_of(2).run(refuse_unknown_layer) == [message] * 2


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_each_rank_keeps_only_its_part_of_a_layer(num_ranks: int, ranks_of: Callable) -> None:
    """Rows of the first layers, columns of the next. On paper it has as many numbers."""
    whole = dict(new_model("biased").named_parameters())
    for rank, part in enumerate(ranks_of(num_ranks).run(weights_of, "biased")):
        for key, weight in part.items():
            last, expected = key.split(".")[-2], whole[key]
            if last in ("k_proj", "v_proj") and num_ranks == 4:  # 2 KV heads, each on two ranks
                expected = expected.chunk(2)[rank // 2]
            elif last in ("o_proj", "down_proj"):
                assert expected.dim() == 2, f"{key}: inside the layer, it would be added twice"
                expected = expected.chunk(num_ranks, dim=1)[rank]
            elif last.endswith("_proj") or last == "lm_head":
                expected = expected.chunk(num_ranks)[rank]
            assert torch.equal(weight, expected), key
        own = sum(w.numel() for key, w in part.items() if w.dim() == 2 and "embed" not in key)
        assert own == paper.matrix_numbers(CONFIGS["biased"], num_ranks)


# 4 ranks: TinyLM has 2 KV heads, so two ranks have the same one. "biased": with a bias in a sum
# over ranks, torch would send weights instead of parts. 97 scores of qwen2 are padded.
@pytest.mark.parametrize(("num_ranks", "name"), [(2, "biased"), (4, "tiny"), (2, "qwen2")])
def test_a_step_sends_what_it_sends_on_paper_and_no_more_with_a_longer_context(
    ranks_of: Callable, num_ranks: int, name: str
) -> None:
    config = new_model(name).config
    steps, *others = ranks_of(num_ranks).run(count_collectives, name)
    assert others == [steps] * (num_ranks - 1)
    assert len(steps) == 40
    kinds = ("broadcast", "all_reduce", "all_gather")
    broadcasts, sums, gathered = (
        [[c.num_bytes for c in sent if c.name == kind] for sent in steps] for kind in kinds
    )
    assert {sent[0] for sent in broadcasts} == {8}, "the length of a message, then the message"
    assert broadcasts[-1][1] - broadcasts[1][1] <= 4 * 2 * 3 + 16, "3 blocks more, of 2 sequences"
    # A hash of each field of the batch; then each rank's part of the scores.
    own_scores = -(-config.vocab_size // num_ranks)
    assert gathered == [[10 * 8, 2 * own_scores * 8]] * 40
    assert sums[0] == [52 * config.hidden_size * 8] * 2 * config.num_layers
    if name == "biased":  # on paper, numbers have 2 bytes; here 8
        joined, scores, *_ = paper.collectives(config, 2, num_ranks, 1)
        assert sums[1:] == [[4 * joined.num_bytes] * joined.times] * 39
        assert scores.num_bytes * 4 == num_ranks * gathered[1][1]


@pytest.mark.parametrize(
    ("num_ranks", "options"),
    [
        (2, TIGHT),
        (4, TIGHT | {"prefix_caching": False}),
        (2, {"stage": "cuda_v1", "num_requests": 1, "block_size": 8}),
        (2, {"stage": "cpu"}),
    ],
    ids=["tight", "without prefixes", "cuda_v1", "cpu"],
)
def test_completions_and_statistics_are_those_of_one_device(
    ranks_of: Callable, num_ranks: int, options: dict
) -> None:
    """Other stages compute in float32."""
    if "stage" in options:
        options = options | {"dtype": torch.float32, "num_blocks": 40}
    served = one_device("tiny", **options)
    others = [None] * (num_ranks - 1)
    assert ranks_of(num_ranks).run(serve_all, "tiny", **options) == [served, *others]


def test_a_hash_is_of_the_numbers_the_type_and_the_shape() -> None:
    """All these have the same bytes. A column of a matrix is as good as its copy."""
    zeros = torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), torch.ones(4)
    hashes = set(map(hash_of, (*zeros, *range(1000))))
    assert len(hashes) == 1004
    assert min(hashes) < -(2**61), "8 bytes"
    column = torch.arange(6).reshape(2, 3)[:, 1]
    assert hash_of(column) == hash_of(column.clone())
