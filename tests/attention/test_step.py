"""A DecodeStep is checked when it is made: what doesn't fit together is refused, by name."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pa_tutorial.attention.paged import flatten_queries
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.paging.layouts import LAYOUTS

# 3 sequences, 4 heads, 2 KV heads of size 16, blocks of 4, tables 5 wide, a pool of 12 blocks.
PROBLEM = DecodeProblem(
    "refused", seq_lens=(13, 5, 8), num_kv_heads=2, head_size=16, block_size=4, alibi=True
)


def with_item(place: object, value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed[place] = value
        return changed

    return change


REFUSED = [  # the field, how it is changed, a piece of the message
    ("q", lambda q: q[0], r"q has shape \[4, 16\]"),
    ("q", lambda q: q[:, :3], "num_kv_heads is 2; .* num_heads, which is 3"),
    ("q", lambda q: q[..., :8], "^k_cache has head_size 16; it must be 8"),
    ("v_cache", lambda v: v[:-1], "v_cache is"),
    ("v_cache", lambda v: v.half(), "v_cache is .*float16; .*float32"),
    ("block_tables", lambda t: t[:, :3], r"seq_lens\[0\] is 13; it must be 1 to 12"),
    ("block_tables", with_item((1, 1), 12), r"block_tables\[1\] names block 12; .* 0 to 11"),
    ("block_tables", with_item((2, 0), -1), r"block_tables\[2\] names block -1"),
    ("seq_lens", lambda n: n[:2], r"seq_lens has shape \[2\]; it must be \[3\]"),
    ("seq_lens", with_item(1, 0), r"seq_lens\[1\] is 0; it must be 1 to 20"),
    ("seq_lens", with_item(0, 21), r"seq_lens\[0\] is 21; it must be 1 to 20"),
    ("alibi_slopes", lambda s: s[:2], r"alibi_slopes has shape \[2\]; .* be \[4\]"),
    ("alibi_slopes", with_item(2, float("nan")), r"alibi_slopes\[2\] is nan"),
    ("alibi_slopes", lambda s: s.double() * 1e39, r"alibi_slopes\[0\] is .* a float32"),
    ("scale", lambda _: 1e39, "^scale is"),
    # PyTorch makes one of the imaginary part of a conjugate; its memory holds -x for x
    ("q", lambda q: torch._neg_view(-q), "q is a view .* q.resolve_neg"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "change", "message"), REFUSED, ids=[one[2] for one in REFUSED])
def test_fields_that_do_not_fit_are_refused(
    layout: str, name: str, change: Callable[[Tensor], Tensor], message: str
) -> None:
    step = PROBLEM.paged(layout)
    with pytest.raises(ValueError, match=message):
        replace(step, **{name: change(getattr(step, name))})


def with_stride(tensor: Tensor, axis: int) -> Tensor:
    """An empty tensor of this shape, with twice the stride on one axis."""
    strides = [stride * (1 + (place == axis)) for place, stride in enumerate(tensor.stride())]
    return torch.empty_strided(tensor.shape, strides)


@pytest.mark.parametrize(("layout", "k_dims"), [("vllm", 3), ("plain", 2)])
@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache"])
def test_another_stride_on_any_one_axis_is_refused(layout: str, k_dims: int, name: str) -> None:
    """Only that of the sequences is free; k_dims is how many dimensions of K a head's block has."""
    step = PROBLEM.paged(layout)
    tensor, dims = getattr(step, name), k_dims if name == "k_cache" else 2
    for axis in range(name == "q", tensor.dim()):
        of_a_block = axis >= tensor.dim() - dims
        place = rf"{name}.stride\(\)\[-{dims}:\]" if of_a_block else r"v_cache.stride\(\)\[:2\]"
        with pytest.raises(ValueError, match=rf"{place} is .*; it must be "):
            replace(step, **{name: with_stride(tensor, axis)}).require_strides(k_dims, 2)


@pytest.mark.parametrize("names", [("q",), ("k_cache", "v_cache")])
def test_sequences_may_have_gaps_and_k_and_v_the_same_ones(names: tuple[str, ...]) -> None:
    step = PROBLEM.paged("plain")
    changed = {name: with_stride(getattr(step, name), 0) for name in names}
    replace(step, **changed).require_strides(2, 2)


def test_max_seq_len_is_from_the_longest_sequence_to_the_room_of_a_table() -> None:
    step = PROBLEM.paged("plain")
    assert [step.longest(given) for given in (None, 13, 20)] == [13, 13, 20]
    for given in (12, 21):
        with pytest.raises(ValueError, match=f"max_seq_len is {given}; it must be 13 to 20"):
            step.longest(given)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("block_tables", lambda tables: tables[:2], r"seq_lens.shape is"),
        ("query_lens", lambda lens: lens[:2], r"query_lens.shape is"),
        ("query_lens", with_item(1, 0), r"query_lens\[1\] is 0; it must be 1 to 5"),
        ("query_lens", with_item(1, 6), r"query_lens\[1\] is 6; it must be 1 to 5"),
    ],
)
def test_flattened_queries_need_one_row_or_number_per_sequence(
    name: str, change: Callable[[Tensor], Tensor], message: str
) -> None:
    step = PROBLEM.paged("plain")
    given = {"block_tables": step.block_tables, "seq_lens": step.seq_lens}
    given |= {"query_lens": torch.tensor([13, 5, 2])}
    tables, lens = flatten_queries(**given)
    assert lens.tolist() == [*range(1, 14), *range(1, 6), 7, 8]
    assert torch.equal(tables, step.block_tables[[0] * 13 + [1] * 5 + [2, 2]])
    with pytest.raises(ValueError, match=message):
        flatten_queries(**given | {name: change(given[name])})
