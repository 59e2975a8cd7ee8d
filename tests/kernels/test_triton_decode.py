"""The Triton kernels in the interpreter: sizes and numbers that the ladder does not ask for."""

import pytest
import torch

from pa_tutorial.kernels.triton.backend import (
    PARTITIONS_AT_ONCE,
    paged_attention_triton,
)
from pa_tutorial.paging.layouts import DTYPES
from tests.kernels.kernel_inputs import prepare_triton, require_right, step
from tests.triton_trials import TRIALS

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_size", [1, 5, 33, 129])
def test_any_head_size(head_size: int, dtype: torch.dtype) -> None:
    arguments = step(head_size=head_size // 8 * 8 + 8, dtype=dtype)
    for name in ("q", "k_cache", "v_cache"):
        arguments[name] = arguments[name][..., :head_size].contiguous()
    require_right(paged_attention_triton(**arguments), arguments)


# A tile is part of a block, or has several, or ends within one; a partition may begin and end
# within a block, and within a tile.
TILES = [
    ({"seq_lens": (70, 24), "block_size": block_size}, {"tile_size": tile_size})
    for block_size in (1, 5, 16, 24)
    for tile_size in (16, 32, 64, 256)
]
PARTITIONS = [
    ({"seq_lens": (37, 1, 8), "alibi": True}, {"partition_size": size, "tile_size": 16})
    for size in (1, 7, 16, 1000, 2**30)
]


@pytest.mark.parametrize(("changes", "sizes"), TILES + PARTITIONS, ids=str)
def test_any_block_tile_and_partition_size(changes: dict, sizes: dict) -> None:
    arguments = step(**changes)
    require_right(prepare_triton(**arguments, **sizes).run(), arguments)


@pytest.mark.parametrize("num_partitions", [1, 2, 15, 16, 17, 33])
def test_any_number_of_partitions_is_merged(num_partitions: int) -> None:
    """The second kernel takes 16 at once. The scores rise, so the last ones have the weight."""
    assert PARTITIONS_AT_ONCE == 16
    arguments = step(seq_lens=(4 * num_partitions - 1,), num_heads=2, num_kv_heads=1, alibi=True)
    arguments["alibi_slopes"].fill_(0.5)
    prepared = prepare_triton(**arguments, partition_size=4, tile_size=16)
    assert prepared.partitions.grid == (1, 1, num_partitions)
    require_right(prepared.run(), arguments)


@pytest.mark.parametrize("name", TRIALS)
def test_every_trial_finds_nothing_wrong(name: str) -> None:
    """The wrong examples are tried on them too: see tests/wrong_examples.py."""
    assert TRIALS[name]() == ""


def test_sizes_reach_the_kernels_as_a_gpu_would_be_asked_for_them() -> None:
    sizes = {"tile_size": 32, "num_warps": 8, "num_stages": 5}
    prepared = prepare_triton(**step(num_heads=6, head_size=80), **sizes)
    call = prepared.partitions
    asked = {"num_warps": 8, "num_stages": 5, "TILE_SIZE": 32, "enable_fp_fusion": True}
    assert asked.items() <= call.for_gpu.items()
    assert call.constants["NUM_QUERIES_PADDED"] == 4, "three query heads, and no more than needed"
