"""In large tensors an index times a stride passes 2**31: the product needs 64 bits.

Gigabytes are reserved here, and a few pages of them are used.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pa_tutorial.checks.cases import CASES
from tests.kernels.kernel_inputs import (
    arguments,
    prepare_naive,
    prepare_v1,
    prepare_v1_vector,
    prepare_v2,
    problem,
)

BLOCK_STRIDE = 2**29  # block 5 of the worked example begins behind 2**31
TWO_SEQUENCES = problem(num_heads=1, num_kv_heads=1, dtype=torch.float16)
# Else 8 bytes are remembered for each element, and what is written is copied first.
SPARSE = {"checks": ("memory", "sync"), "order": "forward"}


def large_pool() -> dict[str, object]:
    """The worked example, its blocks 2**29 elements apart; between K and V of a block is a gap."""
    inputs = arguments(CASES["decode/worked_example"])
    num_blocks, block = len(inputs["k_cache"]), inputs["k_cache"][0].numel()
    pool = torch.empty((num_blocks - 2) * BLOCK_STRIDE + 2 * block, dtype=inputs["q"].dtype)
    for number, name in enumerate(("k_cache", "v_cache")):
        cache = inputs[name]
        shape = (num_blocks - 1, *cache.shape[1:])
        inputs[name] = pool.as_strided(shape, (BLOCK_STRIDE, *cache.stride()[1:]), number * block)
        for used in inputs["block_tables"][0, :2].tolist():
            inputs[name][used] = cache[used]
    return inputs


def far_queries() -> dict[str, object]:
    """Two sequences; the queries of the second begin at 2**31."""
    inputs = arguments(TWO_SEQUENCES)
    q = inputs["q"]
    memory = torch.empty(2**31 + q[0].numel(), dtype=q.dtype)
    inputs["q"] = memory.as_strided(q.shape, (2**31, *q.stride()[1:])).copy_(q)
    return inputs


def far_partitions() -> Tensor:
    """Two sequences by v2; what the second one's partitions leave begins at 2**31."""
    prepared = prepare_v2(**arguments(TWO_SEQUENCES), partition_size=16)
    far = {}
    for name, left in prepared.partitions.arguments.items():
        if name in prepared.partitions.unwritten:
            memory = torch.empty(2**31 + left[0].numel(), dtype=left.dtype)
            far[name] = memory.as_strided(left.shape, (2**31, *left.stride()[1:]))
    for part in (prepared.partitions, prepared.reduce):
        replace(part, arguments=part.arguments | far, unwritten=()).simulate(**SPARSE)
    return prepared.out


@pytest.mark.parametrize("far", [large_pool, far_queries])
def test_what_lies_behind_two_billion_elements_is_read(far: Callable) -> None:
    near = arguments(CASES["decode/worked_example"] if far is large_pool else TWO_SEQUENCES)
    assert torch.equal(prepare_naive(**far()).run(), prepare_naive(**near).run())
    for prepare in (prepare_v1, prepare_v1_vector):
        found, wanted = (prepare(**inputs) for inputs in (far(), near))
        assert torch.equal(found.run(), wanted.run())


def test_partitions_behind_two_billion_elements_are_written_and_read() -> None:
    near = prepare_v2(**arguments(TWO_SEQUENCES), partition_size=16).run()
    assert torch.equal(far_partitions(), near)
