"""Attention over a paged cache, gathered or block by block: every layout, refusals, and cost."""

from collections.abc import Callable

import pytest
import torch

from pa_tutorial.attention.paged import paged_gather, paged_online
from pa_tutorial.attention.work import TensorsMade
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.paging.layouts import DTYPES, LAYOUTS

EACH_STAGE = pytest.mark.parametrize("stage", [paged_gather, paged_online])


def problem(**changes: object) -> DecodeProblem:
    sizes = {"seq_lens": (13, 5, 8), "num_kv_heads": 2, "head_size": 16, "block_size": 4}
    return DecodeProblem("name", "isolates", "meaning", **(sizes | changes))


@EACH_STAGE
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("changes", [{}, {"num_kv_heads": 1}, {"alibi": True, "scores": "sharp"}])
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


# What block by block saves


def test_no_tensor_grows_with_the_length_of_the_sequences() -> None:
    largest = {}
    for length in (100, 400):
        inputs = vars(problem(seq_lens=(length, length // 2), head_size=64).paged("plain"))
        for stage in (paged_online, paged_gather):
            with TensorsMade() as made:
                stage(**inputs)
            largest[stage, length] = max(made.sizes)
    assert largest[paged_online, 400] == largest[paged_online, 100]
    assert largest[paged_gather, 400] == 4 * largest[paged_gather, 100]


def test_unneeded_columns_of_the_table_are_not_read() -> None:
    read = []
    for pad_columns in (1, 9):
        inputs = problem(pad_columns=pad_columns).paged("plain")
        with TensorsMade(inputs.k_cache, inputs.v_cache) as made:
            paged_online(**vars(inputs))
        read.append(made.bytes_read)
    assert read[0] == read[1] == 3 * 4 * 2 * (2 * 4 * 16 * 4)  # sequences, blocks, K and V, bytes


def test_what_is_read_through_a_view_counts() -> None:
    cache = torch.zeros(5, 4, 8)
    with TensorsMade(cache) as made:
        torch.ones(1, 8) @ cache[3].float().mT  # a view: nothing is copied
        cache[torch.tensor([1, 2])].sum()
    assert made.bytes_read == 3 * 4 * 8 * 4
