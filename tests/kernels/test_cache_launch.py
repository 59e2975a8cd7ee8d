"""Launches of the cache kernels: what they refuse, their way to a GPU, their cost."""

import dataclasses
import re
from collections.abc import Callable
from types import SimpleNamespace

import numba
import pytest
import torch
from test_cache_kernels import BF16, F16, F32, check_copies, check_new_tokens, new_tokens, pool
from torch import Tensor

from pa_tutorial import arguments
from pa_tutorial.kernels import running
from pa_tutorial.kernels.launch import copy_blocks, reshape_and_cache_by_kernel
from pa_tutorial.kernels.prepare_cache import prepare_copy_blocks, prepare_reshape_and_cache
from pa_tutorial.kernels.running import Launch
from pa_tutorial.paging.errors import UnknownBlock
from pa_tutorial.paging.layouts import VllmLayout
from pa_tutorial.simt import global_traffic, launch

LAYOUT = VllmLayout(6, num_kv_heads=2, head_size=32, block_size=16, dtype=F16)


# What is refused ------------------------------------------------------------------------------


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: object, **options: object) -> None:
        pytest.fail("the kernel was launched; the arguments must be refused before")

    monkeypatch.setattr(running, "launch", start)


def tokens(layout: VllmLayout = LAYOUT) -> dict[str, Tensor]:
    """The arguments of reshape_and_cache by name."""
    key, value, slots = new_tokens(layout)
    k_cache, v_cache = layout.empty()
    names = ("key", "value", "k_cache", "v_cache", "slot_mapping")
    return dict(zip(names, (key, value, k_cache, v_cache, slots), strict=True))


def with_slot(slots: Tensor, slot: int) -> Tensor:
    return torch.cat([slots[:-1], torch.tensor([slot])])


def spread(tensor: Tensor) -> Tensor:
    """The same numbers with a gap behind each block or token."""
    return torch.cat([tensor, tensor], dim=1)[:, : tensor.shape[1]]


