"""How heads and linear layers are cut over ranks, and over how many they can be."""

import pytest
import torch
from distributed_serving import (
    CONFIGS,
    LLAMA,
    count_collectives,
    new_model,
    refuse_unknown_layer,
    score_all,
    weights_of,
)
from torch import nn

from pa_tutorial.attention.tiny_lm import TinyConfig, TinyLM
from pa_tutorial.distributed.group import hash_of
from pa_tutorial.distributed.heads import (
    LocalConfig,
    allowed_num_ranks,
    heads_of,
    repeat_heads,
    require_num_ranks,
)
from pa_tutorial.engine.model import Llama

# (num_ranks, num_heads, num_kv_heads): all that divide, up to 12 heads.
SPLITS = [
    (n, num_heads, num_kv_heads)
    for num_heads in range(1, 13)
    for num_kv_heads in range(1, num_heads + 1)
    for n in range(1, num_heads + 1)
    if num_heads % num_kv_heads == 0
    and num_heads % n == 0
    and (num_kv_heads % n == 0 or n % num_kv_heads == 0)
]


@pytest.mark.parametrize(("num_ranks", "num_heads", "num_kv_heads"), SPLITS)
def test_a_query_head_has_its_kv_head_beside_it(num_ranks, num_heads, num_kv_heads) -> None:
    queries_per_kv = num_heads // num_kv_heads
    seen: list[int] = []
    for rank in range(num_ranks):
        heads, kv_heads = heads_of(rank, num_ranks, num_heads, num_kv_heads)
        seen += heads
        # To attention the rank is a whole model: its first heads share its first KV head.
        own_queries_per_kv = len(heads) // len(kv_heads)
        assert len(heads) == own_queries_per_kv * len(kv_heads)
        for own_index, head in enumerate(heads):
            assert kv_heads[own_index // own_queries_per_kv] == head // queries_per_kv
    assert seen == list(range(num_heads)), "each head once, in order"


@pytest.mark.parametrize(("num_ranks", "num_heads", "num_kv_heads"), SPLITS)
def test_no_rank_has_a_kv_head_that_it_does_not_need(num_ranks, num_heads, num_kv_heads) -> None:
    for rank in range(num_ranks):
        heads, kv_heads = heads_of(rank, num_ranks, num_heads, num_kv_heads)
        assert set(kv_heads) == {head * num_kv_heads // num_heads for head in heads}


def small_model(num_heads: int, num_kv_heads: int, mlp_size: int) -> Llama:
    sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "mlp_size": mlp_size}
    return Llama(type(LLAMA)(**(vars(LLAMA) | sizes | {"num_layers": 1})))


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "mlp_size", "allowed"),
    [
        (8, 4, 96, [1, 2, 4, 8]),
        (8, 4, 12, [1, 2, 4]),  # 8 ranks cannot share 12 numbers between the halves of the MLP
        (6, 2, 96, [1, 2, 6]),  # 3 ranks and 2 KV heads: one head would be cut in two
        (6, 3, 96, [1, 3, 6]),
        (12, 4, 96, [1, 2, 4, 12]),
        (6, 6, 96, [1, 2, 3, 6]),
        (6, 1, 96, [1, 2, 3, 6]),
        (3, 1, 97, [1]),
        (1, 1, 96, [1]),
    ],
)
def test_exactly_these_numbers_of_ranks_are_allowed(
    num_heads, num_kv_heads, mlp_size, allowed
) -> None:
    model = small_model(num_heads, num_kv_heads, mlp_size)
    assert allowed_num_ranks(model) == allowed
    for num_ranks in range(-1, num_heads + 3):
        if num_ranks in allowed:
            require_num_ranks(model, num_ranks)
            continue
        with pytest.raises(ValueError, match="must be one of") as refused:
            require_num_ranks(model, num_ranks, "--tensor-parallel")
        choice = ", ".join(map(str, allowed))
        assert str(refused.value) == (
            f"--tensor-parallel is {num_ranks}; it must be one of {choice}: "
            f"the model has {num_heads} query heads and {num_kv_heads} KV heads"
        )


