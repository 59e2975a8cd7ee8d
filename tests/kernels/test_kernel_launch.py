"""What a launch of the paged kernels refuses, before anything runs; and what it passes on."""

import dataclasses
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import torch
from kernel_inputs import NAMES, arguments, problem
from torch import Tensor

from pa_tutorial.kernels import launch, running
from pa_tutorial.simt.simulate import MAX_SHARED

FUNCTIONS = (
    launch.paged_attention_naive,
    launch.paged_attention_v1,
    launch.paged_attention_v1_vector,
    launch.paged_attention_v2,
)
by_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
by_prepare = pytest.mark.parametrize(
    "prepare",
    [launch.prepare_naive, launch.prepare_v1, launch.prepare_v2],
    ids=lambda f: f.__name__,
)
by_tensor = pytest.mark.parametrize("name", [name for name in NAMES if name != "scale"])


def inputs(**changes: object) -> dict[str, object]:
    """Arguments of paged_attention_v1, with slopes."""
    return arguments(problem(alibi=True, **changes))


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator must not start: an error comes before."""

    def start(*args: object, **options: object) -> None:
        pytest.fail("the kernel was launched; the arguments must be refused before")

    monkeypatch.setattr(running, "launch", start)


def refused(
    function: Callable,
    arguments: dict[str, object],
    message: str,
    error: type[Exception] = ValueError,
) -> None:
    with pytest.raises(error, match=message):
        function(**arguments)


def with_item(tensor: Tensor, place: tuple[int, ...], value: float) -> Tensor:
    changed = tensor.clone()
    changed[place] = value
    return changed


def wide(tensor: Tensor) -> Tensor:
    """The same numbers with a gap behind each in the last dimension."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def swapped(tensor: Tensor) -> Tensor:
    """The same numbers, stored with the last two dimensions in the other order."""
    return tensor.mT.contiguous().mT


def spread(tensor: Tensor) -> Tensor:
    """The same numbers with a gap behind each block."""
    return torch.cat([tensor, tensor], dim=1)[:, : tensor.shape[1]]


