"""In a large pool, block number times the size of a block passes 2**31: 64 bits are needed."""

import pytest
import torch
from torch import Tensor

from pa_tutorial.kernels import cache as kernels
from pa_tutorial.kernels import prepare_cache
from pa_tutorial.kernels.changed import changed
from pa_tutorial.kernels.prepare_cache import prepare_copy_blocks, prepare_reshape_and_cache
from pa_tutorial.paging.layouts import VllmLayout

F16 = torch.float16
# 2**11 elements a block: the last block begins at 2**31
LARGE = VllmLayout(2**20 + 1, num_kv_heads=1, head_size=128, block_size=16, dtype=F16)
NO_RACE = ("memory", "init", "sync")  # that check remembers 8 bytes for each element


def large_pool() -> tuple[Tensor, Tensor]:
    """4 GiB are reserved, and a few pages are used. V lies in the same memory, one block later."""
    block = 2**11
    memory = torch.empty(2**31 + 2 * block, dtype=F16)
    memory[: 2 * block] = memory[-2 * block :] = float("nan")
    return memory[:-block].view(LARGE.k_shape), memory[block:].view(LARGE.v_shape)


def write_at_the_end(k_cache: Tensor, v_cache: Tensor) -> bool:
    """Whether a token arrives in the last slot."""
    key, value = torch.randn(2, 1, 1, 128).half()
    slots = torch.tensor([LARGE.num_blocks * LARGE.block_size - 1])
    (prepared,) = prepare_reshape_and_cache(key, value, k_cache, v_cache, slots)
    prepared.simulate(checks=NO_RACE)
    found = k_cache[-1, 0, :, -1].flatten(), v_cache[-1, 0, :, -1]
    return torch.equal(torch.stack(found), torch.stack([key, value])[:, 0, 0])


def copy_to_the_end(k_cache: Tensor, v_cache: Tensor) -> bool:
    """Whether the first block arrives in the last."""
    k, v = torch.randn(2, 2**11).half()
    k_cache[0], v_cache[0] = k.view(k_cache[0].shape), v.view(v_cache[0].shape)
    (prepared,) = prepare_copy_blocks([k_cache], [v_cache], [(0, LARGE.num_blocks - 1)])
    prepared.simulate(checks=NO_RACE)
    return torch.equal(k_cache[-1].flatten(), k) and torch.equal(v_cache[-1].flatten(), v)


LAST_BLOCK = {
    "reshape_and_cache_kernel": (write_at_the_end, "(TOKEN_SIZE * BLOCK_SIZE)\n"),
    "copy_blocks_kernel": (copy_to_the_end, "pairs[pair_idx, 1] * BLOCK_NUMEL\n"),
}


@pytest.mark.parametrize("name", LAST_BLOCK)
def test_blocks_behind_two_billion_elements_need_64_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrives, product = LAST_BLOCK[name]
    assert arrives(*large_pool())
    in_31_bits = changed(getattr(kernels, name), product, f"{product[:-1]} & 0x7FFFFFFF\n")
    monkeypatch.setattr(prepare_cache, name, in_31_bits)
    assert not arrives(*large_pool())
