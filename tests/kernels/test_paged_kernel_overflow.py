"""In large tensors an index times a stride passes 2**31: the product needs 64 bits.

Gigabytes are reserved here, and a few pages of them are used.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from kernel_inputs import arguments, problem
from torch import Tensor
from wrong_examples import WrongExample, applied

from pa_tutorial.kernels import launch
from pa_tutorial.kernels.running import as_stored
from pa_tutorial.text_changes import Change
from pa_tutorial.walk.cases import CASES

BLOCK_STRIDE = 2**29  # block 5 of the worked example begins behind 2**31
TWO_SEQUENCES = problem(num_heads=1, num_kv_heads=1, dtype=torch.float16)
# Else 8 bytes are remembered for each element, and what is written is copied first.
SPARSE = {"checks": ("memory", "sync"), "order": "forward"}
ROOM = 2**26  # partitions of a sequence: the outputs of the second begin at 2**26 * 32 = 2**31
KERNEL = "kernels/paged_attention.py"
WITH_ROOM = Change(KERNEL, "= cuda.gridDim.z", f"= {ROOM}")


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


def one_kernel(arguments: dict[str, object], name: str, package: ModuleType) -> Tensor:
    options = {"loads": package.vector_loads} if name == "v1_vector" else {}
    prepared = getattr(package, f"prepare_{name.removesuffix('_vector')}")(**arguments, **options)
    prepared.simulate()
    return prepared.out


def far_partitions(package: ModuleType) -> Tensor:
    """Two sequences by v2, as if there were room for ROOM partitions of each."""
    prepared = package.prepare_v2(**arguments(TWO_SEQUENCES), partition_size=16)
    num_places, head_size = ROOM + 1, TWO_SEQUENCES.head_size  # the second has one partition
    places = {name: torch.empty(num_places) for name in ("exp_sums", "max_logits")}
    tmp_out = as_stored(torch.empty(num_places * head_size, dtype=torch.float16))
    written = prepared.partitions.arguments | places | {"out": tmp_out}
    replace(prepared.partitions, arguments=written, unwritten=()).simulate(**SPARSE)
    read = prepared.reduce.arguments | places | {"tmp_out": tmp_out, "max_num_partitions": ROOM}
    replace(prepared.reduce, arguments=read).simulate(**SPARSE)
    return prepared.out


@pytest.mark.parametrize("far", [large_pool, far_queries])
@pytest.mark.parametrize("name", ["naive", "v1", "v1_vector"])
def test_what_lies_behind_two_billion_elements_is_read(far: Callable, name: str) -> None:
    near = arguments(CASES["decode/worked_example"] if far is large_pool else TWO_SEQUENCES)
    assert torch.equal(one_kernel(far(), name, launch), one_kernel(near, name, launch))


def out_of(run: Callable[[ModuleType], Tensor], *changes: Change) -> Tensor:
    """What it computes with our code changed."""
    with applied(WrongExample("far", "why", changes, fails=(), passes=())):
        return run(importlib.import_module("pa_tutorial.kernels.launch"))


def test_partitions_behind_two_billion_elements_are_written_and_read() -> None:
    near = launch.paged_attention_v2(**arguments(TWO_SEQUENCES), partition_size=16)
    assert torch.equal(out_of(far_partitions, WITH_ROOM), near)


def large_pool_by_v1(package: ModuleType) -> Tensor:
    return one_kernel(large_pool(), "v1", package)


def far_queries_by_v1(package: ModuleType) -> Tensor:
    return one_kernel(far_queries(), "v1", package)


BLOCK = "physical_block_number * kv_block_stride"
OUT = "int64(seq_idx) * num_heads * max_num_partitions * HEAD_SIZE"
TMP_OUT = "partitions_ptr * HEAD_SIZE"
# What is computed, where, the lines, and the product in them
PRODUCTS = {
    "k": (large_pool_by_v1, KERNEL, f"(\n                    {BLOCK}", BLOCK),
    "v": (large_pool_by_v1, KERNEL, f"v_ptr = {BLOCK}", BLOCK),
    "q": (far_queries_by_v1, KERNEL, "int64(seq_idx) * q_stride", "int64(seq_idx) * q_stride"),
    "out": (far_partitions, KERNEL, OUT, OUT),
    "tmp_out": (far_partitions, "kernels/reduce.py", TMP_OUT, TMP_OUT),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_32_bits_leaves_the_tensor(name: str) -> None:
    run, file, old, product = PRODUCTS[name]
    in_32_bits = Change(file, old, old.replace(product, f"int32({product})"))
    changes = (in_32_bits, WITH_ROOM) if run is far_partitions else (in_32_bits,)
    with pytest.raises(Exception, match=r"^memory: "):  # SimtError, of the changed package
        out_of(run, *changes)