WRONG: dict[str, tuple[Callable[[Tensor], Tensor], str, str]] = {
    # what is wrong: (how one argument is changed, its name, a piece of the message)
    "q_without_heads": (lambda q: q[:, 0], "q", r"q has shape \[2, 32\]"),
    "q_without_sequences": (lambda q: q[:0], "q", r"q has shape \[0, 4, 32\]; every size must"),
    "q_without_any_head": (lambda q: q[:, :0], "q", r"q has shape \[2, 0, 32\]; every size must"),
    "k_without_blocks": (
        lambda k: k[:0],
        "k_cache",
        r"k_cache has shape \[0, 2, 8, 16, 4\]; every",
    ),
    "v_without_blocks": (lambda v: v[:0], "v_cache", r"v_cache has shape \[0, 2, 32, 16\]; every"),
    "table_without_columns": (
        lambda t: t[:, :0],
        "block_tables",
        r"block_tables has shape \[2, 0\]; every size must be at least 1",
    ),
    "heads_that_do_not_divide": (lambda q: q[:, :3], "q", "num_kv_heads is 2; .*divide.* 3"),
    "another_head_size": (lambda q: q[..., :16], "q", "head_size 32; .*that of q, 16"),
    "plain_layout": (lambda k: k[:, :, 0], "k_cache", r"k_cache.shape is .*5 dimensions"),
    "k_of_three_dimensions": (lambda k: k[0, 0], "k_cache", r"k_cache.shape is .*5 dimensions"),
    "v_of_other_blocks": (lambda v: v[:-1], "v_cache", r"v_cache is \[.*it must be \["),
    "v_of_other_block_size": (lambda v: v[..., :8], "v_cache", r"v_cache is \[.*it must be \["),
    "v_of_other_dtype": (lambda v: v.half(), "v_cache", "v_cache is .*float16; .*float32"),
    "table_of_one_dimension": (lambda t: t[0], "block_tables", r"block_tables has shape \[3\]"),
    "table_of_too_few_rows": (lambda t: t[:1], "block_tables", r"block_tables has shape \[1, 3\]"),
    "lengths_of_too_many": (lambda n: n.repeat(2), "seq_lens", r"seq_lens has shape \[4\]"),
    "lengths_in_a_column": (lambda n: n[:, None], "seq_lens", r"seq_lens has shape \[2, 1\]"),
    "slopes_of_kv_heads": (
        lambda s: s[:2],
        "alibi_slopes",
        r"alibi_slopes has shape \[2\]; .*\[4\]",
    ),
    "slopes_of_two_dimensions": (lambda s: s[None], "alibi_slopes", "alibi_slopes has shape"),
    "complex_slopes": (
        lambda s: s + 1j,
        "alibi_slopes",
        "alibi_slopes.dtype is torch.complex64; it must be one of torch.float16, torch.bfloat16",
    ),
    "slopes_of_bool": (lambda s: s > 0, "alibi_slopes", "alibi_slopes.dtype is torch.bool; "),
    "whole_slopes": (lambda s: s.int(), "alibi_slopes", "alibi_slopes.dtype is torch.int32; "),
    "slope_of_nan": (
        lambda s: with_item(s, (2,), float("nan")),
        "alibi_slopes",
        r"alibi_slopes\[2\] is nan; it must be finite",
    ),
    "slope_of_infinity": (
        lambda s: with_item(s, (1,), float("-inf")),
        "alibi_slopes",
        r"alibi_slopes\[1\] is -inf; it must be finite",
    ),
    "slope_beyond_float32": (
        lambda s: with_item(s.double(), (0,), 1e39),
        "alibi_slopes",
        r"alibi_slopes\[0\] is 1e\+39; it must be finite, as a float32",
    ),
    "q_narrower_than_the_cache": (lambda q: q.half(), "q", "q.dtype is .*16; .*float32, as the c"),
    "q_of_whole_numbers": (lambda q: q.int(), "q", "q.dtype is torch.int32; .*torch.float32"),
    "table_of_int64": (lambda t: t.long(), "block_tables", "block_tables is torch.int64; .*int32"),
    "lengths_of_int64": (lambda n: n.long(), "seq_lens", "seq_lens is torch.int64; .*int32"),
    "gaps_within_a_row_of_q": (wide, "q", r"q.stride\(\)\[-2:\] is \(64, 2\); .*\(32, 1\)"),
    "heads_of_q_in_front": (
        lambda q: q.transpose(0, 1).contiguous().transpose(0, 1),
        "q",
        r"q.stride\(\)\[-2:\] is \(64, 1\)",
    ),
    "gaps_within_a_block_of_k": (wide, "k_cache", r"k_cache.stride\(\)\[-3:\] is \(128, 8, 2\)"),
    "k_with_tokens_inside": (swapped, "k_cache", r"k_cache.stride\(\)\[-3:\] is \(64, 1, 16\)"),
    "gaps_within_a_block_of_v": (wide, "v_cache", r"v_cache.stride\(\)\[-2:\] is \(32, 2\)"),
    "v_with_heads_inside": (swapped, "v_cache", r"v_cache.stride\(\)\[-2:\] is \(1, 32\)"),
    "v_with_other_gaps_than_k": (spread, "v_cache", r"v_cache.stride\(\)\[:2\] .*those of k_cache"),
    "v_with_its_heads_closer_than_k": (
        lambda v: v.as_strided(v.shape, (v.stride(0), 256, *v.stride()[2:])),
        "v_cache",
        r"v_cache.stride\(\)\[:2\] is \(1024, 256\); .*those of k_cache",
    ),
    "k_with_other_gaps_than_v": (spread, "k_cache", r"v_cache.stride\(\)\[:2\] .*those of k_cache"),
    "block_below_the_pool": (
        lambda t: with_item(t, (1, 0), -1),
        "block_tables",
        r"block_tables\[1\] names block -1; it must be 0 to ",
    ),
    "block_beyond_the_pool": (
        lambda t: with_item(t, (0, 1), 6),
        "block_tables",
        r"block_tables\[0\] names block 6; it must be 0 to 5",
    ),
    "length_beyond_the_table": (
        lambda n: with_item(n, (1,), 49),
        "seq_lens",
        r"seq_lens\[1\] is 49; it must be 1 to 48",
    ),
    "length_of_0": (lambda n: with_item(n, (0,), 0), "seq_lens", r"seq_lens\[0\] is 0; .*1 to 48"),
    "length_below_0": (lambda n: with_item(n, (0,), -3), "seq_lens", r"seq_lens\[0\] is -3"),
}