def wide(tensor: Tensor) -> Tensor:
    """The same numbers with a gap behind each in the last dimension."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


WRONG = {
    "slots_of_int32": (lambda s: s.int(), "slot_mapping", "slot_mapping is torch.int32 .*int64"),
    "slots_of_two_rows": (lambda s: s[None], "slot_mapping", r"with shape \[1, 7\]"),
    "slot_beyond": (lambda s: with_slot(s, 96), "slot_mapping", "holds 96; .* -1, or 0 to 95"),
    "slot_below": (lambda s: with_slot(s, -2), "slot_mapping", "holds -2; it must be -1"),
    "slot_twice": (lambda s: with_slot(s, int(s[0])), "slot_mapping", "holds a slot twice"),
    "too_many_keys": (lambda t: t.repeat(2, 1, 1), "key", r"key has shape \[14, 2, 32\]"),
    "heads_of_value": (lambda t: t[:, :1], "value", r"value has shape \[7, 1, 32\]"),
    "key_of_float32": (lambda t: t.float(), "key", "key is torch.float32; it must be .*float16"),
    "gaps_in_the_key": (wide, "key", r"key.stride\(\)\[-2:\] is \(64, 2\); .* \(32, 1\)"),
    "heads_in_front": (
        lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
        "value",
        r"value.stride\(\)\[-2:\] is \(224, 1\)",
    ),
    "plain_layout": (lambda t: t[:, :, 0], "k_cache", "k_cache.shape is .* 5 dimensions: vLLM"),
    "x_of_float32": (
        lambda t: t.reshape(6, 2, 8, 16, 4),
        "k_cache",
        r"k_cache.shape\[4\] is 4; it must be x = 8",
    ),
    "v_of_fewer_blocks": (lambda t: t[1:], "v_cache", r"v_cache.shape is \[5, .* \[6, 2, 32, 16\]"),
    "v_of_float32": (lambda t: t.float(), "v_cache", "v_cache.dtype is torch.float32; .*float16"),
    "cache_of_int16": (lambda t: t.to(torch.int16), "k_cache", "k_cache.dtype is torch.int16"),
    "no_blocks": (lambda t: t[:0], "k_cache", r"k_cache has shape \[0, .*every size must"),
    "gaps_between_blocks_of_k": (spread, "k_cache", r"k_cache.stride\(\)\[-5:\] is"),
    "gaps_between_blocks_of_v": (spread, "v_cache", r"v_cache.stride\(\)\[-4:\] is"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tensors_of_tokens_are_refused(name: str, nothing_runs: None) -> None:
    change, argument, message = WRONG[name]
    tensors = tokens()
    with pytest.raises(ValueError, match=message):
        reshape_and_cache_by_kernel(**{**tensors, argument: change(tensors[argument])})


@pytest.mark.parametrize("argument", ["key", "value", "k_cache", "v_cache", "slot_mapping"])
def test_what_is_no_tensor_or_elsewhere_is_refused(argument: str, nothing_runs: None) -> None:
    tensors = tokens()
    with pytest.raises(TypeError, match=f"^{argument} is of type list; it must be a torch.Tensor"):
        reshape_and_cache_by_kernel(**{**tensors, argument: tensors[argument].tolist()})
    with pytest.raises(ValueError, match=rf"^{argument}.device is meta; it must be cpu"):
        reshape_and_cache_by_kernel(**{**tensors, argument: tensors[argument].to("meta")})


def shifted(tensor: Tensor) -> Tensor:
    """The same numbers, 4 bytes later in memory."""
    memory = tensor.new_zeros(tensor.numel() + 2)
    return memory[2:].view(tensor.shape).copy_(tensor)


WRONG_LAYERS = {
    "no_layer": (lambda k, v: ([], []), "k_caches is empty; .* one layer or more"),
    "v_of_fewer_layers": (lambda k, v: (k, v[:1]), r"len\(v_caches\) is 1; it must be 2"),
    "layers_that_differ": (
        lambda k, v: (k, [v[0], v[1][1:]]),
        r"v_caches\[1\].shape is \[5, .*beside this k_caches\[1\]",
    ),
    "a_larger_second_layer": (
        lambda k, v: ([k[0], k[1].repeat(2, 1, 1, 1, 1)], [v[0], v[1].repeat(2, 1, 1, 1)]),
        r"k_caches\[1\] is .*num_blocks=12.* must be .*num_blocks=6.*, as k_caches\[0\]",
    ),
    "a_layer_elsewhere": (
        lambda k, v: (k, [v[0].to("meta"), v[1]]),
        r"v_caches\[0\].device is meta",
    ),
    "a_misaligned_layer": (
        lambda k, v: (k, [v[0], shifted(v[1])]),
        r"v_caches\[1\].data_ptr\(\) is 4 bytes past a multiple of 16",
    ),
    "the_plain_layout": (lambda k, v: (v, v), r"k_caches\[0\].shape is .* 5 dimensions: vLLM's"),
}


@pytest.mark.parametrize("name", WRONG_LAYERS)
def test_wrong_layers_are_refused(name: str, nothing_runs: None) -> None:
    change, message = WRONG_LAYERS[name]
    made = pool(LAYOUT)
    with pytest.raises(ValueError, match=message):
        copy_blocks(*change(made.k, made.v), [(1, 2)])


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(1, 2), (-1, 2)], "source block is -1; the pool has 0 to 5"),
        ([(1, 2), (2, 6)], "destination block is 6; the pool has 0 to 5"),
    ],
)
def test_unknown_blocks_are_refused(pairs: list, message: str, nothing_runs: None) -> None:
    made = pool(LAYOUT)
    for tensors in (pairs, torch.tensor(pairs)):
        with pytest.raises(UnknownBlock, match=message):
            copy_blocks(made.k, made.v, tensors)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(0.5, 2)], r"pairs is torch.float32 with shape \[1, 2\]; it must be int64"),
        ([(1, 2, 3)], r"pairs is torch.int64 with shape \[1, 3\]; .* \[num_pairs, 2\]"),
        ([1, 2], r"pairs is torch.int64 with shape \[2\]; .* \[num_pairs, 2\]"),
        (torch.zeros(1, 2, dtype=torch.int32), "pairs is torch.int32"),
        (torch.zeros(1, 2, dtype=torch.int64, device="meta"), "pairs.device is meta; .* cpu"),
    ],
)
def test_pairs_of_another_kind_are_refused(pairs: object, message: str, nothing_runs: None) -> None:
    made = pool(LAYOUT)
    with pytest.raises(ValueError, match=message):
        copy_blocks(made.k, made.v, pairs)


# On a GPU: with stand-ins ---------------------------------------------------------------------


@dataclasses.dataclass
class StandIn:
    """numba.cuda, and a kernel on it: it writes down what is asked of it, and simulates."""

    kernel: Callable
    done: list[object]

    def as_cuda_array(self, tensor: Tensor, sync: bool) -> Tensor:
        assert not sync, "to synchronise is to wait for the stream that wrote the tensor"
        return tensor

    def external_stream(self, handle: int) -> str:
        return f"stream {handle}"

    def __getitem__(self, configuration: tuple) -> Callable:
        """kernel[grid, block, stream, shared_bytes]"""
        grid, block, _, shared_bytes = configuration

        def run(*arguments: object) -> None:
            self.done.append(configuration)
            launch(self.kernel, grid, block, *arguments, shared_bytes=shared_bytes)

        return run


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """From here on, all that is run goes the way to a GPU. The configurations of the launches."""
    done: list[object] = []

    def run(prepared: Launch) -> None:
        stand_in = StandIn(prepared.kernel, done)
        with monkeypatch.context() as patch:
            patch.setattr(numba, "cuda", stand_in)
            dataclasses.replace(prepared, kernel=stand_in).on_gpu()

    stream = SimpleNamespace(cuda_stream=7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(Launch, "run", run)
    return done


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_tokens_are_written_on_a_gpu(dtype: torch.dtype, launched: list[object]) -> None:
    check_new_tokens(dataclasses.replace(LAYOUT, dtype=dtype))
    assert launched == [((7, 1, 1), 64, "stream 7", 0)]  # 2 heads of 32


def test_blocks_are_copied_on_a_gpu(launched: list[object]) -> None:
    check_copies(LAYOUT, [(1, 2), (2, 3), (4, 5)])
    two, one = (((n, 1, 1), 128, "stream 7", 0) for n in (2, 1))  # 1024 elements are 128 vecs
    assert launched == [two, two, one, one]


@pytest.fixture
def meta_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on torch's meta device have no numbers: whoever looks at one gets an error."""
    monkeypatch.setattr(arguments, "DEVICES", ("cpu", "cuda", "meta"))


