"""The attention functions by themselves: bad input, and a cache that is full."""

import pytest
import torch

from pa_tutorial.attention.cached import KVCache, cached_attention
from pa_tutorial.attention.full import causal_attention, unmasked_attention


def qkv(q=(5, 4, 8), k=(5, 2, 8), v=(5, 2, 8)) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in (q, k, v)]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"q": (5, 8)}, r"q has shape \[5, 8\]"),
        ({"v": (5, 2, 4)}, r"v has shape \[5, 2, 4\]"),
        ({"q": (6, 4, 8)}, "q holds 6 tokens; it must hold 1 to 5"),
        ({"q": (0, 4, 8)}, "q holds 0 tokens"),
        ({"q": (5, 4, 4)}, "k has head_size 8; it must be 4"),
        ({"k": (5, 3, 8), "v": (5, 3, 8)}, "num_kv_heads is 3; .* 4"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes, message) -> None:
    with pytest.raises(ValueError, match=message):
        cached_attention(*qkv(**shapes), 1.0)


def test_a_query_missing_in_causal_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="q holds 3 tokens; it must hold all 5"):
        causal_attention(*qkv(q=(3, 4, 8)), 1.0)


def test_unmasked_attention_agrees_with_the_last_row_only() -> None:
    q, k, v = qkv()
    full, unmasked = causal_attention(q, k, v, 0.3), unmasked_attention(q, k, v, 0.3)
    assert torch.allclose(full[-1], unmasked[-1], atol=1e-6)
    assert not torch.allclose(full[:-1], unmasked[:-1], atol=1e-2)
    with pytest.raises(ValueError, match="alibi_slopes is given"):
        unmasked_attention(q, k, v, 0.3, torch.ones(4))


ONE = torch.zeros(1, 2, 8)


@pytest.mark.parametrize(
    ("k", "v", "message"),
    [
        (torch.zeros(2, 2, 8), torch.zeros(2, 2, 8), r"len\(k\) is 2; .* 1 more"),
        (torch.zeros(1, 3, 8), ONE, r"k has shape \[1, 3, 8\]; it must be \[1, 2, 8\]"),
        (ONE, torch.zeros(2, 2, 8), r"v has shape \[2, 2, 8\]; it must be \[1, 2, 8\]"),
        (ONE, ONE.half(), "v is torch.float16"),
    ],
)
def test_a_refused_append_changes_nothing(k, v, message) -> None:
    cache = KVCache(4, 2, 8)
    cache.append(torch.ones(3, 2, 8), torch.ones(3, 2, 8))
    with pytest.raises(ValueError, match=message):
        cache.append(k, v)
    assert cache.seq_len == 3
    assert cache.num_bytes == 2 * 3 * 2 * 8 * 4
    for tokens in (cache._keys, cache._values):
        assert (tokens[:3] == 1).all()
        assert tokens[3:].isnan().all()