@by_function
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_tensor_is_refused(function: Callable, wrong: str) -> None:
    change, name, message = WRONG[wrong]
    arguments = inputs()
    refused(function, {**arguments, name: change(arguments[name])}, message)


@by_function
@by_tensor
def test_tensor_on_another_device_is_refused(function: Callable, name: str) -> None:
    arguments = inputs()
    elsewhere = arguments[name].to("meta")
    refused(function, {**arguments, name: elsewhere}, rf"{name}.device is meta; it must be cpu")


@by_function
@by_tensor
@pytest.mark.parametrize("kind", ["list", "ndarray"])
def test_what_is_no_tensor_is_refused(function: Callable, name: str, kind: str) -> None:
    arguments = inputs()
    other = arguments[name].tolist() if kind == "list" else arguments[name].numpy()
    message = rf"^{name} is of type {kind}; it must be a torch.Tensor"
    refused(function, {**arguments, name: other}, message, TypeError)


@by_function
def test_only_slopes_may_be_none(function: Callable) -> None:
    refused(function, {**inputs(), "q": None}, "q is of type NoneType; .*Tensor$", TypeError)
    refused(
        function, {**inputs(), "alibi_slopes": ()}, "alibi_slopes is .*Tensor or None", TypeError
    )


@by_function
@by_tensor
def test_a_view_with_the_other_sign_is_refused(function: Callable, name: str) -> None:
    """PyTorch makes one of the imaginary part of a conjugate; its memory holds -x for x."""
    arguments = inputs()
    view = torch._neg_view(-arguments[name])
    assert torch.equal(view.nan_to_num(), arguments[name].nan_to_num())
    refused(
        function, {**arguments, name: view}, rf"{name} is a view .* it must be {name}.resolve_neg"
    )


@by_prepare
@pytest.mark.parametrize(
    "scale",
    [float("nan"), float("inf"), -float("inf"), 1e39, -1e39, 10**400, np.float64(1e39)],
    ids=lambda scale: f"{scale:.3}" if isinstance(scale, float) else "10**400",
)
def test_scale_that_is_not_finite_in_float32_is_refused(prepare: Callable, scale: float) -> None:
    refused(prepare, {**inputs(), "scale": scale}, "^scale is .*; it must be finite, as a float32")


@by_prepare
@pytest.mark.parametrize(
    "scale",
    [None, "0.1", True, np.True_, 1j, np.complex64(1), torch.tensor(0.1), np.array(0.1), [0.1]],
    ids=repr,
)
def test_scale_that_is_no_real_number_is_refused(prepare: Callable, scale: object) -> None:
    message = f"^scale is of type {type(scale).__name__}; it must be a real number"
    refused(prepare, {**inputs(), "scale": scale}, message, TypeError)


@by_prepare
@pytest.mark.parametrize(
    "scale", [2, 0.1, -0.5, 0, np.float16(0.1), np.float32(0.1), np.float64(0.1), np.int64(3)]
)
def test_real_number_becomes_a_scale_of_float32(prepare: Callable, scale: float) -> None:
    prepared = prepare(**{**inputs(), "scale": scale})
    found = getattr(prepared, "partitions", prepared).arguments["scale"]
    assert (type(found), found) == (np.float32, np.float32(scale))