def test_no_number_on_a_gpu_is_looked_at(meta_is_a_gpu: None) -> None:
    (prepared,) = prepare_reshape_and_cache(**{name: t.to("meta") for name, t in tokens().items()})
    assert prepared.grid == (7, 1, 1)
    made = pool(LAYOUT)
    layers = [[cache.to("meta") for cache in caches] for caches in (made.k, made.v)]
    table = torch.tensor([(1, 2), (2, 3)], device="meta")
    prepared = prepare_copy_blocks(*layers, table)
    assert [one.grid for one in prepared] == [(2, 1, 1)] * 2, "one round: the caller's promise"
    assert all(one.arguments["pairs"] is table for one in prepared)
    assert prepare_copy_blocks(*layers, table[:0]) == []
    from_the_host = prepare_copy_blocks(*layers, [(1, 2), (2, 3)])
    assert [one.arguments["pairs"].device.type for one in from_the_host] == ["meta"] * 4


def test_that_it_is_simulated_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(running, "_said", False)
    check_new_tokens(LAYOUT)
    check_copies(LAYOUT, [(1, 2), (2, 3)])
    assert capsys.readouterr().out == running.SIMULATED + "\n"


# Cost -----------------------------------------------------------------------------------------


def sectors(prepared: Launch) -> dict[tuple[str, str], tuple[int, int]]:
    """(array, read or write) -> sectors of one request, and the least that could hold it."""
    table = global_traffic(prepared.simulate(trace=0).trace)
    names = ("expression", "does", "requests", "sectors", "ideal sectors")
    rows = zip(*map(table.column, names), strict=True)
    return {
        (re.search(r"\w+(?=[\[,])", text)[0], does): (found // requests, ideal // requests)
        for text, does, requests, found, ideal in rows
    }


def test_writes_of_a_token_are_side_by_side_in_pieces_of_x_or_not_at_all() -> None:
    (prepared,) = prepare_reshape_and_cache(**tokens())
    found = sectors(prepared)
    assert found["key", "read"] == found["value", "read"] == (2, 2)
    assert found["k_cache", "write"] == (4, 2)  # 32 elements are 4 pieces of 16 bytes
    assert found["v_cache", "write"] == (32, 2)


def test_a_warp_copies_512_bytes_in_a_row() -> None:
    made = pool(LAYOUT)
    found = sectors(prepare_copy_blocks(made.k, made.v, [(1, 2)])[0])
    for name in ("k_cache", "v_cache"):
        assert found[name, "read"] == found[name, "write"] == (16, 16)
