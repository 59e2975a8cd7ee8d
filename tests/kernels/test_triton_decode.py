"""The Triton kernels in the interpreter, with sizes that the ladder does not ask for."""

import pytest
import torch

from pa_tutorial.kernels.triton.backend import PARTITIONS_AT_ONCE
from tests.kernels.kernel_inputs import prepare, require_right, step
from tests.triton_trials import TRIALS

pytestmark = pytest.mark.triton


# A tile is part of a block, or has several, or ends within one; a partition may begin and end
# within a block, and within a tile.
@pytest.mark.parametrize(
    ("head_size", "dtype", "block_size", "tile_size", "partition_size"),
    [
        (1, torch.float32, 1, 64, 512),
        (33, torch.float16, 5, 16, 512),
        (129, torch.bfloat16, 24, 32, 512),
        (16, torch.float32, 24, 256, 512),
        (16, torch.float32, 8, 16, 7),
        (16, torch.float32, 8, 16, 2**30),
    ],
)
def test_any_head_block_tile_and_partition_size(
    head_size: int, dtype: torch.dtype, block_size: int, tile_size: int, partition_size: int
) -> None:
    multiple = {"head_size": head_size // 8 * 8 + 8, "block_size": block_size}
    arguments = step(seq_lens=(37, 1, 24), alibi=True, dtype=dtype, **multiple)
    for name in ("q", "k_cache", "v_cache"):
        arguments[name] = arguments[name][..., :head_size].contiguous()
    sizes = {"tile_size": tile_size, "partition_size": partition_size}
    require_right(prepare("triton", **arguments, **sizes).run(), arguments)


@pytest.mark.parametrize("num_partitions", [2, 15, 16, 17, 33])
def test_any_number_of_partitions_is_merged(num_partitions: int) -> None:
    """The second kernel takes 16 at once. The scores rise, so the last ones have the weight."""
    assert PARTITIONS_AT_ONCE == 16
    arguments = step(seq_lens=(4 * num_partitions - 1,), num_heads=2, num_kv_heads=1, alibi=True)
    arguments["alibi_slopes"].fill_(0.5)
    prepared = prepare("triton", **arguments, partition_size=4, tile_size=16)
    assert prepared.partitions.grid == (1, 1, num_partitions)
    require_right(prepared.run(), arguments)


@pytest.mark.parametrize("name", TRIALS)
def test_every_trial_finds_nothing_wrong(name: str) -> None:
    """The wrong examples are tried on them too: see tests/wrong_examples.py."""
    assert TRIALS[name]() == ""


def test_sizes_reach_the_kernels_as_a_gpu_would_be_asked_for_them() -> None:
    sizes = {"tile_size": 32, "num_warps": 8, "num_stages": 5}
    call = prepare("triton", **step(num_heads=6, head_size=80), **sizes).partitions
    asked = {"num_warps": 8, "num_stages": 5, "TILE_SIZE": 32, "enable_fp_fusion": True}
    assert asked.items() <= call.for_gpu.items()
    assert call.constants["NUM_QUERIES_PADDED"] == 4, "three query heads, and no more than needed"
