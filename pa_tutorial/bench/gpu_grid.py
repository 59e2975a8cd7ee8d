"""vLLM's grid of tests on a GPU: every dtype, head size and block size, with and without ALiBi.

Compared with attention in float64 on the same device. The sizes are vLLM's; the numbers are not:
q, K and V are N(0, 1), so that the weights differ; the lengths are spread evenly over their
logarithms, because a token that is lost shows only in a short sequence; and every slot that no
token owns is NaN.
Source: vLLM, tests/kernels/test_attention.py.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pa_tutorial.bench.batches import (
    Arguments,
    in_plain_layout,
    random_batch,
    reference,
    worst_error,
)
from pa_tutorial.bench.process_pool import WORKERS, run_in_pool
from pa_tutorial.kernels.geometry import BLOCK_SIZES, DTYPES, HEAD_SIZES
from pa_tutorial.kernels.launch import (
    paged_attention_v1,
    paged_attention_v1_vector,
    paged_attention_v2,
)
from pa_tutorial.kernels.prepare import most_shared
from pa_tutorial.kernels.triton_launch import paged_attention_triton, why_absent

HEADS = ((40, 40), (64, 8))
NUM_SEQS = 7
NUM_BLOCKS = 4321  # as vLLM; fewer where K and V would be larger than MOST_BYTES
MOST_BYTES = 2**30
# Largest relative norm of an error, of one head of one sequence. The outputs are rounded to their
# dtype, those of v2 twice; that alone is about 4e-4 and 3e-3. In float32, 57,600 numbers are
# added up.
BOUNDS = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

KERNELS: dict[str, Callable] = {
    "v1_vector": paged_attention_v1_vector,
    "v2": paged_attention_v2,
    "v1": paged_attention_v1,
    "triton": paged_attention_triton,
}
# Head sizes at which the others are tried: element loads at one, for the rest of the kernel is the
# same; Triton, which compiles two more kernels, at one that is a power of two and one that is not.
ONLY_AT = {"v1": (128,), "triton": (80, 128)}


@dataclass(frozen=True)
class Point:
    """One kernel's compile-time sizes."""

    dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        heads = f"{self.num_heads}/{self.num_kv_heads} heads"
        return f"{dtype}, {heads} x {self.head_size}, blocks of {self.block_size}"

    @property
    def kernels(self) -> tuple[str, ...]:
        """What is tried at this point: not all kernels at every head size, see ONLY_AT."""
        here = [name for name in KERNELS if self.head_size in ONLY_AT.get(name, HEAD_SIZES)]
        return tuple(name for name in here if name != "triton" or why_absent() is None)


def points() -> list[Point]:
    """The grid, 162 points, in an order that leaves something of everything if it is cut short."""
    found = itertools.product(DTYPES, HEADS, HEAD_SIZES, BLOCK_SIZES)
    grid = [Point(dtype, *heads, head_size, size) for dtype, heads, head_size, size in found]
    random.Random(0).shuffle(grid)
    return grid


def longest(device: str) -> int:
    """As vLLM: a little less than v1's scores can fill of the shared memory; 57,600 on an H100."""
    return most_shared(torch.empty(0, device=device)) // 4 - 512


def lengths(most: int, seed: str) -> list[int]:
    """NUM_SEQS lengths from 1 to most; the last is most."""
    rng = random.Random(seed)
    return [int(most ** rng.random()) for _ in range(NUM_SEQS - 1)] + [most]


def batch_of(point: Point, alibi: bool, most: int, device: str, num_blocks: int) -> Arguments:
    """A decode step for one point."""
    block_bytes = 2 * point.num_kv_heads * point.head_size * point.block_size * point.dtype.itemsize
    return random_batch(
        seq_lens=lengths(most, seed=f"{point} {alibi}"),
        num_heads=point.num_heads,
        num_kv_heads=point.num_kv_heads,
        head_size=point.head_size,
        block_size=point.block_size,
        dtype=point.dtype,
        num_blocks=min(num_blocks, MOST_BYTES // block_bytes),
        device=device,
        alibi=alibi,
    )


def errors_at(
    point: Point,
    device: str = "cuda",
    most: int | None = None,
    num_blocks: int = NUM_BLOCKS,
) -> dict[str, float]:
    """The worst error of each kernel, over both kinds of batches.

    most  tokens of the longest sequence; None: longest(device)
    """
    torch.set_num_threads(1)  # one process a core
    worst = dict.fromkeys(point.kernels, 0.0)
    for alibi in (False, True):
        batch = batch_of(point, alibi, most or longest(device), device, num_blocks)
        expected = reference(**batch)
        for name in point.kernels:
            inputs = in_plain_layout(batch) if name == "triton" else batch
            worst[name] = max(worst[name], worst_error(KERNELS[name](**inputs), expected))
    return worst


def compare(
    seconds: float,
    workers: int = WORKERS,
    work: Callable[[Point], dict[str, float]] = errors_at,
    grid: list[Point] | None = None,
) -> dict[str, object]:
    """The whole grid; prints the worst error by dtype, what is wrong, and what there was no time
    for.

    returns  "tried": how many points; "worst": dtype -> kernel -> error; "different", "failed"
             and "left_out" by point; "wrong"
    """
    grid = points() if grid is None else grid
    done = run_in_pool(work, grid, workers, seconds)
    worst: dict[str, dict[str, float]] = {}
    different = {}
    for place, errors in done.results.items():
        point = grid[place]
        of_dtype = worst.setdefault(str(point.dtype).removeprefix("torch."), {})
        for name, error in errors.items():
            of_dtype[name] = max(of_dtype.get(name, 0.0), error)
        if not all(error <= BOUNDS[point.dtype] for error in errors.values()):
            different[str(point)] = {name: f"{error:.1e}" for name, error in errors.items()}
    failed = {str(grid[place]): why for place, why in done.failed.items()}
    right = len(done.results) - len(different)
    print(f"{right} of {len(grid)} geometries are right, {len(different)} wrong, each in 2 batches")
    for dtype in filter(worst.__contains__, ("float32", "float16", "bfloat16")):
        bound = BOUNDS[getattr(torch, dtype)]
        shown = ", ".join(f"{name} {error:.1e}" for name, error in worst[dtype].items())
        print(f"  {dtype:8} worst error {shown} (bound {bound:.0e})")
    for name, why in (different | failed).items():
        print(f"  {name}: {why}")
    if why := why_absent():
        print(f"  triton: not run: {why}")
    left_out = [str(grid[place]) for place in done.left_out]
    if left_out:
        print(f"  left out, no time: {len(left_out)} of {len(grid)} geometries")
    return {
        "tried": len(done.results),
        "worst": worst,
        "different": different,
        "failed": failed,
        "left_out": left_out,
        "wrong": [*different, *failed],
    }
