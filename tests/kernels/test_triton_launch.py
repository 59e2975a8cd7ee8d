"""What a launch of the Triton kernels refuses, before anything runs; and what it takes."""

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from triton_steps import draw, is_right, taken_out

from pa_tutorial.kernels.triton_launch import (
    TritonCall,
    paged_attention_triton,
    paged_attention_triton_beside,
    prepare_triton,
)
from pa_tutorial.walk.cases import CASES

pytestmark = pytest.mark.triton


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error comes before any kernel."""

    def run(call: TritonCall) -> None:
        pytest.fail(f"{call.kernel.__name__} was launched; the arguments must be refused before")

    monkeypatch.setattr(TritonCall, "run", run)


def with_item(place: tuple[int, ...], value: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.clone().index_put_(
        tuple(map(torch.tensor, place)), torch.tensor(value, dtype=tensor.dtype)
    )


def spread(tensor: Tensor) -> Tensor:
    """The same numbers with a gap behind each."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def swapped(tensor: Tensor) -> Tensor:
    """The same numbers, stored with the last two dimensions in the other order."""
    return tensor.mT.contiguous().mT


def apart(tensor: Tensor) -> Tensor:
    """The same numbers with a gap behind each block."""
    return torch.cat([tensor, tensor], dim=1)[:, : tensor.shape[1]]


# (argument, how it is changed, a piece of the message). The step has 2 sequences of 20 and 9
# tokens, 4 heads, 2 KV heads of size 16, 6 blocks of 8 tokens, tables 4 wide.
REFUSED: dict[str, tuple[str, Callable[[Tensor], object], str]] = {
    "q_without_heads": ("q", lambda q: q[:, 0], r"q has shape \[2, 16\]; it must have 3 dim"),
    "no_sequence": ("q", lambda q: q[:0], r"q has shape \[0, 4, 16\]; every size must be at least"),
    "heads": ("q", lambda q: q[:, :3].contiguous(), "num_kv_heads is 2; .* divi.* 3"),
    "head_size": ("q", lambda q: q[..., :8].contiguous(), "head_size 16; .* q, 8"),
    "q_of_double": ("q", lambda q: q.double(), "q.dtype is torch.float64; .* one of torch.float32"),
    "q_of_half": ("q", lambda q: q.half(), "k_cache.dtype is torch.float32; .*float16, as q"),
    "q_spread": ("q", spread, r"q.stride\(\)\[-2:\] is .*without gaps"),
    "q_swapped": ("q", swapped, r"q.stride\(\)\[-2:\] is .*without gaps"),
    "q_on_meta": ("q", lambda q: q.to("meta"), "q.device is meta; it must be cpu or cuda"),
    "k_on_meta": ("k_cache", lambda k: k.to("meta"), "k_cache.device is meta; it must be"),
    "vllm_layout": ("k_cache", lambda k: k[..., None], "k_cache.shape is .*4 dimensions: the plai"),
    "k_of_a_block": ("k_cache", lambda k: k[0], r"k_cache.shape is \[2, 8, 16\]; .*4 dimensions"),
    "k_of_half": ("k_cache", lambda k: k.half(), "float16"),
    "k_swapped": ("k_cache", swapped, r"k_cache.stride\(\)\[-2:\] is .*without gaps"),
    "k_spread": ("k_cache", spread, r"k_cache.stride\(\)\[-2:\] is .*without gaps"),
    "v_swapped": ("v_cache", swapped, r"v_cache.stride\(\)\[-2:\] is .*without gaps"),
    "v_apart": ("v_cache", apart, r"v_cache.stride\(\)\[:2\] is .*as those of k_cache"),
    "v_of_fewer_blocks": ("v_cache", lambda v: v[:-1], r"v_cache is \[5, .*it must be \[6, "),
    "v_of_half": ("v_cache", lambda v: v.half(), "v_cache is .*float16; .*float32"),
    "long_tables": ("block_tables", lambda t: t.long(), "block_tables is torch.int64; .*int32"),
    "tables_of_a_row": ("block_tables", lambda t: t[:1], r"block_tables has shape \[1, 4\]; .* 2 "),
    "tables_spread": ("block_tables", spread, r"block_tables.stride\(\)\[-1:\] is \(2,\)"),
    "tables_cut": (
        "block_tables",
        lambda t: t[:, :2],
        r"seq_lens\[0\] is 20; it must be 1 to 16, the tokens for which its block table has room",
    ),
    "block_outside": (
        "block_tables",
        with_item((1, 1), 6),
        r"block_tables\[1\] names block 6; it must be 0 to 5",
    ),
    "negative_block": ("block_tables", with_item((0, 0), -1), r"block_tables\[0\] names block -1"),
    "long_lengths": ("seq_lens", lambda n: n.long(), "seq_lens is torch.int64; .*torch.int32"),
    "lengths_of_three": ("seq_lens", lambda n: n[[0, 1, 1]], r"seq_lens has shape \[3\]; .*\[2\]"),
    "lengths_spread": ("seq_lens", spread, r"seq_lens.stride\(\)\[-1:\] is \(2,\)"),
    "no_token": ("seq_lens", with_item((1,), 0), r"seq_lens\[1\] is 0; it must be 1 to 32"),
    "slope_of_infinity": (
        "alibi_slopes",
        with_item((3,), torch.inf),
        r"alibi_slopes\[3\] is inf; it must be finite",
    ),
    "slopes_of_int": ("alibi_slopes", lambda s: s.int(), "alibi_slopes.dtype is torch.int32; .*of"),
    "slopes_of_kv_heads": ("alibi_slopes", lambda s: s[:2], r"alibi_slopes has shape \[2\]; .*4"),
    "scale_of_nan": ("scale", lambda s: torch.nan, "scale is nan; it must be finite"),
    "scale_too_large": ("scale", lambda s: 1e39, "scale is 1e.39; it must be finite"),
}


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("what", REFUSED)
def test_what_the_kernels_cannot_take_is_refused(what: str) -> None:
    name, change, message = REFUSED[what]
    arguments = draw(alibi=True)
    arguments[name] = change(arguments[name])
    with pytest.raises(ValueError, match=message):
        paged_attention_triton(**arguments)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "block_tables", "seq_lens"])
