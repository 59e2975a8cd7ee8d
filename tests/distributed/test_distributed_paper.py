"""Decode time on paper: against tensors that are counted and rings that are walked."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pa_tutorial.distributed.paper import (
    attention_time,
    best_split,
    bytes_on_the_wire,
    collectives,
    decode_time,
    head_splits,
    kv_bytes_per_token,
    matrix_numbers,
    num_users,
    splits,
    weight_bytes,
)
from pa_tutorial.distributed.sizes import (
    H100,
    INFINIBAND_NDR,
    LLAMA_2_7B,
    LLAMA_2_70B,
    LLAMA_3_1_8B,
    LLAMA_3_1_70B,
    NVLINK_4,
    Device,
    Link,
    ModelSizes,
)
from pa_tutorial.engine.model import Llama, LlamaConfig

# 8 query heads, 4 KV heads; every size differs from every other, so that none can stand in.
SMALL = ModelSizes("small", 3, 8, 4, 5, 24, 56, 80, bytes_per_number=2)
LARGE_MODELS = (LLAMA_3_1_8B, LLAMA_3_1_70B, LLAMA_2_7B)
ODD_DEVICE = Device("odd", bandwidth=7.0, memory=1e9, flops=11.0)
ODD_LINK = Link("odd", bandwidth=13.0, latency=0.25)


# Bytes and operations: tensor by tensor ---------------------------------------------------------


def heads_of(model: ModelSizes, heads: int, rank: int) -> tuple[list[int], list[int]]:
    """The query heads of one rank, and the KV heads that they need."""
    query = [h for h in range(model.num_heads) if h * heads // model.num_heads == rank]
    group = model.num_heads // model.num_kv_heads
    return query, sorted({h // group for h in query})


def matrices(model: ModelSizes, heads: int, rank: int) -> Iterator[tuple[int, int]]:
    """Rows and columns of every matrix that a rank multiplies with."""
    query, kv = heads_of(model, heads, rank)
    hidden, mlp = model.hidden_size, len(range(rank, model.mlp_size, heads))
    for _ in range(model.num_layers):
        yield len(query) * model.head_size, hidden  # q
        yield len(kv) * model.head_size, hidden  # k
        yield len(kv) * model.head_size, hidden  # v
        yield hidden, len(query) * model.head_size  # out
        yield mlp, hidden  # gate
        yield mlp, hidden  # up
        yield hidden, mlp  # down
    yield len(range(rank, model.vocab_size, heads)), hidden


SPLITS_OF_SMALL = [(heads, rank) for heads in (1, 2, 4, 8) for rank in range(heads)]


@pytest.mark.parametrize(("heads", "rank"), SPLITS_OF_SMALL)
def test_weights_of_every_rank_are_counted_matrix_by_matrix(heads: int, rank: int) -> None:
    numbers = sum(rows * columns for rows, columns in matrices(SMALL, heads, rank))
    norms = (SMALL.num_layers * 2 + 1) * SMALL.hidden_size
    embedding = SMALL.vocab_size * SMALL.hidden_size
    assert matrix_numbers(SMALL, heads) == numbers
    assert weight_bytes(SMALL, heads) == 2 * (numbers + norms + embedding)


@pytest.mark.parametrize(("heads", "rank"), SPLITS_OF_SMALL)
def test_a_rank_holds_the_kv_heads_that_its_query_heads_need(heads: int, rank: int) -> None:
    _, kv = heads_of(SMALL, heads, rank)
    one_head = 2 * SMALL.head_size * SMALL.bytes_per_number  # K and V
    assert kv_bytes_per_token(SMALL, heads) == SMALL.num_layers * len(kv) * one_head


def test_one_device_holds_what_the_engines_model_holds() -> None:
    sizes = (SMALL.num_layers, SMALL.num_heads, SMALL.num_kv_heads, 6, 24, 56, 80)
    model = Llama(LlamaConfig(*sizes, max_len=16))
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert weight_bytes(replace(SMALL, head_size=6)) == 2 * numbers


@pytest.mark.parametrize(
    ("model", "numbers"),
    [
        (LLAMA_3_1_8B, 8_030_261_248),
        (LLAMA_3_1_70B, 70_553_706_496),
        (LLAMA_2_7B, 6_738_415_616),
        (LLAMA_2_70B, 68_976_648_192),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_named_models_have_the_published_number_of_parameters(
    model: ModelSizes, numbers: int
) -> None:
    assert weight_bytes(model) == 2 * numbers


@pytest.mark.parametrize(("heads", "contexts"), [(1, 1), (2, 3), (8, 1), (1, 4)])
def test_bytes_and_operations_of_a_step_are_those_that_are_enumerated(
    heads: int, contexts: int
) -> None:
    batch, context = 5, 12
    query, kv = heads_of(SMALL, heads, 0)
    norms = (2 * SMALL.num_layers + 1) * SMALL.hidden_size
    weights = sum(rows * columns for rows, columns in matrices(SMALL, heads, 0))
    read = 2 * (weights + norms + batch * SMALL.hidden_size)
    flops, kv_bytes = 2 * batch * weights, 0
    for _layer in range(SMALL.num_layers):
        for _sequence in range(batch):
            for _token in range(0, context, contexts):  # those of one of the ranks
                kv_bytes += 2 * len(kv) * SMALL.head_size * 2
                flops += len(query) * 2 * SMALL.head_size  # q . k
                flops += len(query) * 2 * SMALL.head_size  # weight * v
    times = decode_time(SMALL, ODD_DEVICE, ODD_LINK, batch, context, heads, contexts)
    assert times.weights == pytest.approx(read / 7)
    assert times.kv == pytest.approx(kv_bytes / 7)
    assert times.computing == pytest.approx(flops / 11)
    assert times.total == pytest.approx(max(times.reading, times.computing) + times.talking)
    attention = attention_time(SMALL, ODD_DEVICE, batch, context, heads, contexts)
    assert attention.total == pytest.approx(
        max(kv_bytes / 7, flops / 11 - 2 * batch * weights / 11)
    )


# Communication: rings that are walked -----------------------------------------------------------


def walk_ring(n: int, size: int, passes: int) -> tuple[list[list[int]], int, int]:
    """An all-reduce (2 passes) or all-gather (1) of n * size numbers over n ranks.

    returns  what each rank has in the end; hops; how many numbers each rank sent
    """
    reduces = passes == 2
    start = [[100 * rank + i for i in range(n * size)] for rank in range(n)]
    if not reduces:  # each rank has its own chunk only
        start = [[x if i // size == rank else 0 for i, x in enumerate(start[rank])]
                 for rank in range(n)]  # fmt: skip
    held = [[row[i * size : (i + 1) * size] for i in range(n)] for row in start]
    hops = sent = 0
    for phase in ("add", "copy") if reduces else ("copy",):
        first = 1 if reduces and phase == "copy" else 0
        for hop in range(n - 1):
            chunks = [(rank + first - hop) % n for rank in range(n)]
            moving = [list(held[rank][chunks[rank]]) for rank in range(n)]
            for rank in range(n):
                to, chunk = (rank + 1) % n, chunks[rank]
                here = held[to][chunk]
                added = [a + b for a, b in zip(here, moving[rank], strict=True)]
                held[to][chunk] = added if phase == "add" else moving[rank]
            hops, sent = hops + 1, sent + size
    expected = [sum(column) for column in zip(*start, strict=True)]
    ends = [[x for chunk in row for x in chunk] for row in held]
    assert all(end == expected for end in ends), "the ring itself is wrong"
    return ends, hops, sent


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_ring_sends_as_many_bytes_in_as_many_hops_as_when_it_is_walked(n: int, passes: int) -> None:
    _, hops, sent = walk_ring(n, size=3, passes=passes)
    template = next(c for c in collectives(SMALL, 1) if c.passes == passes)
    ring = replace(template, num_bytes=4 * 3 * n, devices=n)
    assert ring.hops == hops
    assert ring.bytes_sent == pytest.approx(4 * sent)
    assert ring.seconds(ODD_LINK) == pytest.approx(4 * sent / 13 + 0.25 * hops)


@pytest.mark.parametrize(("heads", "contexts"), [(1, 1), (2, 1), (8, 1), (1, 4), (2, 3)])
def test_everything_that_a_step_sends_is_counted_layer_by_layer(heads: int, contexts: int) -> None:
    batch, sent, hops = 5, 0.0, 0
    query, _ = heads_of(SMALL, heads, 0)

    def all_reduce(numbers: int, itemsize: int, n: int) -> None:
        nonlocal sent, hops
        sent += 2 * (n - 1) * numbers * itemsize / n
        hops += 2 * (n - 1)

    for _layer in range(SMALL.num_layers):
        all_reduce(batch * len(query), 4, contexts)  # the largest score of each head
        all_reduce(batch * len(query), 4, contexts)  # its sum,
        hops -= 2 * (contexts - 1)  # in one message with
        all_reduce(batch * len(query) * SMALL.head_size, 4, contexts)  # its output
        all_reduce(batch * SMALL.hidden_size, 2, heads)  # after the output projection
        all_reduce(batch * SMALL.hidden_size, 2, heads)  # after the MLP
    sent += (heads - 1) * batch * (SMALL.vocab_size // heads) * 2  # others' shares of the scores
    hops += heads - 1
    assert bytes_on_the_wire(SMALL, batch, heads, contexts) == pytest.approx(sent)
    times = decode_time(SMALL, ODD_DEVICE, ODD_LINK, batch, 9, heads, contexts)
    assert times.talking == pytest.approx(sent / 13 + 0.25 * hops)


def test_one_device_never_talks() -> None:
    assert bytes_on_the_wire(LLAMA_3_1_70B, 64) == 0
    assert decode_time(LLAMA_3_1_70B, H100, ODD_LINK, 64, 1000).talking == 0


def test_dividing_contexts_sends_as_much_for_a_short_context_as_for_a_long_one() -> None:
    talking = {
        decode_time(LLAMA_3_1_8B, H100, NVLINK_4, 4, context, contexts=8).talking
        for context in (16, 2**20)
    }
    assert len(talking) == 1
    assert talking != {0}


# How time falls, and where it stops -------------------------------------------------------------


@pytest.mark.parametrize("model", LARGE_MODELS, ids=lambda model: model.name)
def test_dividing_heads_stops_dividing_kv_at_the_number_of_kv_heads(model: ModelSizes) -> None:
    times = {n: attention_time(model, H100, 1, 8192, heads=n).kv for n in head_splits(model)}
    for n, seconds in times.items():
        assert seconds == pytest.approx(times[1] / min(n, model.num_kv_heads))


def test_dividing_contexts_divides_kv_and_no_weights() -> None:
    one, many = (decode_time(LLAMA_3_1_70B, H100, NVLINK_4, 8, 2**17, contexts=n) for n in (1, 64))
    assert many.kv == pytest.approx(one.kv / 64)
    assert many.weights == one.weights


@pytest.mark.parametrize("link", [NVLINK_4, INFINIBAND_NDR], ids=lambda link: link.name)
@pytest.mark.parametrize("model", LARGE_MODELS, ids=lambda model: model.name)
def test_heads_stop_paying_where_latency_and_the_rest_of_the_reading_meet(
    model: ModelSizes, link: Link
) -> None:
    """W / n + c (n - 1) is smallest at sqrt(W / c): at the power of 2 that is nearest to it."""
    context = 1024
    times = {n: decode_time(model, H100, link, 1, context, heads=n) for n in head_splits(model)}
    best = min(times, key=lambda n: times[n].total)
    hop = 2 * 2 * model.num_layers * link.latency
    smallest = (times[1].reading / hop) ** 0.5
    assert smallest / 2 < best < smallest * 2


def test_heads_of_70b_pay_up_to_16_devices_on_nvlink_and_up_to_8_on_infiniband() -> None:
    for link, expected in ((NVLINK_4, 16), (INFINIBAND_NDR, 8)):
        times = {
            n: decode_time(LLAMA_3_1_70B, H100, link, 1, 2048, heads=n).total
            for n in head_splits(LLAMA_3_1_70B)
        }
        assert min(times, key=times.__getitem__) == expected


@pytest.mark.parametrize(
    ("batch", "context", "expected"),
    [(1, 2048, (16, 1)), (8, 8192, (16, 1)), (8, 32_768, (8, 2)), (1, 2**20, (8, 2))],
)
def test_contexts_of_70b_are_divided_once_the_batch_holds_enough_tokens(
    batch: int, context: int, expected: tuple[int, int]
) -> None:
    assert best_split(LLAMA_3_1_70B, H100, NVLINK_4, batch, context, 16) == expected


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_what_counts_is_the_tokens_of_the_batch_not_whose_they_are(batch: int) -> None:
    """With 16 devices, contexts are divided from about 195,000 tokens on."""
    for tokens, expected in ((190_000, (16, 1)), (200_000, (8, 2))):
        split = best_split(LLAMA_3_1_70B, H100, NVLINK_4, batch, tokens // batch, 16)
        assert split == expected


def test_best_split_is_the_fastest_of_all_that_fit() -> None:
    for num_devices in (1, 2, 3, 8, 12, 64):
        times = {}
        for heads in range(1, 65):
            contexts, rest = divmod(num_devices, heads)
            if rest or heads not in (1, 2, 4, 8, 16, 32, 64):
                continue
            if num_users(LLAMA_3_1_70B, H100, 2**15, 0, heads, contexts) >= 8:
                split = heads, contexts
                times[split] = decode_time(LLAMA_3_1_70B, H100, NVLINK_4, 8, 2**15, *split).total
        expected = min(times, key=times.__getitem__) if times else None
        assert best_split(LLAMA_3_1_70B, H100, NVLINK_4, 8, 2**15, num_devices) == expected


def test_a_split_that_does_not_fit_is_not_the_best() -> None:
    assert best_split(LLAMA_3_1_70B, H100, NVLINK_4, 1, 1024, 1) is None  # not even the weights
    assert best_split(LLAMA_3_1_70B, H100, NVLINK_4, 1, 1024, 2) == (2, 1)
    assert best_split(LLAMA_3_1_70B, H100, NVLINK_4, 1, 2**20, 2) is None  # not K and V


# Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [0, 3, 6, 16, -1])
def test_unequal_shares_of_heads_are_refused_with_those_that_are_equal(heads: int) -> None:
    with pytest.raises(ValueError, match=rf"heads is {heads}; .*one of \[1, 2, 4, 8\] for small"):
        decode_time(SMALL, H100, NVLINK_4, 1, 1, heads)


@pytest.mark.parametrize("odd", ["mlp_size", "vocab_size"])
def test_shares_of_mlp_and_vocabulary_are_equal_too(odd: str) -> None:
    assert head_splits(replace(SMALL, **{odd: 4})) == [1, 2, 4]


def test_kv_heads_are_divided_or_repeated_evenly() -> None:
    model = replace(SMALL, num_heads=12, num_kv_heads=6, mlp_size=12, vocab_size=12)
    assert head_splits(model) == [1, 2, 3, 6, 12]  # with 4, some would have two KV heads


@pytest.mark.parametrize("name", ["batch", "context", "contexts"])
def test_sizes_below_one_are_refused(name: str) -> None:
    sizes = {"batch": 1, "context": 1, name: 0}
    with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
        decode_time(SMALL, H100, NVLINK_4, **sizes)
    if name != "contexts":
        with pytest.raises(ValueError, match=f"{name} is 0"):
            best_split(SMALL, H100, NVLINK_4, **sizes, num_devices=1)


def test_no_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="num_devices is 0"):
        splits(SMALL, 0)


@pytest.mark.parametrize("shared", [-1, 8, 9])
def test_a_prefix_as_long_as_the_sequence_is_refused(shared: int) -> None:
    with pytest.raises(ValueError, match=f"shared_tokens is {shared}; it must be 0 to 7"):
        num_users(SMALL, H100, 8, shared)


def test_a_block_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size is 0"):
        num_users(SMALL, H100, 8, block_size=0)
