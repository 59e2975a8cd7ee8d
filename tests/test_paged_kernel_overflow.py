"""In a large pool, block number times stride passes 2**31: the product needs 64 bits."""

import importlib

import pytest
import torch
from torch import Tensor
from wrong_examples import Change, WrongExample, applied

from pa_tutorial.kernels.launch import Launch, prepare_naive, prepare_v1
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.walk.cases import CASES
from pa_tutorial.walk.decode_inputs import PagedInputs

KERNEL = "kernels/paged_attention.py"
BLOCK_STRIDE = 2**29  # block 5 of the worked example begins behind 2**31


def arguments(inputs: PagedInputs, k_cache: Tensor, v_cache: Tensor) -> tuple:
    others = inputs.block_tables, inputs.seq_lens, inputs.scale, inputs.alibi_slopes
    return inputs.q, k_cache, v_cache, *others


def in_a_large_pool() -> tuple:
    """The worked example, its blocks 2**29 elements apart; between K and V of a block is a gap.

    5 GiB are reserved, and a few pages of them are used.
    """
    inputs = CASES["decode/worked_example"].paged("vllm")
    num_blocks, block = len(inputs.k_cache), inputs.k_cache[0].numel()
    pool = torch.empty((num_blocks - 2) * BLOCK_STRIDE + 2 * block, dtype=inputs.q.dtype)
    caches = []
    for number, cache in enumerate((inputs.k_cache, inputs.v_cache)):
        shape = (num_blocks - 1, *cache.shape[1:])
        far = pool.as_strided(shape, (BLOCK_STRIDE, *cache.stride()[1:]), number * block)
        for used in inputs.block_tables[0, :2].tolist():
            far[used] = cache[used]
        caches.append(far)
    return arguments(inputs, *caches)


def output(ready: Launch, **options: object) -> Tensor:
    ready.simulate(**options)
    return ready.out


def prepare_vectors(*tensors: object) -> Launch:
    return prepare_v1(*tensors, loads=vector_loads)


@pytest.mark.parametrize("prepare", [prepare_naive, prepare_v1, prepare_vectors])
def test_a_block_behind_the_first_two_billion_elements_is_read(prepare) -> None:
    inputs = CASES["decode/worked_example"].paged("vllm")
    expected = output(prepare(*arguments(inputs, inputs.k_cache, inputs.v_cache)))
    assert torch.equal(output(prepare(*in_a_large_pool())), expected)


@pytest.mark.parametrize(
    "old",
    [
        "(\n                    physical_block_number * kv_block_stride",
        "v_ptr = physical_block_number * kv_block_stride",
    ],
    ids=["K", "V"],
)
def test_an_offset_of_32_bits_leaves_the_pool(old: str) -> None:
    product = "physical_block_number * kv_block_stride"
    change = Change(KERNEL, old, old.replace(product, f"int32({product})"))
    with applied(WrongExample("32_bits", "why", (change,), fails=(), passes=())):
        launch = importlib.import_module("pa_tutorial.kernels.launch")
        simt = importlib.import_module("pa_tutorial.simt")
        ready = launch.prepare_v1(*in_a_large_pool())
        with pytest.raises(simt.SimtError, match=r"^memory: "):
            ready.simulate()