def test_what_is_no_tensor_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} is of type list; it must be a torch.Tensor"):
        paged_attention_triton(**draw() | {name: [1.0]})


SIZES = {
    "partition_size": ((0, -1, 2**30 + 1, sys.maxsize), (True, 16.0, "16", None)),
    "tile_size": ((8, 0, -16, 17, 48, 2048), (True, 16.0, "16")),
    "num_warps": ((3, 0, -4, 64), (True, 4.0, "4", None)),
    "num_stages": ((0, -1), (True, 3.0, None)),
    "max_seq_len": ((19, 33, 0), (True, 20.0)),
}


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_cannot_be_is_refused(name: str) -> None:
    values, of_other_types = SIZES[name]
    for value in values:
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be "):
            prepare_triton(**draw(), **{name: value})
    for value in of_other_types:
        kind = type(value).__name__
        with pytest.raises(TypeError, match=f"{name} is of type {kind}; it must be an int"):
            prepare_triton(**draw(), **{name: value})


@pytest.mark.usefixtures("nothing_runs")
def test_more_partitions_or_sequences_than_a_grid_has_room_for() -> None:
    one = draw(seq_lens=(3,), num_heads=1, num_kv_heads=1, head_size=1)
    wide = torch.zeros(1, 2**13 + 1, dtype=torch.int32)
    lens = torch.tensor([2**16], dtype=torch.int32)
    long = one | {"block_tables": wide, "seq_lens": lens}
    message = "partition_size is 1, which makes 65,536 partitions; there may be 65,535: axis z"
    with pytest.raises(ValueError, match=message):
        prepare_triton(**long, partition_size=1)
    assert prepare_triton(**long, partition_size=2).max_logits.shape[2] == 2**15
    names = "q", "block_tables", "seq_lens"
    many = one | {name: one[name].expand(2**16, *one[name].shape[1:]) for name in names}
    many["seq_lens"] = many["seq_lens"].contiguous()
    with pytest.raises(ValueError, match=r"len\(q\) is 65536; it must be at most 65535: axis y"):
        prepare_triton(**many)


