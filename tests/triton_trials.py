"""What the cases of the ladder cannot ask of the Triton stage; wrong examples are tried on it too.

A trial says what is wrong with the pa_tutorial that can be imported when it runs; "" for nothing.
"""

import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

TRITON_LAUNCH = "triton_launch"  # what tests/wrong/ calls them
WIDTHS = (1, 2, 3, 15, 16, 17, 32, 300)
BLOCK_STRIDE = 2**30  # block 4 begins at 2**32: with 32 bits, where block 0 begins


def one_compilation_for_all_tables() -> str:
    """Tables of any width: 1 and multiples of 16 are what Triton treats apart."""
    launch = importlib.import_module("pa_tutorial.kernels.triton_launch")
    compiled = importlib.import_module("pa_tutorial.kernels.triton_compiled")
    q, cache = torch.zeros(1, 2, 32), torch.zeros(4, 2, 16, 32)

    def calls(width: int) -> tuple[object, object]:
        tables = torch.zeros(1, width, dtype=torch.int32)
        lens = torch.tensor([16 * width], dtype=torch.int32)
        ready = launch.prepare_triton(q, cache, cache, tables, lens, 0.1, partition_size=16)
        return ready.partitions, ready.reduce

    for of_one_kernel in zip(*map(calls, WIDTHS), strict=True):
        times = compiled.num_compilations(list(of_one_kernel))
        if times != 1:
            name = of_one_kernel[0].kernel.__name__
            return f"{name} is compiled {times} times for tables {WIDTHS} wide"
    return ""


def a_block_behind_four_billion_elements() -> str:
    """The same blocks near and far; 8 GiB of a file are reserved, and a few pages are used."""
    problem = importlib.import_module("pa_tutorial.cases").CASES["decode/worked_example"]
    launch = importlib.import_module("pa_tutorial.kernels.triton_launch")
    inputs = problem.paged("plain")
    block_tables = torch.tensor([[4, 1]], dtype=torch.int32)

    def decode(k_cache: Tensor, v_cache: Tensor) -> Tensor:
        others = block_tables, inputs.seq_lens, inputs.scale
        return launch.paged_attention_triton(inputs.q, k_cache, v_cache, *others)

    near = [torch.randn(5, *cache.shape[1:]).half() for cache in (inputs.k_cache, inputs.v_cache)]
    block = near[0][0].numel()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "pool")
        size = 4 * BLOCK_STRIDE + 2 * block
        pool = torch.from_file(path, shared=True, size=size, dtype=torch.float16)
        shape, strides = near[0].shape, (BLOCK_STRIDE, *near[0].stride()[1:])
        far = [pool.as_strided(shape, strides, number * block) for number in range(2)]
        for there, here in zip(far, near, strict=True):
            there.copy_(here)
        same = torch.equal(decode(*far), decode(*near))
        del far, pool, there
    return "" if same else "blocks behind 2**31 elements are not read where they are"


BESIDE = ("one_token", "gqa_alibi", "tail", "head_size_80", "strided_q_float16", "bfloat16")


def beside_the_cache_is_equal_to_in_it() -> str:
    """The slots of the newest tokens are NaN while these are given beside the cache."""
    cases = importlib.import_module("pa_tutorial.cases").CASES
    launch = importlib.import_module("pa_tutorial.kernels.triton_launch")
    for name in BESIDE:
        problem = cases[f"decode/{name}"]
        inputs = problem.paged("plain")
        caches = inputs.k_cache, inputs.v_cache
        sizes = {"partition_size": problem.block_size, "tile_size": 16}
        others = inputs.scale, inputs.alibi_slopes
        lens = inputs.seq_lens
        expected = launch.paged_attention_triton(
            inputs.q, *caches, inputs.block_tables, lens, *others, **sizes
        )
        last = lens.long() - 1
        blocks = inputs.block_tables[torch.arange(len(lens)), last // problem.block_size].long()
        newest = [cache[blocks, :, last % problem.block_size].clone() for cache in caches]
        for cache in caches:
            cache[blocks, :, last % problem.block_size] = torch.nan
        out = launch.paged_attention_triton_beside(
            inputs.q, *newest, *caches, inputs.block_tables, lens - 1, *others, **sizes
        )
        tolerance = 2 * torch.finfo(out.dtype).eps
        if not torch.allclose(out, expected, rtol=tolerance, atol=1e-6 + tolerance / 8):
            return f"{name}: beside the cache, the newest token gives another result"
    return ""


TRIALS: dict[str, Callable[[], str]] = {
    trial.__name__: trial
    for trial in (
        one_compilation_for_all_tables,
        a_block_behind_four_billion_elements,
        beside_the_cache_is_equal_to_in_it,
    )
}
