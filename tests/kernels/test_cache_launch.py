"""Launches of the cache kernels: what they refuse, and what they look at."""

from collections.abc import Callable

import pytest
import torch
from kernel_inputs import nothing_runs, shifted, spread  # noqa: F401
from test_cache_kernels import F16, new_tokens, pool
from torch import Tensor

from pa_tutorial import arguments
from pa_tutorial.kernels.launch import copy_blocks, reshape_and_cache_by_kernel
from pa_tutorial.kernels.prepare_cache import prepare_copy_blocks, prepare_reshape_and_cache
from pa_tutorial.paging.errors import UnknownBlock
from pa_tutorial.paging.layouts import VllmLayout

LAYOUT = VllmLayout(6, num_kv_heads=2, head_size=32, block_size=16, dtype=F16)


# What is refused ------------------------------------------------------------------------------


def tokens() -> dict[str, Tensor]:
    """The arguments of reshape_and_cache by name."""
    key, value, slots = new_tokens(LAYOUT)
    k_cache, v_cache = LAYOUT.empty()
    names = ("key", "value", "k_cache", "v_cache", "slot_mapping")
    return dict(zip(names, (key, value, k_cache, v_cache, slots), strict=True))


WRONG = [  # the argument, how it is changed, and a piece of the message
    ("slot_mapping", lambda s: s.clamp(0, 7), "holds a slot twice"),
    ("key", lambda t: t.float(), "key is torch.float32; it must be .*float16"),
    ("key", lambda t: t.mT.contiguous().mT, r"key.stride\(\)\[-2:\] is \(1, 2\); .* \(32, 1\)"),
    ("k_cache", lambda t: t[:, :, 0], "k_cache.shape is .* 5 dimensions: vLLM"),
    ("k_cache", lambda t: t.reshape(6, 2, 8, 16, 4), r"k_cache.shape\[4\] is 4; .* x = 8"),
    ("k_cache", lambda t: t.to(torch.int16), "k_cache.dtype is torch.int16"),
    ("k_cache", lambda t: t[:0], r"k_cache has shape \[0, .*every size must"),
    ("k_cache", spread, r"k_cache.stride\(\)\[-5:\] is"),
    ("v_cache", lambda t: t[1:], r"v_cache.shape is \[5, .* \[6, 2, 32, 16\]"),
    ("v_cache", lambda t: t.float(), "v_cache.dtype is torch.float32; .*float16"),
    ("v_cache", spread, r"v_cache.stride\(\)\[-4:\] is"),
    ("value", lambda t: t.to("meta"), "^value.device is meta; it must be cpu"),
    ("slot_mapping", lambda t: t.tolist(), "^slot_mapping is of type list; it must be a torch.T"),
]


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(("name", "change", "message"), WRONG, ids=[one[2] for one in WRONG])
def test_wrong_tensors_of_tokens_are_refused(name: str, change: Callable, message: str) -> None:
    tensors = tokens()
    with pytest.raises((ValueError, TypeError), match=message):
        reshape_and_cache_by_kernel(**{**tensors, name: change(tensors[name])})


WRONG_COPIES = [  # how the caches of two layers are changed, the pairs, and the message
    (lambda k, v: ([], []), [(1, 2)], "k_caches is empty; .* one layer or more"),
    (lambda k, v: (k, v[:1]), [(1, 2)], r"len\(v_caches\) is 1; it must be 2"),
    (lambda k, v: (k, [v[0], v[1][1:]]), [(1, 2)], r"v_caches\[1\].shape is \[5, .*k_caches\[1\]"),
    (
        lambda k, v: ([k[0], k[1].repeat(2, 1, 1, 1, 1)], [v[0], v[1].repeat(2, 1, 1, 1)]),
        [(1, 2)],
        r"k_caches\[1\] is .*num_blocks=12.* must be .*num_blocks=6.*, as k_caches\[0\]",
    ),
    (lambda k, v: (k, [v[0].to("meta"), v[1]]), [(1, 2)], r"v_caches\[0\].device is meta"),
    (lambda k, v: (k, [v[0], shifted(v[1])]), [(1, 2)], r"v_caches\[1\].data_ptr\(\) is 4 bytes"),
    (lambda k, v: (k, v), [(1, 2), (-1, 2)], "source block is -1; the pool has 0 to 5"),
    (lambda k, v: (k, v), torch.tensor([(2, 6)]), "destination block is 6; the pool has 0 to 5"),
    (lambda k, v: (k, v), [(0.5, 2)], r"pairs is torch.float32 with shape \[1, 2\]; .* int64"),
    (lambda k, v: (k, v), [(1, 2, 3)], r"pairs is torch.int64 with shape \[1, 3\]; .*pairs, 2\]"),
    (lambda k, v: (k, v), torch.zeros(1, 2).long().to("meta"), "pairs.device is meta; .* cpu"),
]


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("change", "pairs", "message"), WRONG_COPIES, ids=[one[2] for one in WRONG_COPIES]
)
def test_wrong_copies_are_refused(change: Callable, pairs: object, message: str) -> None:
    made = pool(LAYOUT)
    with pytest.raises((ValueError, UnknownBlock), match=message):
        copy_blocks(*change(made.k, made.v), pairs)


# On a GPU ------------------------------------------------------------------------------------


def test_no_number_on_a_gpu_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on torch's meta device have no numbers: whoever looks at one gets an error."""
    monkeypatch.setattr(arguments, "DEVICES", ("cpu", "cuda", "meta"))
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