BESIDE: dict[str, tuple[str, Callable[[Tensor], object], type[Exception], str]] = {
    "no_v": ("v_new", lambda v: None, TypeError, "v_new is of type NoneType; it must be a torch.T"),
    "no_k": ("k_new", lambda k: None, TypeError, "k_new is of type NoneType; it must be a torch.T"),
    "shape": ("k_new", lambda k: k[:1], ValueError, r"k_new.shape is \[1, 2, 16\]; .*\[2, 2, 16\]"),
    "heads": ("v_new", lambda v: v[:, :1], ValueError, r"v_new.shape is \[2, 1, 16\]; it must be"),
    "dtype": ("v_new", lambda v: v.half(), ValueError, "v_new.dtype is torch.float16; .*, as q"),
    "device": ("k_new", lambda k: k.to("meta"), ValueError, "k_new.device is meta; it must be cpu"),
    "strides": ("k_new", swapped, ValueError, r"k_new.stride\(\)\[-3:\] is .*without gaps"),
    "apart": ("v_new", apart, ValueError, r"v_new.stride\(\)\[-3:\] is .*without gaps"),
    "length": (
        "context_lens",
        with_item((0,), -1),
        ValueError,
        r"context_lens\[0\] is -1; it must be 0 to 32, the tokens",
    ),
    "lengths": ("context_lens", lambda n: n.long(), ValueError, "context_lens is torch.int64; "),
}


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("what", BESIDE)
def test_a_newest_token_that_does_not_fit_is_refused(what: str) -> None:
    name, change, error, message = BESIDE[what]
    arguments = taken_out(draw())
    arguments["context_lens"] = arguments.pop("seq_lens")
    arguments[name] = change(arguments[name])
    with pytest.raises(error, match=message):
        paged_attention_triton_beside(**arguments)


@pytest.mark.parametrize("beside", [False, True])
def test_there_is_no_backward_pass(beside: bool) -> None:
    arguments = draw(alibi=True)
    step = taken_out(arguments) if beside else dict(arguments)
    for name, value in step.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            step[name] = value.clone().requires_grad_()
    out = prepare_triton(**step).run()
    assert not out.requires_grad
    assert is_right(out, arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_slopes_of_any_float_are_taken(dtype: torch.dtype) -> None:
    arguments = draw(alibi=True)
    arguments["alibi_slopes"] = arguments["alibi_slopes"].to(dtype)
    assert is_right(paged_attention_triton(**arguments), arguments)


def test_a_whole_scale_is_taken() -> None:
    """A whole scale is no other kernel: it is a float32 like any."""
    arguments = draw() | {"scale": 1}
    prepared = prepare_triton(**arguments)
    assert type(prepared.partitions.arguments["scale"]) is float
    assert is_right(prepared.run(), arguments)


def test_a_longest_sequence_that_is_given_makes_the_partitions() -> None:
    """On a GPU nobody looks at the lengths; the partitions behind a sequence are not written."""
    arguments = draw()
    prepared = prepare_triton(**arguments, max_seq_len=32, partition_size=4)
    assert prepared.max_logits.shape == (2, 4, 8)
    assert is_right(prepared.run(), arguments)
    assert prepared.max_logits.isnan().sum(dim=2).tolist() == [[3] * 4, [5] * 4]


def test_the_probe_holds_what_the_partitions_come_to() -> None:
    problem = CASES["decode/gqa_alibi"]
    inputs = problem.paged("plain")
    probe: dict[str, Tensor] = {}
    tensors = inputs.q, inputs.k_cache, inputs.v_cache, inputs.block_tables, inputs.seq_lens
    out = paged_attention_triton(
        *tensors, inputs.scale, inputs.alibi_slopes, probe, partition_size=5
    )
    assert probe.keys() == {"qk_max", "exp_sum", "accs"}
    for name, value in probe.items():
        expected = torch.from_numpy(problem.expected()[name]).float()
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(probe["accs"], out)


# What a GPU would be asked for ------------------------------------------------------------------


def test_sizes_reach_the_kernels() -> None:
    arguments = draw(num_heads=6, num_kv_heads=2, head_size=80)
    sizes = {"tile_size": 32, "num_warps": 8, "num_stages": 5}
    prepared = prepare_triton(**arguments, **sizes)
    call = prepared.partitions
    assert (call.num_warps, call.num_stages, call.constants["TILE_SIZE"]) == (8, 5, 32)
    assert call.constants["NUM_QUERIES_PADDED"] == 4, "three query heads, and no more than needed"
    assert (
        call.constants["HEAD_SIZE_PADDED"] == prepared.reduce.constants["HEAD_SIZE_PADDED"] == 128
    )
    assert call.options["enable_fp_fusion"]


def test_without_any_context_there_is_a_grid_all_the_same() -> None:
    """A GPU refuses a grid with a 0 in it."""
    arguments = draw(seq_lens=(1, 1))
    arguments["seq_lens"] = torch.zeros(2, dtype=torch.int32)
    newest = {name: torch.zeros(2, 2, 16) for name in ("k_new", "v_new")}
    prepared = prepare_triton(**arguments, **newest)
    assert min(*prepared.partitions.grid, *prepared.reduce.grid) >= 1
