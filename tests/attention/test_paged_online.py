"""Block by block: either layout is read, and no sequence is gathered."""

from collections.abc import Callable

import pytest
import torch

from pa_tutorial.attention.paged import paged_gather, paged_online
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.attention.work import TensorsMade
from pa_tutorial.checks.comparing import bounds_of, relative_errors, to_float64
from pa_tutorial.paging.layouts import LAYOUTS
from pa_tutorial.walk.cases import DECODE_CASES
from pa_tutorial.walk.problem import DecodeProblem

EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)
EACH_CASE = pytest.mark.parametrize("case", DECODE_CASES, ids=lambda case: case.name)


def problem(**changes: object) -> DecodeProblem:
    sizes = {"seq_lens": (13, 5, 8), "num_kv_heads": 2, "head_size": 16, "block_size": 4}
    return DecodeProblem("name", "isolates", "meaning", **(sizes | changes))


@pytest.mark.paged_online
@EACH_CASE
@EACH_LAYOUT
def test_either_layout_is_read(case, layout) -> None:
    out = to_float64(paged_online(**vars(case.paged(layout))))
    assert relative_errors(out, case.expected()["out"]).max() <= bounds_of(case.id)["out"]


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


def test_tensors_made_counts_what_is_new_and_what_was_read() -> None:
    cache = torch.zeros(8, 4)  # 128 bytes
    with TensorsMade(cache) as made:
        part = cache[2:4]  # a view: nothing is made
        copy = part + 1  # 32 bytes, read from the cache
        copy.add_(1)  # in place
        torch.ones(5, dtype=torch.float16)  # 10 bytes, not from the cache
    assert made.sizes == [32, 10]
    assert made.bytes_read == 32
