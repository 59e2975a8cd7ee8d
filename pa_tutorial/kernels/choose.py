"""v1 or v2: vLLM's rule, and what it should be on a GPU where both were measured."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pa_tutorial.arguments import require
from pa_tutorial.kernels.geometry import divide_round_up

VLLM_PARTITION_SIZE = 512
MOST_TOKENS_OF_V1 = 8192  # beyond, v1 needs more shared memory than vLLM wants to give it
ENOUGH_THREAD_BLOCKS = 512  # v1 has one a sequence and head; so many keep a GPU busy


@dataclass(frozen=True)
class Measured:
    """Times of both kernels for one batch, in any unit, from `make gpu`."""

    num_seqs: int
    num_heads: int
    max_seq_len: int
    v1: float
    v2: float

    @property
    def faster(self) -> str:
        return "v1" if self.v1 <= self.v2 else "v2"


def choose(
    num_seqs: int, num_heads: int, max_seq_len: int, measured: Iterable[Measured] = ()
) -> str:
    """ "v1" or "v2" for a batch.

    v1, unless the context passes 8,192 tokens, or there is something to split and v1 would have
    at most 512 thread blocks: then the partitions of v2 keep more of the GPU busy.

    measured  times on this GPU: if there are any, the point that is nearest decides in place of
              the rule: the ratios of thread blocks and of contexts count, not the differences

    Raises ValueError for numbers below 1.
    Source: vLLM, vllm/attention/ops/paged_attn.py, forward_decode.
    """
    sizes = {"num_seqs": num_seqs, "num_heads": num_heads, "max_seq_len": max_seq_len}
    for name, value in sizes.items():
        require(value >= 1, name, value, "1 or more")
    measured = list(measured)
    if measured:
        return min(measured, key=lambda point: _distance(point, **sizes)).faster
    max_num_partitions = divide_round_up(max_seq_len, VLLM_PARTITION_SIZE)
    nothing_to_split = max_num_partitions == 1
    enough = num_seqs * num_heads > ENOUGH_THREAD_BLOCKS
    use_v1 = max_seq_len <= MOST_TOKENS_OF_V1 and (nothing_to_split or enough)
    return "v1" if use_v1 else "v2"


def _distance(point: Measured, num_seqs: int, num_heads: int, max_seq_len: int) -> float:
    """How far a measured batch is from this one: each doubling counts as one step."""
    thread_blocks = point.num_seqs * point.num_heads / (num_seqs * num_heads)
    return abs(math.log2(thread_blocks)) + abs(math.log2(point.max_seq_len / max_seq_len))
