"""What a launch of the paged kernels refuses, before anything runs; and what it passes on."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pa_tutorial.kernels import cuda_launch, launch
from simt.launch_options import MAX_SHARED
from tests.kernels.kernel_inputs import (
    arguments,
    prepare_naive,
    prepare_v1,
    prepare_v2,
    problem,
    wide,
)

PREPARE = (prepare_naive, prepare_v1, prepare_v2)
by_prepare = pytest.mark.parametrize("prepare", PREPARE, ids=("naive", "v1", "v2"))
TENSORS = ("q", "k_cache", "v_cache", "block_tables", "seq_lens", "alibi_slopes")


def inputs(**changes: object) -> dict[str, object]:
    """Arguments of paged_attention_v1, with slopes."""
    return arguments(problem(alibi=True, **changes))


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error comes before the simulator would start."""
    monkeypatch.delattr(cuda_launch, "launch")


def refused(
    function: Callable, arguments: dict, message: str, error: type[Exception] = ValueError
) -> None:
    with pytest.raises(error, match=message):
        function(**arguments)


@pytest.mark.parametrize(
    ("partition_size", "message"),
    [
        (
            12,
            "partition_size is 12; it must be a multiple of block_size, which is 16; v1 has no",
        ),
        (0, "v1 has no partitions"),
        (65_536, r"^partition_size is 65536, which needs 262,\d+ bytes of shared memory"),
    ],
)
def test_partitions_that_cannot_be_are_refused(partition_size: int, message: str) -> None:
    refused(prepare_v2, inputs() | {"partition_size": partition_size}, message)


# Shared memory ----------------------------------------------------------------------------------


def of_length(seq_len: int) -> dict[str, object]:
    """One sequence; all its blocks are block 0."""
    arguments = inputs(seq_lens=(16,), num_heads=1, num_kv_heads=1)
    arguments["block_tables"] = torch.zeros(1, -(-seq_len // 16), dtype=torch.int32)
    return arguments | {"seq_lens": torch.tensor([seq_len], dtype=torch.int32)}


# 4 bytes a token, in v1 of whole blocks, with q_vecs 32 * 4 and red_smem 8 * 4; in v2 8 bytes a
# partition, beside the 32 of red_smem.
@pytest.mark.parametrize(
    ("prepare", "longest", "message"),
    [
        (PREPARE[0], MAX_SHARED // 4, "which needs 232,452 bytes .*paged_attention_v2"),
        (PREPARE[1], (MAX_SHARED - 160) // 64 * 16, "which needs 232,480 bytes .*attention_v2"),
        (PREPARE[2], (MAX_SHARED - 32) // 8 * 512, "232,456 bytes .*a larger partition_size"),
    ],
)
def test_a_context_fits_the_shared_memory_or_is_refused_with_its_bytes(
    prepare: Callable, longest: int, message: str
) -> None:
    assert prepare(**of_length(longest)).out.isnan().all()
    refused(prepare, of_length(longest + 1), message)


@by_prepare
def test_max_seq_len_gives_the_size_of_the_launch(prepare: Callable) -> None:
    arguments = inputs()
    arguments["block_tables"] = torch.nn.functional.pad(arguments["block_tables"], (0, 98))
    prepared = prepare(**arguments, max_seq_len=1000)
    if prepare is prepare_v2:
        assert prepared.partitions.grid == (*prepared.reduce.grid[:2], 2) == (4, 2, 2)
    else:
        assert prepared.shared_bytes == 4 * (1000 if prepare is prepare_naive else 1008)


# Vecs must be aligned --------------------------------------------------------------------------


def with_gap(tensor: Tensor, dim: int, elements: int) -> Tensor:
    """The same numbers; from one index of dim to the next, so many elements more."""
    rows = tensor.new_zeros(*tensor.shape[: dim + 1], tensor[(0,) * (dim + 1)].numel() + elements)
    return rows[..., :-elements].unflatten(-1, tensor.shape[dim + 1 :]).copy_(tensor)


def shifted(tensor: Tensor) -> Tensor:
    """The same numbers in memory that starts two elements later."""
    return tensor.new_zeros(tensor.numel() + 2)[2:].view(tensor.shape).copy_(tensor)


@pytest.mark.parametrize(
    ("names", "change", "message"),
    [
        ("q", shifted, r"q.data_ptr\(\) is 4 bytes past a multiple of 8"),
        ("k_cache", shifted, r"k_cache.data_ptr\(\) is 4 .* multiple of 16"),
        ("v_cache", shifted, r"v_cache.data_ptr\(\) is 4 .* multiple of 16"),
        ("q", lambda t: with_gap(t, 0, 2), r"q.stride\(0\) is 260 bytes; .* a multiple of 8"),
        ("k_cache v_cache", lambda t: with_gap(t, 0, 4), r"k_cache.stride\(0\) is \d+ bytes"),
        ("k_cache v_cache", lambda t: with_gap(t, 1, 4), r"k_cache.stride\(1\) is \d+ bytes"),
    ],
)
def test_misaligned_vecs_are_refused(names: str, change: Callable, message: str) -> None:
    arguments = inputs(dtype=torch.float16)
    arguments |= {name: change(arguments[name]) for name in names.split()}
    for function in (launch.paged_attention_v1_vector, launch.paged_attention_v2):
        refused(function, arguments, message)
    assert prepare_v1(**arguments).out.isnan().all(), "element loads take any address"


# What is passed on ------------------------------------------------------------------------------


def passed(prepared: cuda_launch.CudaLaunch) -> dict[str, object]:
    """What the kernel is called with, by the names of its signature."""
    names = inspect.signature(prepared.kernel.py_func).parameters
    return dict(zip(names, prepared.arguments.values(), strict=True))


@by_prepare
def test_the_kernel_reads_the_tensors_themselves(prepare: Callable) -> None:
    """On a GPU, a copy would cost more than the kernel; and a graph would read old numbers."""
    step = inputs(strided_q=True, dtype=torch.bfloat16)
    step["block_tables"] = wide(step["block_tables"])
    prepared = prepare(**step)
    first = passed(getattr(prepared, "partitions", prepared))
    for name in TENSORS:
        assert first[name].data_ptr() == step[name].data_ptr(), name
    if prepare is prepare_v2:
        second = passed(prepared.reduce)
        for name in ("exp_sums", "max_logits", "tmp_out", "seq_lens"):
            assert first[name].data_ptr() == second[name].data_ptr()
