"""What a launch of the kernels refuses before anything runs; v1 or v2; CUDA tensors.

What a DecodeStep itself refuses, tests/attention/test_step.py has. On a GPU `pytest -m gpu` sees
the rest: streams, graphs, shared memory (tests/bench/test_gpu.py).
"""

import re
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from pa_tutorial.checks.ladder import PAGED, backend_named
from pa_tutorial.kernels import cuda_backends, cuda_launch
from pa_tutorial.kernels.choose import choose
from pa_tutorial.kernels.triton import backend
from simt.launch_options import MAX_SHARED
from tests.kernels.kernel_inputs import apart, arguments, prepare, problem, step, wide


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error comes before any kernel."""
    monkeypatch.delattr(backend.TritonCall, "run")
    monkeypatch.delattr(cuda_launch, "launch")


# Refused ----------------------------------------------------------------------------------------

# Who refuses, the argument, how it is changed, what of it is named. The step has 2 sequences of 20
# and 9 tokens, 4 heads, 2 KV heads of size 32, blocks of 16 tokens.
REFUSED = (
    ("cuda_v1", "q", Tensor.half, "q.dtype"),
    ("cuda_v1", "q", wide, "q.stride"),
    ("cuda_v1", "k_cache", lambda k: k.reshape(6, 2, 4, 16, 8), "k_cache.shape[4] is 8"),
    ("cuda_v1", "k_cache", wide, "k_cache.stride"),
    ("cuda_v1", "v_cache", apart, "v_cache.stride()[:2]"),
    ("cpu", "v_cache", apart, "v_cache.stride"),
    ("triton", "k_cache", wide, "k_cache.stride"),
    ("triton", "block_tables", wide, "block_tables.stride"),
    ("triton", "seq_lens", wide, "seq_lens.stride"),
)


@pytest.mark.parametrize(
    ("stage", "name", "change", "what"),
    [pytest.param(*one, marks=getattr(pytest.mark, one[0])) for one in REFUSED],
)
def test_what_a_kernel_cannot_take_is_refused(
    stage: str, name: str, change: Callable, what: str, nothing_runs: None
) -> None:
    given = vars(problem(alibi=True).paged(backend_named(stage).layout))
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(what)}"):
        prepare(stage, **given | {name: change(given[name])})


@pytest.mark.parametrize("name", ["cuda_v1", "triton"])
def test_more_sequences_than_a_grid_has_room_for_are_refused(name: str) -> None:
    one = problem(seq_lens=(1,), num_heads=1, num_kv_heads=1).paged(backend_named(name).layout)
    rows = {field: getattr(one, field) for field in ("q", "block_tables", "seq_lens")}
    many = {field: row.repeat_interleave(2**16, 0) for field, row in rows.items()}
    with pytest.raises(ValueError, match=r"len\(q\) is 65536"):
        prepare(name, **vars(replace(one, **many)))


@pytest.mark.parametrize("name", [name for name in PAGED if "paged" not in name])
def test_a_cache_in_the_other_layout_is_refused(name: str) -> None:
    other = {"plain": "vllm", "vllm": "plain"}[backend_named(name).layout]
    with pytest.raises(ValueError, match=r"k_cache.shape is .* dimensions"):
        prepare(name, **vars(problem().paged(other)))


SIZES = (
    ("triton", "partition_size", 0),
    ("triton", "partition_size", 2**30 + 1),
    ("triton", "tile_size", 48),
    ("triton", "num_warps", 3),
    ("triton", "num_stages", 0),
    ("triton", "max_seq_len", 19),
    ("cuda_v2", "partition_size", 12),  # of blocks of 16
    ("cuda_v2", "partition_size", 65_536),  # needs more shared memory than there is
    ("cpu", "num_shares", 0),
)


@pytest.mark.parametrize(
    ("stage", "name", "value"),
    [pytest.param(*one, marks=getattr(pytest.mark, one[0])) for one in SIZES],
)
def test_a_size_that_cannot_be_is_refused(
    stage: str, name: str, value: int, nothing_runs: None
) -> None:
    with pytest.raises(ValueError, match=f"^{name} is {value}"):
        prepare(stage, **vars(problem().paged(backend_named(stage).layout)), **{name: value})


@pytest.mark.cpu
def test_the_cpu_kernel_refuses_other_dtypes_and_blocks() -> None:
    double = {name: step()[name].double() for name in ("q", "k_cache", "v_cache")}
    for given, message in ((step(block_size=4), "shape.2. is 4"), (step() | double, "float64")):
        with pytest.raises(ValueError, match=message):
            prepare("cpu", **given)


def test_where_there_is_no_triton_the_reason_names_the_platform_or_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    for platform, why in (("linux", "pip install -e '.[triton]'"), ("win32", "this is win32")):
        monkeypatch.setattr(sys, "platform", platform)
        assert backend.why_absent().endswith(why)
        with pytest.raises(ImportError, match="cannot run here"):
            backend.paged_attention_triton(**step())


def of_length(seq_len: int) -> dict[str, object]:
    """One sequence; all its blocks are block 0."""
    inputs = arguments(problem(seq_lens=(16,), num_heads=1, num_kv_heads=1))
    inputs["block_tables"] = torch.zeros(1, -(-seq_len // 16), dtype=torch.int32)
    return inputs | {"seq_lens": torch.tensor([seq_len], dtype=torch.int32)}


# 4 bytes a token, in v1 of whole blocks, with q_vecs 32 * 4 and red_smem 8 * 4; in v2 8 bytes a
# partition, beside the 32 of red_smem.
@pytest.mark.parametrize(
    ("stage", "longest", "num_bytes"),
    [
        ("cuda_naive", MAX_SHARED // 4, "232,452"),
        ("cuda_v1", (MAX_SHARED - 160) // 64 * 16, "232,480"),
        ("cuda_v2", (MAX_SHARED - 32) // 8 * 512, "232,456"),
    ],
)
def test_a_context_fits_the_shared_memory_or_is_refused_with_its_bytes(
    stage: str, longest: int, num_bytes: str, nothing_runs: None
) -> None:
    prepare(stage, **of_length(longest))
    longer = of_length(longest + 1)
    may_grow = longer | {"seq_lens": torch.ones(1).int(), "max_seq_len": longest + 1}
    for given in (longer, may_grow):
        with pytest.raises(ValueError, match=f"which needs {num_bytes} bytes"):
            prepare(stage, **given)


def shifted(tensor: Tensor) -> Tensor:
    """The same numbers in memory that starts two elements later."""
    return tensor.new_zeros(tensor.numel() + 2)[2:].view(tensor.shape).copy_(tensor)


def with_gaps(tensor: Tensor) -> Tensor:
    """The same numbers, with two elements behind each row."""
    padded = torch.nn.functional.pad(tensor.flatten(1), (0, 2))
    return padded[:, :-2].unflatten(1, tensor.shape[1:])


@pytest.mark.parametrize(
    ("change", "message"),
    [(shifted, r"q.data_ptr\(\) is 4 .* of 8"), (with_gaps, r"q.stride\(0\) is 260 bytes")],
)
def test_misaligned_vecs_are_refused(change: Callable, message: str, nothing_runs: None) -> None:
    inputs = arguments(problem(dtype=torch.float16))
    inputs["q"] = change(inputs["q"])
    for stage in ("cuda_v1_vector", "cuda_v2"):
        with pytest.raises(ValueError, match=message):
            prepare(stage, **inputs)
    prepare("cuda_v1", **inputs)  # element loads take any address


@pytest.mark.parametrize(
    ("num_seqs", "num_heads", "max_seq_len", "chosen"),
    [
        (1, 32, 512, "v1"),  # one partition: nothing to split
        (16, 32, 513, "v2"),  # two, and 512 thread blocks do not fill a GPU
        (513, 1, 513, "v1"),
        (17, 32, 8192, "v1"),
        (17, 32, 8193, "v2"),  # too long for v1, however many sequences
    ],
)
def test_the_rule_decides(num_seqs: int, num_heads: int, max_seq_len: int, chosen: str) -> None:
    assert choose(num_seqs, num_heads, max_seq_len) == chosen


# CUDA tensors, without a GPU --------------------------------------------------------------------


def moved(value: object) -> object:
    """A tensor that says that it is on a GPU, of the same shape and strides, without numbers."""
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("stage", ["cuda_naive", "cuda_v1", "cuda_v2"])
def test_a_launch_is_prepared_without_a_look_at_any_number(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks at one, and so would wait for a GPU, fails. With slopes and without; they are
    made on the GPU too. Without max_seq_len there is room for the whole table."""
    monkeypatch.setattr(cuda_backends, "max_shared_bytes", lambda: 100 * 1024)
    real = arguments(problem(alibi=True, strided_q=True, dtype=torch.bfloat16))
    room, sizes = real["block_tables"].shape[1] * 16, set()
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = {name: moved(value) for name, value in real.items()}
        for changes in ({}, {"alibi_slopes": None}, {"max_seq_len": room}):
            prepared = prepare(stage, **given | changes)
            with pytest.raises(ValueError, match=r"^q\.device is"):
                prepared.probe()
            parts = (prepared.partitions, prepared.reduce) if stage == "cuda_v2" else (prepared,)
            for one in parts:
                tensors = [a for a in one.arguments.values() if isinstance(a, Tensor)]
                assert all(tensor.is_cuda and tensor.numel() for tensor in tensors)
            sizes.add(tuple((one.grid, one.shared_bytes) for one in parts))
    assert len(sizes) == 1