def test_layers_of_tiny_lm_count_too() -> None:
    """Its MLP is a multiple of its width: with heads of 1 number, as wide as it has heads."""
    config = TinyConfig(num_layers=1, num_heads=6, num_kv_heads=3, head_size=1, mlp_ratio=1)
    assert allowed_num_ranks(TinyLM(config)) == [1, 3, 6]


def test_a_rank_sees_its_own_heads_and_the_other_sizes_of_the_model() -> None:
    whole = CONFIGS["llama"]
    config = LocalConfig(whole, rank=3, num_ranks=4)
    assert (config.heads, config.kv_heads) == (range(6, 8), range(3, 4))
    assert (config.num_heads, config.num_kv_heads) == (2, 1)
    for name in ("num_layers", "head_size", "vocab_size", "max_len", "scale", "eos_tokens"):
        assert getattr(config, name) == getattr(whole, name), name
    with pytest.raises(AttributeError):
        _ = config.no_such_size


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_slopes_of_alibi_are_those_of_the_own_heads(num_ranks) -> None:
    whole = CONFIGS["alibi"]
    parts = [LocalConfig(whole, rank, num_ranks).alibi_slopes() for rank in range(num_ranks)]
    assert torch.equal(torch.cat(parts), whole.alibi_slopes())
    assert {len(part) for part in parts} == {4 // num_ranks}


def test_repeated_kv_heads_stand_side_by_side_with_their_biases() -> None:
    config = CONFIGS["biased"]  # 2 KV heads of 16 numbers
    layer = nn.Linear(3, 32).requires_grad_(False)
    weight, bias = layer.weight.clone(), layer.bias.clone()
    repeat_heads(layer, config, 8)
    assert layer.out_features == len(layer.weight) == len(layer.bias) == 128
    for head in range(8):
        own, old = slice(16 * head, 16 * head + 16), slice(16 * (head // 4), 16 * (head // 4) + 16)
        assert torch.equal(layer.weight[own], weight[old])
        assert torch.equal(layer.bias[own], bias[old])


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_enough_kv_heads_are_not_repeated(num_ranks) -> None:
    layer = nn.Linear(3, 32).requires_grad_(False)
    weight = layer.weight
    repeat_heads(layer, CONFIGS["biased"], num_ranks)
    assert layer.weight is weight
    assert layer.out_features == 32


def test_an_unknown_layer_is_refused_and_no_layer_is_changed(ranks_of) -> None:
    """Such a layer would stay whole, and multiply a part by all."""
    for message, changed in ranks_of(2).run(refuse_unknown_layer):
        assert message == ("layer is layers.0.mlp_extra; it must be one that heads.py can cut")
        assert changed == []


def test_each_rank_keeps_only_its_part_of_a_layer(ranks_of) -> None:
    """Rows of the first layers, columns of the next: compared with slices of the whole."""
    parts = ranks_of(2).run(weights_of, "biased")
    whole = dict(new_model("biased").named_parameters())
    for rank, part in enumerate(parts):
        for name, weight in part.items():
            last = name.split(".")[-2]
            expected = whole[name]
            if last in ("o_proj", "down_proj"):
                expected = expected.chunk(2, dim=-1)[rank] if expected.dim() == 2 else None
            elif last.endswith("_proj") or last == "lm_head":
                expected = expected.chunk(2, dim=0)[rank]
            assert expected is not None, f"{name}: inside the layer, it would be added twice"
            assert torch.equal(weight, expected), name


# 4 ranks: TinyLM has 2 KV heads, so two ranks have the same one.
@pytest.mark.parametrize(
    ("num_ranks", "name"),
    [
        (4, "tiny"),
        (2, "biased"),
        (2, "alibi"),
        (2, "qwen2"),
        (4, "biased"),
    ],
)
def test_scores_of_every_step_are_those_of_one_device(ranks_of, num_ranks, name) -> None:
    """Prefill in chunks and decode, all in float64; every rank gets all scores.

    A bias that every rank adds, a head beside the wrong KV head or a slope of another head is off
    by far more.
    """
    expected = score_all(None, name)
    assert len(expected) > 10
    for rank, steps in enumerate(ranks_of(num_ranks).run(score_all, name)):
        assert len(steps) == len(expected)
        for step, (scores, whole) in enumerate(zip(steps, expected, strict=True)):
            assert scores.dtype == torch.float64
            assert scores.shape == whole.shape
            error = (scores - whole).abs()
            assert (error < 1e-12 * whole.abs().clamp(min=1)).all(), f"rank {rank}, step {step}"


# "biased" too: with a bias in a sum over ranks, torch would send weights instead of parts.
@pytest.mark.parametrize(
    ("num_ranks", "name"),
    [
        (2, "biased"),
        (4, "tiny"),
        (2, "llama"),
        (2, "qwen2"),
    ],
)
def test_a_step_sends_one_sum_of_the_heads_and_one_of_the_mlp(ranks_of, num_ranks, name) -> None:
    config = new_model(name).config
    steps_of_ranks = ranks_of(num_ranks).run(count_collectives, name)
    own_scores = -(-config.vocab_size // num_ranks)  # padded
    for (num_tokens, num_rows), collectives in steps_of_ranks[0]:
        sent = {name: [] for name in ("broadcast", "all_reduce", "all_gather")}
        for collective in collectives:
            sent[collective.name].append(collective.num_bytes)
        assert sent["all_reduce"] == [num_tokens * config.hidden_size * 8] * 2 * config.num_layers
        # A hash of each field of the batch; then each rank's part of the scores.
        assert sent["all_gather"] == [10 * 8, num_rows * own_scores * 8]
        assert len(sent["broadcast"]) == 2, "the length of a message, and the message"
        assert sent["broadcast"][0] == 8
    found = [[collectives for _, collectives in steps] for steps in steps_of_ranks]
    assert all(of_rank == found[0] for of_rank in found), "the same on every rank"
    assert len(found[0]) == 40


def test_what_a_step_sends_does_not_grow_with_the_context(ranks_of) -> None:
    """Only the block tables do: 4 bytes for each sequence and 16 tokens."""
    steps = ranks_of(2).run(count_collectives, "llama")[0]
    decodes = [found for (num_tokens, _), found in steps if num_tokens == 2]
    assert len(decodes) > 35
    joined = [[c for c in found if c.name != "broadcast"] for found in decodes]
    assert all(found == joined[0] for found in joined)
    tables = [sum(c.num_bytes for c in found if c.name == "broadcast") for found in decodes]
    assert tables[-1] - tables[0] <= 4 * 2 * 3 + 16, "3 blocks more, of 2 sequences"


def test_a_number_without_dimensions_has_a_hash() -> None:
    """A model may have such a parameter, and all parameters are compared."""
    assert hash_of(torch.tensor(1.0)) not in (hash_of(torch.tensor(2.0)), hash_of(torch.ones(1)))


def test_a_column_of_a_matrix_has_the_hash_of_its_copy() -> None:
    matrix = torch.arange(6).reshape(2, 3)
    assert hash_of(matrix[:, 1]) == hash_of(matrix[:, 1].clone())


def test_a_hash_knows_the_type_and_the_shape_of_a_tensor() -> None:
    """All these have the same bytes."""
    zeros = [torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32)]
    assert len(set(map(hash_of, zeros))) == 3


def test_a_hash_has_8_bytes() -> None:
    """Of 10,000 facts, no two the same: of 4 bytes or less some would be, sooner or later."""
    hashes = set(map(hash_of, range(10_000)))
    assert len(hashes) == 10_000
    assert max(hashes) > 2**61
    assert min(hashes) < -(2**61)
