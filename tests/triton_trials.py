"""What the cases of the ladder cannot ask of the Triton stage; wrong examples are tried on it too.

A trial says what is wrong with the pa_tutorial that can be imported when it runs; "" for nothing.
"""

import importlib
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

TRITON_LAUNCH = "triton_launch"  # what tests/wrong/ calls them
WIDTHS = (1, 2, 3, 15, 16, 17, 32, 300)
STRIDE = 2**30  # 2 * STRIDE has 32 bits: as an int32 it is negative, and 4 * STRIDE is 0


def prepare(*values: object, partition_size: int = 512, **named: object) -> object:
    """A launch of the Triton backend that can be imported now, from the fields of a DecodeStep."""
    launch = importlib.import_module("pa_tutorial.kernels.triton.backend")
    step = launch.DecodeStep(*values, **named)
    return launch.triton_backend.prepare(step, partition_size=partition_size)


def one_compilation_for_all_tables() -> str:
    """Tables of any width: 1 and multiples of 16 are what Triton treats apart."""
    compiled = importlib.import_module("pa_tutorial.kernels.triton.compiled")
    q, cache = torch.zeros(1, 2, 32), torch.zeros(4, 2, 16, 32)

    def calls(width: int) -> tuple[object, object]:
        tables = torch.zeros(1, width, dtype=torch.int32)
        lens = torch.tensor([16 * width], dtype=torch.int32)
        prepared = prepare(q, cache, cache, tables, lens, 0.1, partition_size=16)
        return prepared.partitions, prepared.reduce

    for of_one_kernel in zip(*map(calls, WIDTHS), strict=True):
        times = compiled.num_compilations(list(of_one_kernel))
        if times != 1:
            name = of_one_kernel[0].kernel.__name__
            return f"{name} is compiled {times} times for tables {WIDTHS} wide"
    return ""


def far(tensor: Tensor, dim: int, file: Path) -> Tensor:
    """A copy whose places along a dimension lie STRIDE elements apart. Of a file, gigabytes are
    reserved and a few pages used."""
    size = (tensor.shape[dim] - 1) * STRIDE + tensor.numel()
    pool = torch.from_file(str(file), shared=True, size=size, dtype=tensor.dtype)
    strides = [STRIDE if d == dim else stride for d, stride in enumerate(tensor.stride())]
    return pool.as_strided(tensor.shape, strides).copy_(tensor)


def far_is_near(dims: dict[str, int], num_seqs: int, num_heads: int, num_blocks: int) -> str:
    """Whether a decode step gives the same with these arguments STRIDE apart along dims. An
    offset that wrapped leads to another place, or out of the tensors. Each sequence has two blocks:
    the last of the pool, and block 1."""
    interpreter = importlib.import_module("pa_tutorial.kernels.triton.interpreter")
    shape = num_blocks, num_heads, 8, 16
    step = {
        "q": torch.randn(num_seqs, num_heads, 16).half(),
        "k_cache": torch.randn(shape).half(),
        "v_cache": torch.randn(shape).half(),
        "block_tables": torch.tensor([[num_blocks - 1, 1]] * num_seqs, dtype=torch.int32),
        "seq_lens": torch.full((num_seqs,), 11, dtype=torch.int32),
        "scale": 0.5,
    }
    near = prepare(**step).run()
    with tempfile.TemporaryDirectory() as folder:
        apart = {name: far(step[name], dim, Path(folder) / name) for name, dim in dims.items()}
        prepared = prepare(**step | apart)
        try:
            same = torch.equal(prepared.run(), near)
        except interpreter.MemoryFault:
            same = False
        finally:
            del apart, prepared
    return "" if same else f"{', '.join(dims)} behind 2**31 elements: not read where they are"


TRIALS: dict[str, Callable[[], str]] = {
    "one_compilation_for_all_tables": one_compilation_for_all_tables,
    "a_block_behind_four_billion_elements": partial(
        far_is_near, {"k_cache": 0, "v_cache": 0}, num_seqs=1, num_heads=2, num_blocks=5
    ),
    "a_head_behind_two_billion_elements": partial(
        far_is_near, {"k_cache": 1, "v_cache": 1}, num_seqs=1, num_heads=3, num_blocks=3
    ),
    "a_query_behind_two_billion_elements": partial(
        far_is_near, {"q": 0}, num_seqs=3, num_heads=2, num_blocks=3
    ),
}