@by_function
def test_cache_whose_x_is_that_of_another_dtype_is_refused(function: Callable) -> None:
    """The pieces of float16, 8 numbers, of which float32 has 4."""
    arguments = inputs()
    k_cache = arguments["k_cache"]
    blocks, heads, pieces, block_size, x = k_cache.shape
    arguments["k_cache"] = torch.zeros(blocks, heads, pieces // 2, block_size, 2 * x)
    refused(function, arguments, r"k_cache.shape\[4\] is 8; it must be x = 4")


@by_function
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_size": 16}, "head_size is 16; it must be one of 32, 64, 80"),
        ({"head_size": 40, "dtype": torch.float16}, "head_size is 40; it must be one of"),
        ({"block_size": 4}, "block_size is 4; it must be one of 8, 16, 32"),
        ({"block_size": 64}, "block_size is 64; it must be one of 8, 16, 32"),
    ],
)
def test_sizes_that_vllm_does_not_compile_are_refused(
    function: Callable, changes: dict, message: str
) -> None:
    refused(function, inputs(**changes), message)


@by_function
def test_whole_numbers_are_refused(function: Callable) -> None:
    arguments = inputs()
    for name in ("q", "k_cache", "v_cache"):
        arguments[name] = torch.zeros(arguments[name].shape, dtype=torch.int32)
    refused(function, arguments, "dtype is torch.int32; it must be one of torch.float32")


@by_prepare
def test_threads_that_do_not_make_a_tree_are_refused(prepare: Callable) -> None:
    refused(prepare, inputs() | {"num_threads": 96}, "num_threads is 96; .*64, 128, 256")


@by_prepare
def test_threads_that_are_no_int_are_refused(prepare: Callable) -> None:
    """128.0 == 128: without an error, their kernel would be the one that is kept for 128."""
    refused(prepare, inputs() | {"num_threads": 128.0}, "num_threads is 128.0; it must be an int")


