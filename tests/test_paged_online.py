"""Block by block: K and V of the newest token beside the cache, and no sequence gathered."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial.attention.paged import paged_gather, paged_online, paged_online_beside
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.attention.work import TensorsMade
from pa_tutorial.checks.comparing import bounds_of, relative_errors, to_float64
from pa_tutorial.paging.layouts import LAYOUTS
from pa_tutorial.walk.cases import DECODE_CASES
from pa_tutorial.walk.decode_inputs import beside
from pa_tutorial.walk.problem import DecodeProblem

EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)
EACH_CASE = pytest.mark.parametrize("case", DECODE_CASES, ids=lambda case: case.name)


def problem(**changes: object) -> DecodeProblem:
    sizes = {"seq_lens": (13, 5, 8), "num_kv_heads": 2, "head_size": 16, "block_size": 4}
    return DecodeProblem("name", "isolates", "meaning", **(sizes | changes))


def errors_of(out: Tensor, case: DecodeProblem) -> np.ndarray:
    return relative_errors(to_float64(out), case.expected()["out"])


@pytest.mark.paged_online
@EACH_CASE
@EACH_LAYOUT
def test_both_forms_are_equal(case, layout) -> None:
    inputs = case.paged(layout)
    arguments = beside(inputs)
    for name in ("k_cache", "v_cache"):  # the newest slots hold NaN again
        lost = arguments[name].isnan() & ~getattr(inputs, name).isnan()
        assert int(lost.sum()) == len(case.seq_lens) * case.num_kv_heads * case.head_size
    out = paged_online_beside(**arguments)
    bound = bounds_of(case.id)["out"]
    assert out.dtype == inputs.q.dtype
    assert errors_of(out, case).max() <= bound
    in_cache = to_float64(paged_online(**vars(inputs)))
    assert relative_errors(to_float64(out), in_cache).max() <= bound


def test_the_first_token_of_a_sequence_has_an_empty_cache() -> None:
    case = problem(seq_lens=(1, 5, 1))
    arguments = beside(case.paged("plain"))
    assert arguments["context_lens"].tolist() == [0, 4, 0]
    assert errors_of(paged_online_beside(**arguments), case).max() < 1e-6
    alone = problem(seq_lens=(1, 1))
    arguments = beside(alone.paged("plain"))
    arguments["block_tables"] = arguments["block_tables"][:, :0]  # a table without a column
    assert errors_of(paged_online_beside(**arguments), alone).max() < 1e-6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"k_new": torch.zeros(3, 4, 16)},
            r"k_new has shape \[3, 4, 16\]; it must be \[3, 2, 16\]",
        ),
        ({"v_new": torch.zeros(2, 2, 16)}, r"v_new has shape \[2, 2, 16\]"),
        ({"k_new": torch.zeros(3, 2, 8)}, r"k_new has shape \[3, 2, 8\]"),
        (
            {"context_lens": torch.tensor([12, -1, 7], dtype=torch.int32)},
            r"context_lens\[1\] is -1; it must be 0 to 20",
        ),
        (
            {"v_new": torch.zeros(3, 2, 16).half()},
            "v_new is torch.float16; it must be torch.float32",
        ),
    ],
)
def test_what_does_not_fit_beside_the_cache_is_refused(changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        paged_online_beside(**(beside(problem().paged("plain")) | changes))


# Attention that never gathers


def largest_tensor_made(attend: Callable, inputs: DecodeStep) -> int:
    with TensorsMade() as made:
        attend(**vars(inputs))
    return max(made.sizes)


@EACH_LAYOUT
def test_no_tensor_grows_with_the_length_of_the_sequences(layout) -> None:
    short, long = (problem(seq_lens=(n, n // 2), head_size=64).paged(layout) for n in (400, 1600))
    assert largest_tensor_made(paged_online, long) == largest_tensor_made(paged_online, short)
    assert largest_tensor_made(paged_gather, long) == 4 * largest_tensor_made(paged_gather, short)


def test_columns_that_no_sequence_needs_are_not_read() -> None:
    read = []
    for pad_columns in (1, 9):
        inputs = problem(pad_columns=pad_columns).paged("plain")
        with TensorsMade(inputs.k_cache, inputs.v_cache) as made:
            paged_online(**vars(inputs))
        read.append(made.bytes_read)
    assert read[0] == read[1] == 3 * 4 * 2 * (2 * 4 * 16 * 4)  # sequences, blocks, K and V, bytes


def test_q_may_have_another_type_than_the_new_token() -> None:
    inputs = problem().paged("plain")
    q = inputs.q.bfloat16()
    out = paged_online_beside(**(beside(inputs) | {"q": q}))
    in_cache = paged_online(**(vars(inputs) | {"q": q}))
    assert out.dtype == torch.bfloat16
    assert relative_errors(to_float64(out), to_float64(in_cache)).max() < 8e-3


def test_tensors_made_counts_what_is_new_and_what_was_read() -> None:
    cache = torch.zeros(8, 4)  # 128 bytes
    with TensorsMade(cache) as made:
        part = cache[2:4]  # a view: nothing is made
        copy = part + 1  # 32 bytes, read from the cache
        copy.add_(1)  # in place
        torch.ones(5, dtype=torch.float16)  # 10 bytes, not from the cache
    assert made.sizes == [32, 10]
    assert made.bytes_read == 32
