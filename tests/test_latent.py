"""Attention over a latent cache: expanded and absorbed are the same, contiguous or in blocks."""

import pytest
import torch
from torch import Tensor

from pa_tutorial.attention.cache_bytes import (
    DEEPSEEK_V3,
    DEEPSEEK_V3_EXPANDED,
    LLAMA_3_1_70B,
    MODELS,
    CachedLatent,
    bytes_per_layer,
    intensity,
    tokens_in,
)
from pa_tutorial.attention.latent import (
    absorb,
    attend_absorbed,
    attend_expanded,
    expand,
    paged_latent,
)
from pa_tutorial.attention.paged import paged_gather
from pa_tutorial.attention.work import attention_flops_and_bytes, count_flops
from pa_tutorial.distributed.paper import kv_bytes_per_token
from pa_tutorial.distributed.sizes import LLAMA_2_7B, LLAMA_3_1_8B
from pa_tutorial.distributed.sizes import LLAMA_3_1_70B as SIZES_OF_70B
from pa_tutorial.engine.rope import DEFAULT_ROPE, rotate
from pa_tutorial.paging.latent_cache import latent_cache, write_rows
from pa_tutorial.paging.layouts import slot_mapping

HEADS, NOPE, ROPE, LATENT, VALUE = 4, 12, 8, 24, 10
SCALE = (NOPE + ROPE) ** -0.5


def drawn(seq_len: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)

    def numbers(*size: int) -> Tensor:
        return torch.randn(size, generator=random, dtype=dtype)

    return {
        "q": numbers(1, HEADS, NOPE + ROPE),
        "rows": numbers(seq_len, LATENT + ROPE),
        "w_k": numbers(HEADS, NOPE, LATENT) * LATENT**-0.5,
        "w_v": numbers(HEADS, VALUE, LATENT) * LATENT**-0.5,
    }


def by_definition(q: Tensor, rows: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    """Head by head and token by token, from the formulas at the top of latent.py."""
    out = torch.zeros(HEADS, VALUE, dtype=torch.float64)
    for head in range(HEADS):
        scores, values = [], []
        for row in rows:
            k = torch.cat([w_k[head] @ row[:LATENT], row[LATENT:]])
            scores.append(SCALE * (q[0, head] @ k))
            values.append(w_v[head] @ row[:LATENT])
        out[head] = torch.stack(scores).softmax(dim=0) @ torch.stack(values)
    return out[None]


@pytest.mark.parametrize("attend", [attend_expanded, attend_absorbed])
@pytest.mark.parametrize("seq_len", [1, 2, 17])
def test_both_ways_are_the_definition(attend, seq_len: int) -> None:
    inputs = drawn(seq_len)
    torch.testing.assert_close(
        attend(**inputs, scale=SCALE), by_definition(**inputs), rtol=1e-12, atol=1e-12
    )


def test_keys_of_all_heads_end_with_the_same_piece() -> None:
    inputs = drawn(5)
    k, v = expand(inputs["rows"], inputs["w_k"], inputs["w_v"])
    assert list(k.shape) == [5, HEADS, NOPE + ROPE]
    assert list(v.shape) == [5, HEADS, VALUE]
    assert (k[:, :, NOPE:] == inputs["rows"][:, None, LATENT:]).all()


def test_a_turned_latent_cannot_be_absorbed() -> None:
    """RoPE on the whole key would stand between q and w_k: so it has a piece of its own."""
    inputs = drawn(6)
    k, _ = expand(inputs["rows"], inputs["w_k"], inputs["w_v"])
    cos, sin = (part.double() for part in DEFAULT_ROPE.cos_and_sin(torch.arange(6), NOPE))
    turned = rotate(k[:, :, :NOPE], cos, sin)
    scores = torch.einsum("hn,thn->ht", inputs["q"][0, :, :NOPE], turned)
    absorbed = absorb(inputs["q"], inputs["w_k"])[0, :, :LATENT] @ inputs["rows"][:, :LATENT].T
    assert torch.allclose(scores[:, 0], absorbed[:, 0])  # position 0 is not turned
    assert not torch.allclose(scores[:, 1:], absorbed[:, 1:], rtol=0.05)


def test_of_two_turned_pieces_only_the_distance_counts() -> None:
    """The example of notebook 18: 3 and 10 are as far apart as 40 and 47."""
    key, query = torch.randn(2, 1, 1, ROPE, generator=torch.Generator().manual_seed(3)).double()

    def score(key_at: int, query_at: int) -> Tensor:
        cos, sin = DEFAULT_ROPE.cos_and_sin(torch.tensor([key_at, query_at]), ROPE)
        turned = rotate(torch.cat([key, query]), cos.double(), sin.double())
        return turned[0, 0] @ turned[1, 0]

    assert torch.isclose(score(3, 10), score(40, 47), rtol=1e-4)
    assert not torch.isclose(score(3, 10), score(3, 11), rtol=0.05)


# In blocks


def in_blocks(lens: tuple[int, ...], block_size: int = 8) -> tuple[dict[str, Tensor], list[dict]]:
    """A latent cache with sequences in shuffled blocks, and each of them alone."""
    alone = [drawn(seq_len, seed, torch.float32) for seed, seq_len in enumerate(lens)]
    counts = [-(-seq_len // block_size) for seq_len in lens]
    cache = latent_cache(sum(counts) + 2, block_size, LATENT + ROPE)
    random = torch.Generator().manual_seed(3)
    free = (torch.randperm(sum(counts) + 1, generator=random) + 1).tolist()
    block_tables = torch.zeros(len(lens), max(counts), dtype=torch.int32)
    for sequence, (count, own) in enumerate(zip(counts, alone, strict=True)):
        table = [free.pop() for _ in range(count)]
        block_tables[sequence, :count] = torch.tensor(table)
        slots = slot_mapping(table, torch.arange(len(own["rows"])), block_size)
        write_rows(own["rows"], cache, slots)
    inputs = {
        "q": torch.cat([own["q"] for own in alone]),
        "cache": cache,
        "block_tables": block_tables,
        "seq_lens": torch.tensor(lens, dtype=torch.int32),
        "w_k": alone[0]["w_k"],
        "w_v": alone[0]["w_v"],
    }
    return inputs, [{**own, "w_k": alone[0]["w_k"], "w_v": alone[0]["w_v"]} for own in alone]


@pytest.mark.parametrize("lens", [(1,), (8,), (13, 1, 30)])
def test_blocks_hold_latents_as_they_hold_k_and_v(lens: tuple[int, ...]) -> None:
    inputs, alone = in_blocks(lens)
    expected = torch.cat([attend_expanded(**own, scale=SCALE) for own in alone])
    for attend in ({}, {"attend": paged_gather}):
        found = paged_latent(**inputs, scale=SCALE, **attend)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_wrong_block_table_gives_another_output() -> None:
    inputs, _ = in_blocks((13, 16))
    right = paged_latent(**inputs, scale=SCALE)
    inputs["block_tables"] = inputs["block_tables"].flip(0)
    assert not torch.allclose(paged_latent(**inputs, scale=SCALE)[1], right[1], rtol=1e-2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"w_v": torch.zeros(HEADS, VALUE, LATENT - 1)}, r"w_v.shape is \[4, 10, 23\]; it must be"),
        ({"q": torch.zeros(1, HEADS, NOPE)}, r"q.shape is \[1, 4, 12\]; it must be \[1, 4, 20\]"),
        ({"rows": torch.zeros(3, LATENT - 2)}, r"rows of the cache is 22; it must be at least"),
        ({"w_k": torch.zeros(NOPE, LATENT)}, r"w_k.shape is \[12, 24\]; it must be 3 sizes"),
    ],
)
def test_sizes_that_do_not_fit_are_named(changed: dict, message: str) -> None:
    inputs = {**drawn(3, dtype=torch.float32), **changed}
    with pytest.raises(ValueError, match=message):
        attend_absorbed(**inputs, scale=SCALE)


