"""Attention by itself and over a paged cache: refusals, a full cache, both layouts, and cost."""

from collections.abc import Callable

import pytest
import torch

from pa_tutorial.attention.cached import KVCache, cached_attention
from pa_tutorial.attention.full import causal_attention
from pa_tutorial.attention.paged import paged_gather, paged_online
from pa_tutorial.attention.work import TensorsMade
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.paging.layouts import DTYPES, LAYOUTS

EACH_STAGE = pytest.mark.parametrize("stage", [paged_gather, paged_online])


def qkv(q=(5, 4, 8), k=(5, 2, 8), v=(5, 2, 8)) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in (q, k, v)]


@pytest.mark.parametrize(
    ("attend", "shapes", "message"),
    [
        (cached_attention, {"q": (5, 8)}, r"q has shape \[5, 8\]"),
        (cached_attention, {"v": (5, 2, 4)}, r"v has shape \[5, 2, 4\]"),
        (cached_attention, {"q": (6, 4, 8)}, "q holds 6 tokens; it must hold 1 to 5"),
        (cached_attention, {"q": (5, 4, 4)}, "k has head_size 8; it must be 4"),
        (cached_attention, {"k": (5, 3, 8), "v": (5, 3, 8)}, "num_kv_heads is 3; .* 4"),
        (causal_attention, {"q": (3, 4, 8)}, "q holds 3 tokens; it must hold all 5"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(attend: Callable, shapes, message) -> None:
    with pytest.raises(ValueError, match=message):
        attend(*qkv(**shapes), 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": torch.zeros(2, 2, 8), "v": torch.zeros(2, 2, 8)}, r"len\(k\) is 2; .* 1 more"),
        ({"k": torch.zeros(1, 3, 8)}, r"k has shape \[1, 3, 8\]; it must be \[1, 2, 8\]"),
        ({"v": torch.zeros(2, 2, 8)}, r"v has shape \[2, 2, 8\]; it must be \[1, 2, 8\]"),
    ],
)
def test_a_refused_append_changes_nothing(changes, message) -> None:
    cache, one = KVCache(4, 2, 8), torch.zeros(1, 2, 8)
    cache.append(torch.ones(3, 2, 8), torch.ones(3, 2, 8))
    with pytest.raises(ValueError, match=message):
        cache.append(**{"k": one, "v": one} | changes)
    assert cache.seq_len == 3
    for tokens in (cache._keys, cache._values):
        assert (tokens[:3] == 1).all()
        assert tokens[3:].isnan().all()


def problem(**changes: object) -> DecodeProblem:
    sizes = {"seq_lens": (13, 5, 8), "num_kv_heads": 2, "head_size": 16, "block_size": 4}
    return DecodeProblem("name", "isolates", "meaning", **(sizes | changes))


@EACH_STAGE
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("changes", [{"num_kv_heads": 1}, {"alibi": True, "scores": "sharp"}])
def test_both_layouts_give_the_same_bits(stage: Callable, dtype, changes) -> None:
    case = problem(dtype=dtype, **changes)
    vllm, plain = (stage(**vars(case.paged(layout))) for layout in LAYOUTS)
    assert vllm.isfinite().all()
    assert torch.equal(vllm, plain)


@EACH_STAGE
def test_q_may_have_another_type_than_the_cache(stage: Callable) -> None:
    inputs = vars(problem(dtype=torch.float16).paged("plain"))
    out = stage(**inputs | {"q": inputs["q"].float()})
    assert out.dtype == torch.float32
    assert torch.allclose(out, stage(**inputs).float(), atol=2e-3)


def test_no_tensor_of_block_by_block_grows_with_the_length_of_the_sequences() -> None:
    largest = {}
    for length in (40, 80):
        inputs = vars(problem(seq_lens=(length, length // 2), head_size=64).paged("plain"))
        for stage in (paged_online, paged_gather):
            with TensorsMade() as made:
                stage(**inputs)
            largest[stage, length] = max(made.sizes)
    assert largest[paged_online, 80] == largest[paged_online, 40]
    assert largest[paged_gather, 80] == 2 * largest[paged_gather, 40]


def test_unneeded_columns_of_the_table_are_not_read() -> None:
    for pad_columns in (1, 9):
        inputs = problem(pad_columns=pad_columns).paged("plain")
        with TensorsMade(inputs.k_cache, inputs.v_cache) as made:
            paged_online(**vars(inputs))
        # blocks of 13, 5 and 8 tokens, rounded up to those of the longest; K and V; bytes
        assert made.bytes_read == 3 * 4 * 2 * (2 * 4 * 16 * 4)
