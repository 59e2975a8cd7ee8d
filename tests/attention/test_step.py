"""A DecodeStep is checked when it is made: what doesn't fit together is refused, by name."""

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial.attention.paged import flatten_queries, paged_gather, paged_online
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.checks.problem import DecodeProblem
from pa_tutorial.kernels import launch
from pa_tutorial.kernels.cpu.backend import paged_attention_cpu
from pa_tutorial.kernels.triton.backend import paged_attention_triton
from pa_tutorial.paging.layouts import LAYOUTS

# 3 sequences, 4 heads, 2 KV heads of size 16, blocks of 4, tables 5 wide, a pool of 12 blocks.
PROBLEM = DecodeProblem(
    "refused", seq_lens=(13, 5, 8), num_kv_heads=2, head_size=16, block_size=4, alibi=True
)
TENSORS = ("q", "k_cache", "v_cache", "block_tables", "seq_lens", "alibi_slopes")


def with_item(place: object, value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed[place] = value
        return changed

    return change


REFUSED = [  # the field, how it is changed, a piece of the message
    ("q", lambda q: q[0], r"q has shape \[4, 16\]; it must have 3 dimensions"),
    ("q", lambda q: q[:2], r"block_tables has shape \[3, 5\]; .* each of the 2 sequences in q"),
    ("q", lambda q: q[:, :3], "num_kv_heads is 2; it must be a divisor of num_heads, which is 3"),
    ("q", lambda q: q[..., :8], "^k_cache has head_size 16; it must be 8, as in q"),
    ("k_cache", lambda k: k[0, 0], "k_cache has shape"),
    ("v_cache", lambda v: v[:-1], "v_cache is .*; with this k_cache it must be"),
    ("v_cache", lambda v: v.half(), "v_cache is .*float16; .*float32"),
    ("block_tables", lambda t: t[:2], r"block_tables has shape \[2, 5\]; .* the 3 sequences"),
    ("block_tables", lambda t: t[:, :0], r"block_tables has shape \[3, 0\]; every size must"),
    ("block_tables", lambda t: t.long(), "block_tables is torch.int64; it must be torch.int32"),
    ("block_tables", lambda t: t[:, :3], r"seq_lens\[0\] is 13; it must be 1 to 12"),
    ("block_tables", with_item((1, 1), 99), r"block_tables\[1\] names block 99; .* 0 to"),
    ("block_tables", with_item((2, 0), -1), r"block_tables\[2\] names block -1"),
    ("seq_lens", lambda n: n[:2], r"seq_lens has shape \[2\]; it must be \[3\]"),
    ("seq_lens", lambda n: n.long(), "seq_lens is torch.int64; it must be torch.int32"),
    ("seq_lens", with_item(1, 0), r"seq_lens\[1\] is 0; it must be 1 to 20"),
    ("seq_lens", with_item(0, 21), r"seq_lens\[0\] is 21; it must be 1 to 20"),
    ("alibi_slopes", lambda s: s[:2], r"alibi_slopes has shape \[2\]; .* be \[4\]"),
    ("alibi_slopes", lambda s: s.int(), "alibi_slopes.dtype is torch.int32; "),
    ("alibi_slopes", with_item(2, float("nan")), r"alibi_slopes\[2\] is nan; it must be finite"),
    ("alibi_slopes", lambda s: s.double() * 1e39, r"alibi_slopes\[0\] is .*finite, as a float32"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "change", "message"), REFUSED, ids=[one[2] for one in REFUSED])
def test_fields_that_do_not_fit_are_refused(
    layout: str, name: str, change: Callable[[Tensor], Tensor], message: str
) -> None:
    step = PROBLEM.paged(layout)
    with pytest.raises(ValueError, match=message):
        replace(step, **{name: change(getattr(step, name))})


@pytest.mark.parametrize("name", TENSORS)
def test_a_view_that_is_negated_when_read_is_refused(name: str) -> None:
    """PyTorch makes one of the imaginary part of a conjugate; its memory holds -x for x."""
    step = PROBLEM.paged("vllm")
    negated = torch._neg_view(-getattr(step, name))
    with pytest.raises(ValueError, match=rf"{name} is a view .* {name}.resolve_neg"):
        replace(step, **{name: negated})


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
        with pytest.raises(ValueError, match=rf"max_seq_len is {given}; it must be 13 to 20: "):
            step.longest(given)


@pytest.mark.parametrize("name", ["block_tables", "seq_lens", "query_lens"])
def test_flattened_queries_need_one_row_or_number_per_sequence(name: str) -> None:
    step = PROBLEM.paged("plain")
    given = {"block_tables": step.block_tables, "seq_lens": step.seq_lens}
    given |= {"query_lens": torch.tensor([13, 1, 2])}
    tables, lens = flatten_queries(**given)
    assert lens.tolist() == [*range(1, 14), 5, 7, 8]
    assert torch.equal(tables, step.block_tables[[0] * 13 + [1, 2, 2]])
    bad = [
        (given[name][:2], rf"{'seq_lens' if name == 'block_tables' else name}.shape is "),
        (given[name][None], rf"{name}.shape is "),
        (given[name].float(), rf"{name}.dtype is torch.float32; it must be torch.int32 or"),
    ]
    for tensor, message in bad:
        with pytest.raises(ValueError, match=message):
            flatten_queries(**given | {name: tensor})
    for wrong in (0, 6):
        with pytest.raises(ValueError, match=rf"query_lens\[1\] is {wrong}; it must be 1 to 5"):
            flatten_queries(**given | {"query_lens": torch.tensor([13, wrong, 2])})


def test_a_scale_that_is_no_float32_is_refused() -> None:
    step = PROBLEM.paged("plain")
    for scale in (1e39, 10**400):
        with pytest.raises(ValueError, match=r"^scale is .*; it must be finite"):
            replace(step, scale=scale)
    with pytest.raises(TypeError, match=r"^scale is of type .*real"):
        replace(step, scale=np.complex64(1))


FUNCTIONS = [
    paged_gather,
    paged_online,
    launch.paged_attention_v1,
    launch.paged_attention_v1_vector,
    launch.paged_attention_v2,
    paged_attention_cpu,
    pytest.param(paged_attention_triton, marks=pytest.mark.triton),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_takes_the_fields_of_a_step_in_their_order(function: Callable) -> None:
    values = dict.fromkeys((field.name for field in fields(DecodeStep)), None)
    step = vars(PROBLEM.paged("vllm"))
    for name in values:
        wrong = [step[other] if other != name else object() for other in values]
        with pytest.raises(TypeError, match=f"^{name} is of type object"):
            function(*wrong)
