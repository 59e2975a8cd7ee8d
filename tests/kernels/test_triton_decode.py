"""The Triton kernels in the interpreter: sizes and numbers that the ladder does not ask for, and
which elements they read and write."""

from collections import Counter
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from pa_tutorial.kernels.triton.backend import PARTITIONS_AT_ONCE, why_absent
from pa_tutorial.paging.layouts import DTYPES
from tests.kernels.kernel_inputs import prepare, require_right, step
from tests.triton_trials import TRIALS

if why_absent() is None:
    from triton.runtime.interpreter import InterpreterBuilder

pytestmark = pytest.mark.triton


@pytest.mark.parametrize(("head_size", "dtype"), [*zip((1, 33, 129), DTYPES, strict=True)])
def test_any_head_size(head_size: int, dtype: torch.dtype) -> None:
    arguments = step(head_size=head_size // 8 * 8 + 8, dtype=dtype)
    for name in ("q", "k_cache", "v_cache"):
        arguments[name] = arguments[name][..., :head_size].contiguous()
    require_right(prepare("triton", **arguments).run(), arguments)


# A tile is part of a block, or has several, or ends within one; a partition may begin and end
# within a block, and within a tile.
@pytest.mark.parametrize(
    ("block_size", "tile_size", "partition_size"),
    [(1, 64, 512), (5, 16, 512), (16, 16, 512), (24, 32, 512), (24, 256, 512)]
    + [(8, 16, size) for size in (7, 16, 2**30)],
)
def test_any_block_tile_and_partition_size(
    block_size: int, tile_size: int, partition_size: int
) -> None:
    arguments = step(seq_lens=(37, 1, 24), block_size=block_size, alibi=True)
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


# What is read and written: a mask too wide gives no wrong result, until the cache is the last thing
# in memory.


def addresses(tensor: Tensor) -> Tensor:
    """Of every element, in the shape of the tensor."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    places = torch.arange(count).as_strided(tensor.shape, tensor.stride())
    return tensor.data_ptr() + places * tensor.element_size()


def all_of(*tensors: Tensor) -> set[int]:
    return {address for tensor in tensors for address in tensor.flatten().tolist()}


def recording(operation: str, mask_at: int, counter: Counter[int]) -> mock.patch:
    """Counts the addresses that kernels read or write in the interpreter, masked ones not."""
    original = getattr(InterpreterBuilder, operation)

    def access(builder: object, pointers: object, *arguments: object) -> object:
        mask = np.broadcast_to(arguments[mask_at].data, pointers.data.shape)
        counter.update(pointers.data[mask].tolist())
        return original(builder, pointers, *arguments)

    return mock.patch.object(InterpreterBuilder, operation, access)


STEPS = {
    "padded": {"num_heads": 6, "head_size": 24, "alibi": True},
    "gaps": {"seq_lens": (15, 1, 7), "num_heads": 3, "num_kv_heads": 1, "gaps": True},
    "float16": {"seq_lens": (8, 30), "block_size": 5, "strided_q": True, "dtype": torch.float16},
}


@pytest.mark.parametrize("changes", STEPS.values(), ids=STEPS)
def test_a_step_reads_and_writes_what_it_has_to(changes: dict[str, object]) -> None:
    """Read: all tokens and nothing else, no free slot, no gap, nothing behind the end of a tensor;
    K and V once, by one program for all query heads of its KV head, which is what saves memory
    traffic. Written, once each: the output and what is merged; nothing for a partition without a
    token. The slopes and what the first kernel hands to the second are tensors of the launch."""
    arguments, read, written = step(**changes), Counter(), Counter()
    q, k_cache, v_cache, block_tables, seq_lens = [*arguments.values()][:5]
    prepared = prepare("triton", **arguments, partition_size=7, tile_size=16)
    with (
        recording("create_masked_load", 0, read),
        recording("create_masked_store", 1, written),
    ):
        prepared.run()
    values, block_size = prepared.partitions.arguments, k_cache.shape[2]
    names = ("max_logits_ptr", "exp_sums_ptr", "tmp_out_ptr")
    cached, tables, merged = set(), set(), all_of(addresses(prepared.out))
    for sequence, length in enumerate(seq_lens.tolist()):
        tokens, row = torch.arange(length), block_tables[sequence]
        place = row[tokens // block_size].long(), slice(None), tokens % block_size
        cached |= all_of(addresses(k_cache)[place], addresses(v_cache)[place])
        tables |= all_of(addresses(row)[: -(-length // block_size)])
        partitions = [addresses(values[name])[sequence, :, : -(-length // 7)] for name in names]
        merged |= all_of(*partitions)
    given = all_of(*map(addresses, (q, seq_lens, values["alibi_slopes_ptr"])))
    assert read.keys() - written.keys() == cached | tables | given, "what is read"
    assert {read[address] for address in cached} == {1}, "K and V are read once"
    assert written.keys() == merged, "what is written"
    assert {*written.values()} == {1}
