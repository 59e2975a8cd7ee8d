"""What the kernels refuse of a step, before anything runs. (What a DecodeStep itself refuses,
tests/attention/test_step.py has.)"""

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from pa_tutorial.checks.ladder import PAGED, backend_named
from pa_tutorial.kernels import cuda_launch
from pa_tutorial.kernels.cpu.backend import paged_attention_cpu
from pa_tutorial.kernels.triton.backend import TritonCall
from tests.kernels.kernel_inputs import (
    apart,
    half,
    prepare,
    prepare_cpu,
    prepare_triton,
    problem,
    step,
    wide,
)


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error comes before any kernel."""
    monkeypatch.delattr(TritonCall, "run")
    monkeypatch.delattr(cuda_launch, "launch")


# Who refuses, the argument, how it is changed, a piece of the message. The step has 2 sequences of
# 20 and 9 tokens, 4 heads, 2 KV heads of size 32, blocks of 16 tokens.
REFUSED = (
    ("cuda_v1", "q", half, "q.dtype is .*16; .*float32, as the c"),
    ("cuda_v1", "q", wide, r"q.stride\(\)\[-2:\] is \(64, 2\); .*\(32, 1\)"),
    (
        "cuda_v1",
        "k_cache",
        lambda k: k.reshape(6, 2, 4, 16, 8),
        r"shape\[4\] is 8; .* x = 4",
    ),
    ("cuda_v1", "k_cache", wide, r"k_cache.stride\(\)\[-3:\] is \(128, 8, 2\)"),
    ("cuda_v1", "v_cache", wide, r"v_cache.stride\(\)\[-2:\] is \(32, 2\)"),
    ("cuda_v1", "v_cache", apart, r"v_cache.stride\(\)\[:2\] .*in k_cache"),
    ("cpu", "q", half, "q.dtype is torch.float16; .*float32, as the c"),
    ("triton", "q", wide, r"q.stride\(\)\[-2:\] is .*without gaps"),
    ("cpu", "v_cache", apart, r"v_cache.stride\(\)\[-4:\] is .*; it must be .*without gaps"),
    ("cpu", "k_cache", apart, r"k_cache.stride\(\)\[-4:\] is .*; it must be .*without gaps"),
    ("triton", "k_cache", wide, r"k_cache.stride\(\)\[-2:\] is .*without gaps"),
    ("triton", "v_cache", wide, r"v_cache.stride\(\)\[-2:\] is .*without gaps"),
    ("triton", "v_cache", apart, r"v_cache.stride\(\)\[:2\] is .*as in k_cache"),
    ("triton", "block_tables", wide, r"block_tables.stride\(\)\[-1:\] is \(2,\)"),
    ("triton", "seq_lens", wide, r"seq_lens.stride\(\)\[-1:\] is \(2,\); it must be \(1,\)"),
)


@pytest.mark.parametrize(
    ("backend", "name", "change", "message"),
    [pytest.param(*one, marks=getattr(pytest.mark, one[0])) for one in REFUSED],
)
def test_what_a_kernel_cannot_take_is_refused(
    backend: str, name: str, change: Callable, message: str
) -> None:
    arguments = vars(problem(alibi=True).paged(backend_named(backend).layout))
    with pytest.raises((TypeError, ValueError), match=message):
        prepare(backend, **arguments | {name: change(arguments[name])})


@pytest.mark.parametrize("name", ["cuda_naive", "cuda_v1", "cuda_v2", "triton"])
def test_more_sequences_than_a_grid_has_room_for_are_refused(name: str) -> None:
    one = problem(seq_lens=(1,), num_heads=1, num_kv_heads=1).paged(backend_named(name).layout)
    rows = {field: getattr(one, field) for field in ("q", "block_tables", "seq_lens")}
    many = {field: row.repeat_interleave(2**16, 0) for field, row in rows.items()}
    with pytest.raises(ValueError, match=r"len\(q\) is 65536; it must be at most 65535: axis y"):
        prepare(name, **vars(replace(one, **many)))


@pytest.mark.cpu
def test_the_cpu_kernel_refuses_other_dtypes_blocks_and_no_shares() -> None:
    with pytest.raises(ValueError, match=r"k_cache.shape\[2\] is 4; it must be one of \(8, 16, 32"):
        paged_attention_cpu(**step(block_size=4))
    with pytest.raises(ValueError, match="num_shares is 0; it must be at least 1"):
        prepare_cpu(**step(), num_shares=0)
    double = {name: step()[name].double() for name in ("q", "k_cache", "v_cache")}
    with pytest.raises(ValueError, match="float64; it must be one of"):
        paged_attention_cpu(**step() | double)


@pytest.mark.parametrize("name", [name for name in PAGED if "paged" not in name])
def test_a_cache_in_the_other_layout_is_refused(name: str) -> None:
    backend = backend_named(name)
    other, wanted = "plain", "5 dimensions: vLLM's layout"
    if backend.layout == "plain":
        other, wanted = "vllm", "4 dimensions: the plain layout"
    with pytest.raises(ValueError, match=rf"k_cache.shape is .*; it must be of {wanted}"):
        backend.prepare(problem().paged(other))


SIZES = {
    "partition_size": (0, 2**30 + 1, sys.maxsize),
    "tile_size": (8, 0, 17, 48, 2048),
    "num_warps": (3, 0, 64),
    "num_stages": (0,),
    "max_seq_len": (19, 33, 0),
}


@pytest.mark.triton
@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_cannot_be_is_refused(name: str) -> None:
    for value in SIZES[name]:
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be "):
            prepare_triton(**step(), **{name: value})


@pytest.mark.triton
def test_more_partitions_than_a_grid_has_room_for_are_refused() -> None:
    one = step(seq_lens=(3,), head_size=8)
    wide = torch.zeros(1, 2**13 + 1, dtype=torch.int32)
    long = one | {"block_tables": wide, "seq_lens": torch.tensor([2**16], dtype=torch.int32)}
    message = "partition_size is 1; it must be at least 2: a grid has room for 65,535 partitions"
    with pytest.raises(ValueError, match=message):
        prepare_triton(**long, partition_size=1)
    assert prepare_triton(**long, partition_size=2).partitions.grid[2] == 2**15
