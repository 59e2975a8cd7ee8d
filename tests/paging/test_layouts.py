"""Cache layouts: every number has one place, and writing, reading and kernels agree on it."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from pa_tutorial.paging.layouts import (
    DTYPES,
    LAYOUTS,
    CacheLayout,
    by_token,
    gather,
    reshape_and_cache,
    slot_mapping,
)

EACH_LAYOUT = pytest.mark.parametrize("name", LAYOUTS)
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SIZES = {"num_blocks": 5, "num_kv_heads": 2, "head_size": 16, "block_size": 4}
PLACE = {"block": 4, "head": 1, "token": 3, "dim": 15}  # the last


def make(name: str, dtype: torch.dtype = torch.float32, **changes: int) -> CacheLayout:
    return LAYOUTS[name](**(SIZES | changes), dtype=dtype)


def tokens_for(layout: CacheLayout, count: int) -> tuple[Tensor, Tensor]:
    """key and value: views, as after one projection for both."""
    fused = torch.randn(count, 4, 16, generator=torch.Generator().manual_seed(0))
    return fused.to(layout.dtype).chunk(2, dim=1)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Also where they are NaN."""
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@EACH_LAYOUT
@EACH_DTYPE
@pytest.mark.parametrize("side", ["k", "v"])
def test_each_number_has_the_element_of_the_formula_to_itself(name, dtype, side) -> None:
    layout = make(name, dtype)
    cache = dict(zip("kv", layout.empty(), strict=True))[side]
    assert cache.nbytes == 5 * layout.bytes_per_block // 2
    place_of, element_of = getattr(layout, f"{side}_place"), getattr(layout, f"{side}_element")
    elements = []
    for where in product(range(5), range(2), range(4), range(16)):  # block, head, token, dim
        place, element = place_of(*where), element_of(*where)
        assert cache[place].data_ptr() - cache.data_ptr() == element * dtype.itemsize, where
        elements.append(element)
    assert sorted(elements) == list(range(cache.numel()))


@EACH_LAYOUT
@EACH_DTYPE
def test_each_number_is_written_to_its_place_and_nothing_else_is_touched(name, dtype) -> None:
    layout = make(name, dtype)
    caches, expected = layout.empty(), layout.empty()
    for slots in ([13, 2, -1, 7, 0], [-1, -1], [*range(19, -1, -1)]):
        tokens = tokens_for(layout, len(slots))
        for (token, slot), head, dim in product(enumerate(slots), range(2), range(16)):
            where = (slot // 4, head, slot % 4, dim)
            if slot != -1:
                expected[0][layout.k_place(*where)] = tokens[0][token, head, dim]
                expected[1][layout.v_place(*where)] = tokens[1][token, head, dim]
        reshape_and_cache(*tokens, *caches, torch.tensor(slots))
        assert all(map(same_bits, caches, expected))


def test_slots_follow_the_table_and_padding_behind_the_last_block_is_ignored() -> None:
    assert slot_mapping([5, 2], range(11), 8).tolist() == [*range(40, 48), 16, 17, 18]
    assert slot_mapping(torch.tensor([5, 2]).int(), [8, 7], 8).tolist() == [16, 47]
    assert slot_mapping([5, -1], [3], 4).tolist() == [23]
    assert len(gathered([1, 3], 4)[0]) == 4


# Refusals


def of_inference_mode(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.clone()


@EACH_LAYOUT
@pytest.mark.parametrize(
    ("argument", "change", "message"),
    [
        ("slot_mapping", lambda slots: slots - 4, "holds -3; it must be -1, or 0 to 19"),
        ("slot_mapping", lambda slots: slots + 13, "holds 20; it must be -1, or 0 to 19"),
        ("slot_mapping", lambda slots: slots.where(slots != 7, 1), "holds a slot twice"),
        ("value", lambda value: value[:, :1], r"\[3, 1, 16\]; .* \[3, 2, 16\]"),
        ("value", Tensor.half, "is torch.float16"),
        ("k_cache", lambda cache: cache.clone().requires_grad_(), ".requires_grad is True"),
        ("v_cache", lambda cache: cache[:1].expand(cache.shape), r".stride\(\) is \(0, "),
        ("v_cache", of_inference_mode, " is of torch.inference_mode"),
    ],
)
def test_a_refused_write_changes_no_bit(name, argument: str, change: Callable, message) -> None:
    layout = make(name)
    key, value = tokens_for(layout, 3)
    given = {"key": key, "value": value, "slot_mapping": torch.tensor([1, -1, 7])}
    given |= dict(zip(("k_cache", "v_cache"), layout.empty(), strict=True))
    with pytest.raises(ValueError, match=rf"{argument}\b.*{message}"):
        reshape_and_cache(**given | {argument: change(given[argument])})
    assert given["k_cache"].isnan().all()
    assert given["v_cache"].isnan().all()


def gathered(table: list[int], seq_len: int, k_dtype: torch.dtype = torch.float32) -> list[Tensor]:
    k_cache, v_cache = LAYOUTS["vllm"](3, 1, 8, 4).empty()
    return [*gather(k_cache.to(k_dtype), v_cache, torch.tensor(table), seq_len)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make("plain", torch.float16, head_size=12), "head_size is 12; .* x .*8 for"),
        (lambda: by_token(torch.ones(5, 2, 4, 16), torch.ones(5, 2, 16, 4)), "v_cache is"),
        (lambda: by_token(torch.ones(5, 2, 64), torch.ones(5, 2, 16, 4)), "k_cache has shape"),
        (lambda: slot_mapping([5, 2], [3, 16], 8), "positions holds 16; .* must be 0 to 15"),
        (lambda: slot_mapping([-1], [3], 4), "block_table names block -1"),
        (lambda: gathered([1, 3], 5), "block_table names block 3; it must be 0 to 2"),
        (lambda: gathered([1], 4, torch.half), "v_cache is .*float32; .* be .*float16"),
        *(
            (lambda axis=axis, end=end: make("plain").k_place(**PLACE | {axis: end}), f"{axis} is")
            for axis, end in {"block": 5, "head": 2, "token": 4, "dim": 16}.items()
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