def of_length(seq_len: int) -> dict[str, object]:
    """One sequence; all its blocks are block 0."""
    cache = torch.zeros(1, 1, 32, 16)
    return {
        "q": torch.zeros(1, 1, 32),
        "k_cache": cache.view(1, 1, 8, 16, 4),
        "v_cache": cache,
        "block_tables": torch.zeros(1, -(-seq_len // 16), dtype=torch.int32),
        "seq_lens": torch.tensor([seq_len], dtype=torch.int32),
        "scale": 1.0,
    }


# 4 bytes a token, in v1 of whole blocks; and there, q_vecs 32 * 4 and red_smem 8 * 4
LONGEST = {"naive": MAX_SHARED // 4, "v1": (MAX_SHARED - 128 - 32) // 64 * 16}
BYTES_OF_NEXT = {"naive": 4 * (LONGEST["naive"] + 1), "v1": 4 * (LONGEST["v1"] + 16) + 128 + 32}


@pytest.mark.parametrize("name", LONGEST)
def test_context_beyond_the_shared_memory_is_refused_with_its_bytes(name: str) -> None:
    seq_len = LONGEST[name] + 1
    message = f"max_seq_len is {seq_len}, which needs {BYTES_OF_NEXT[name]:,} bytes"
    refused(getattr(launch, f"paged_attention_{name}"), of_length(seq_len), message)


@pytest.mark.parametrize("name", LONGEST)
def test_context_that_just_fits_the_shared_memory_is_prepared(name: str) -> None:
    prepared = getattr(launch, f"prepare_{name}")(**of_length(LONGEST[name]))
    assert prepared.shared_bytes == 4 * LONGEST[name]


def test_v2_prepares_a_context_that_is_too_long_for_v1() -> None:
    prepared = launch.prepare_v2(**of_length(2 * LONGEST["v1"]))
    assert prepared.partitions.shared_bytes == 512 * 4


# Vecs must be aligned --------------------------------------------------------------------------

VECTORS = (launch.paged_attention_v1_vector, launch.paged_attention_v2)
by_vector = pytest.mark.parametrize("function", VECTORS, ids=lambda f: f.__name__)


def shifted(tensor: Tensor, elements: int) -> Tensor:
    """The same numbers in memory that starts so many elements later."""
    memory = tensor.new_zeros(tensor.numel() + elements)
    return memory[elements:].view(tensor.shape).copy_(tensor)


def with_gap(tensor: Tensor, dim: int, elements: int) -> Tensor:
    """The same numbers; from one index of dim to the next, so many elements more."""
    shape = list(tensor.shape)
    shape[-1] += elements
    rows = tensor.new_zeros(*tensor.shape[: dim + 1], tensor[(0,) * (dim + 1)].numel() + elements)
    view = rows[..., :-elements].unflatten(-1, tensor.shape[dim + 1 :])
    return view.copy_(tensor)


@by_vector
@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache"])
def test_misaligned_start_is_refused(function: Callable, name: str) -> None:
    arguments = inputs(dtype=torch.float16)
    arguments[name] = shifted(arguments[name], 2)
    refused(function, arguments, rf"{name}.data_ptr\(\) is 4 bytes past a multiple of (8|16)")


@by_vector
def test_misaligned_stride_of_q_is_refused(function: Callable) -> None:
    arguments = inputs(dtype=torch.float16)
    arguments["q"] = with_gap(arguments["q"], 0, 2)
    refused(function, arguments, r"q.stride\(0\) is 260 bytes; it must be a multiple of 8")


@by_vector
@pytest.mark.parametrize("dim", [0, 1])
def test_misaligned_strides_of_the_caches_are_refused(function: Callable, dim: int) -> None:
    arguments = inputs(dtype=torch.float16)
    caches = {name: with_gap(arguments[name], dim, 4) for name in ("k_cache", "v_cache")}
    refused(
        function, arguments | caches, rf"k_cache.stride\({dim}\) is \d+ bytes; it must be a mul"
    )


def test_element_loads_take_any_address() -> None:
    arguments = inputs(dtype=torch.float16)
    arguments |= {name: shifted(arguments[name], 1) for name in ("q", "k_cache", "v_cache")}
    assert launch.prepare_v1(**arguments).out.isnan().all()


# Partitions, and the longest sequence ------------------------------------------------------------


def test_partition_size_must_be_whole_blocks() -> None:
    refused(launch.paged_attention_v2, inputs() | {"partition_size": 24}, "a multiple of block_s")


def test_no_partition_is_v1() -> None:
    refused(launch.paged_attention_v2, inputs() | {"partition_size": 0}, "v1 is without")


@by_function
@pytest.mark.parametrize("max_seq_len", [19, 10_000])
def test_max_seq_len_that_cannot_be_is_refused(function: Callable, max_seq_len: int) -> None:
    arguments = inputs() | {"max_seq_len": max_seq_len}
    room = arguments["block_tables"].shape[1] * 16
    refused(function, arguments, f"max_seq_len is {max_seq_len}; it must be 20 to {room}")


@by_prepare
def test_max_seq_len_gives_the_size_of_the_launch(prepare: Callable) -> None:
    arguments = inputs()
    wide_tables = torch.nn.functional.pad(arguments["block_tables"], (0, 98))
    prepared = prepare(**{**arguments, "block_tables": wide_tables}, max_seq_len=1000)
    if prepare is launch.prepare_v2:
        assert prepared.partitions.grid == (*prepared.reduce.grid[:2], 2) == (4, 2, 2)
    else:
        assert prepared.shared_bytes == 4 * (1000 if prepare is launch.prepare_naive else 1008)


@by_function
@pytest.mark.parametrize("max_seq_len", [True, 20.0, "20"], ids=repr)
def test_max_seq_len_that_is_no_int_is_refused(function: Callable, max_seq_len: object) -> None:
    message = f"max_seq_len is of type {type(max_seq_len).__name__}; it must be an int"
    refused(function, inputs() | {"max_seq_len": max_seq_len}, message, TypeError)


def test_more_partitions_than_the_reduce_kernel_has_memory_for_are_refused() -> None:
    """8 bytes a partition, beside the 32 of red_smem: 29,052 of them fit into 227 KiB."""
    most = (MAX_SHARED - 32) // 8
    assert launch.prepare_v2(**of_length(16 * most), partition_size=16).reduce.grid == (1, 1, 1)
    message = rf"needs {8 * (most + 1) + 32:,} bytes of shared memory.*a larger partition_size"
    with pytest.raises(ValueError, match=message):
        launch.prepare_v2(**of_length(16 * most + 1), partition_size=16)


def test_a_partition_that_does_not_fit_the_shared_memory_is_refused() -> None:
    message = r"^partition_size is 65536, which needs 262,\d+ bytes of shared memory"
    refused(launch.paged_attention_v2, inputs() | {"partition_size": 65_536}, message)


@by_function
def test_more_sequences_than_a_grid_has_rows_are_refused(function: Callable) -> None:
    arguments = inputs()
    many = {
        "q": arguments["q"][:1].expand(70_000, -1, -1),
        "block_tables": arguments["block_tables"][:1].expand(70_000, -1),
        "seq_lens": arguments["seq_lens"][:1].expand(70_000),
    }
    refused(function, arguments | many, r"^len\(q\) is 70000; it must be at most 65535")


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
def test_caches_are_aligned_to_16_bytes_and_not_to_a_vec_of_k(name: str) -> None:
    """Blocks of 8 and float16: a vec of q has 4 bytes."""
    arguments = inputs(dtype=torch.float16, block_size=8)
    arguments[name] = shifted(arguments[name], 4)
    refused(VECTORS[0], arguments, rf"{name}.data_ptr\(\) is 8 bytes past a multiple of 16")


# What a call goes through -----------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple, dict[str, object]]]:
    """The arguments and options of each launch; nothing is simulated."""
    seen: list[tuple[tuple, dict[str, object]]] = []
    monkeypatch.setattr(
        running, "launch", lambda *arguments, **options: seen.append((arguments, options))
    )
    return seen


@by_function
def test_nothing_is_watched_that_no_probe_asked_for(function: Callable, launched: list) -> None:
    function(**inputs())
    assert launched
    assert not any("watch" in options for _, options in launched)


@by_prepare
def test_arguments_go_by_the_names_of_the_signature(prepare: Callable, launched: list) -> None:
    """And not by the order in which somebody put them into a dict."""
    prepared = prepare(**inputs())
    for one in (
        (prepared.partitions, prepared.reduce) if prepare is launch.prepare_v2 else (prepared,)
    ):
        in_reverse = dict(reversed(one.arguments.items()))
        dataclasses.replace(one, arguments=in_reverse).simulate()
        (_, _, _, *arguments), _ = launched.pop()
        names = inspect.signature(one.kernel.py_func).parameters
        assert all(a is one.arguments[name] for a, name in zip(arguments, names, strict=True))


@by_function
def test_a_call_goes_through_six_of_our_files(function: Callable, launched: list) -> None:
    """So many a reader has to open who follows a call to the simulator."""
    package, files = Path(launch.__file__).parent.parent, set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        files.add(Path(frame.f_code.co_filename))

    arguments = inputs()
    function(**arguments)  # the kernel is made: that is another way
    before = sys.getprofile()
    sys.setprofile(note)
    function(**arguments)
    sys.setprofile(before)
    assert len([file for file in files if package in file.parents]) <= 6


# Nothing is copied ------------------------------------------------------------------------------


@by_prepare
def test_the_kernel_reads_the_tensors_themselves(prepare: Callable) -> None:
    """On a GPU, a copy would cost more than the kernel; and a graph would read old numbers."""
    step = inputs(strided_q=True, dtype=torch.bfloat16)
    every_second = torch.zeros(2, 12, dtype=torch.int32)
    every_second[:, ::2][:, : step["block_tables"].shape[1]] = step["block_tables"]
    step["block_tables"] = every_second[:, : 2 * step["block_tables"].shape[1] : 2]
    prepared = prepare(**step)
    arguments = getattr(prepared, "partitions", prepared).arguments
    for name in ("q", "k_cache", "v_cache", "block_tables", "seq_lens", "alibi_slopes"):
        assert arguments[name].data_ptr() == step[name].data_ptr(), name


def test_the_reduce_kernel_reads_what_the_partitions_wrote() -> None:
    prepared = launch.prepare_v2(**inputs())
    first, second = prepared.partitions.arguments, prepared.reduce.arguments
    for left, read in (("exp_sums",) * 2, ("max_logits",) * 2, ("out", "tmp_out")):
        assert first[left].data_ptr() == second[read].data_ptr()