# What is kept, and what it costs


def test_bytes_are_those_of_the_sizes_of_notebook_17() -> None:
    for model, sizes in zip(MODELS[:3], (LLAMA_2_7B, LLAMA_3_1_8B, SIZES_OF_70B), strict=True):
        assert model.num_layers * bytes_per_layer(model) == kv_bytes_per_token(sizes)


def test_a_latent_row_is_512_and_64_numbers() -> None:
    assert bytes_per_layer(DEEPSEEK_V3) == 2 * (512 + 64)
    assert bytes_per_layer(DEEPSEEK_V3_EXPANDED) == 2 * 128 * (128 + 64 + 128)
    assert round(bytes_per_layer(DEEPSEEK_V3_EXPANDED) / bytes_per_layer(DEEPSEEK_V3)) == 71
    cache = latent_cache(3, 16, DEEPSEEK_V3.numbers, torch.float16)
    assert cache.nbytes == 3 * 16 * bytes_per_layer(DEEPSEEK_V3)


def test_tokens_fill_the_memory() -> None:
    assert tokens_in(1e9, DEEPSEEK_V3) == 1e9 // (61 * 1152)
    assert tokens_in(1e9, DEEPSEEK_V3, bytes_per_number=1) == 1e9 // (61 * 576)
    with pytest.raises(ValueError, match="memory is -1; it must be at least 0 bytes"):
        tokens_in(-1, DEEPSEEK_V3)


def test_intensity_is_operations_over_bytes_of_a_run() -> None:
    model = LLAMA_3_1_70B
    sizes = (1, 4096, model.num_heads, model.num_kv_heads, model.key_size)
    flops, num_bytes = attention_flops_and_bytes(*sizes)
    assert flops / num_bytes == pytest.approx(intensity(model), rel=0.01)


@pytest.mark.parametrize("seq_len", [50, 500])
def test_operations_of_the_absorbed_way_are_counted_by_torch(seq_len: int) -> None:
    inputs = drawn(seq_len)
    flops = count_flops(lambda: attend_absorbed(**inputs, scale=SCALE))
    once = 2 * HEADS * LATENT * (NOPE + VALUE)
    assert flops == once + seq_len * CachedLatent("", 1, HEADS, LATENT, ROPE).operations
