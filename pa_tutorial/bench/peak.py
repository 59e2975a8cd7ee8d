"""How fast the CPU computes, for the roof of a roofline: a large matrix product."""

import torch

from pa_tutorial.arguments import require
from pa_tutorial.bench.timing import interleaved


def peak_gflop_per_s(rounds: int, size: int = 1536) -> float:
    """Operations in float32 per second, in 10**9: the best of some products of square matrices.

    size  rows of a matrix. Each number is used `size` times, so that memory does not count.

    The best and not the median, because a roof is what nothing is above.
    """
    require(rounds >= 1, "rounds", rounds, "at least 1")
    require(size >= 1, "size", size, "at least 1")
    a, b, out = torch.randn(3, size, size)
    times = interleaved({"product": lambda: torch.mm(a, b, out=out)}, rounds)
    # a multiply and an add for each of size**3 pairs
    return round(2 * size**3 / (1e6 * times["product"]["lowest_ms"]), 1)
