"""The cases of the kernels, named after what they isolate, with new numbers for every draw.

A case says where its windows begin. The lengths follow from that, so the case isolates its property
with any numbers.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from pa_tutorial.exercises.window.window_problem import WindowProblem

BLOCK = 8  # tokens per block, unless a case says otherwise
PARTITION = 16  # tokens per partition
Draw = Callable[[int, int], int]  # n(a, b): one of a, a + 1, …, b


class Windows(NamedTuple):
    """A window, where it begins in some sequences, and lengths of sequences within it."""

    window: int
    starts: tuple[int, ...]
    short: tuple[int, ...] = ()


def drawing(draw: int, number: int) -> tuple[np.random.Generator, Draw]:
    """The source of numbers for the case with this index."""
    rng = np.random.default_rng((draw, number))
    return rng, lambda a, b: int(rng.integers(a, b + 1))


def problems(cases: tuple[tuple, ...], draw: int, partition_size: int = 0) -> list[WindowProblem]:
    """The cases, ready to run; the same draw gives the same problems.

    cases  (name, what it isolates, what its failure means, Windows of a Draw, fields of the
           WindowProblem) each
    """
    drawn = []
    for number, (*words, windows, sizes) in enumerate(cases):
        rng, n = drawing(draw, number)
        window, starts, short = windows(n)
        lens = tuple(start + window for start in starts) + short
        of_launch = {"partition_size": partition_size, "seed": int(rng.integers(2**31))}
        drawn.append(WindowProblem(*words, window=window, seq_lens=lens, **of_launch, **sizes))
    return drawn


_MASK = "Slots before the window, in its first block, must not count in maximum, sum and output."
_SKIP = "Both loops over blocks begin at the block of the first token that is seen."
_FIRST = "The first token that is seen is seq_len - WINDOW, not the one before or after."
_SHORT = "A sequence shorter than the window is seen from token 0, as seq_len - WINDOW is negative."
_ZERO = (
    "A slot before the window must weigh nothing, however low the other scores are: 0 isn't low "
    "enough as its score, nor is -10,000."
)
_OFF = "WINDOW = 0 means no window, not a window without tokens."
_VECS = "A vec's logits must begin at a multiple of its size, so count from a block's first slot."
_INDEX = "Logit 0 belongs to the first slot of the first block that is seen, not to token 0."
_HEADS = "The window belongs to the sequence and is the same for every head."
_READS = "Blocks before the window were read, so the window doesn't save any memory traffic."

V1_CASES = (
    ("one_token", "a window of one token: the output is its V", _FIRST,
     lambda n: Windows(1, (BLOCK * n(1, 3) + n(1, 6), BLOCK * n(1, 2) + 7)), {}),
    ("inside_a_block", "the window begins inside a block", _MASK,
     lambda n: Windows(n(2, 20), (BLOCK * n(1, 3) + n(1, 3), BLOCK * n(0, 2) + 1)), {}),
    ("at_a_block_border", "the window begins with a block", _SKIP,
     lambda n: Windows(n(9, 20), (BLOCK * n(1, 2), BLOCK * n(3, 4))), {}),
    ("mixed_lengths", "sequences shorter than the window, as long, and longer", _SHORT,
     lambda n: Windows(w := n(10, 20), (0, 1, n(9, 15)), (1, w - n(1, 8))), {}),
    ("far_below_zero", "scores far below -10,000, and slots before the window", _ZERO,
     lambda n: Windows(n(10, 20), (BLOCK * n(1, 2) + n(2, 6),)),
     {"scores": "opposite", "scale_factor": 1e6}),
    ("with_and_without", "the same step with a window and with WINDOW = 0", _OFF,
     lambda n: Windows(n(5, 12), (BLOCK * n(1, 2) + n(1, 6),), (n(2, 4),)), {"also_without": True}),
    ("heads_and_slopes", "four heads share two KV heads; ALiBi", _HEADS,
     lambda n: Windows(n(10, 20), (BLOCK * n(1, 2) + n(2, 6),)),
     {"num_heads": 4, "num_kv_heads": 2, "alibi": True}),
    ("vectors_float16", "float16, heads of 80, blocks of 16, vecs of 16 bytes", _VECS,
     lambda n: Windows(n(20, 40), (16 * n(1, 2) + n(1, 7), 16 * n(1, 2) + n(9, 15))),
     {"dtype": torch.float16, "head_size": 80, "block_size": 16, "vectors": True}),
    ("little_memory", "shared memory for the logits of the window's blocks only", _INDEX,
     lambda n: Windows(n(20, 40), (BLOCK * n(20, 30) + n(1, 6),)), {"little_memory": True}),
    ("skips_k", "bytes that are read of K: the blocks of the window", _READS,
     lambda n: Windows(n(5, 12), (BLOCK * n(2, 3), BLOCK * n(4, 5))), {"counted": ("k_cache",)}),
    ("skips_v", "bytes that are read of V: the blocks of the window", _READS,
     lambda n: Windows(n(5, 12), (BLOCK * n(2, 3), BLOCK * n(4, 5))), {"counted": ("v_cache",)}),
)  # fmt: skip

# The property of the others is one of a kernel's launch.
REFERENCE_CASES = tuple(
    case for case in V1_CASES if not {"vectors", "little_memory", "counted"} & case[-1].keys()
)

_END = "end_block_idx counts from the start of the partition, not from the start of the window."
_BEGIN = "If the window begins inside a partition, the partition's tokens start at the window."
_BEFORE = (
    "Partition p is before the window if (p + 1) * PARTITION_SIZE <= the first token. It returns "
    "at once, and the reduce kernel must not read its entries, which were never written."
)
_COPY = (
    "With one partition left, its output is copied from that partition's entry, which isn't "
    "always the first."
)

V2_CASES = (
    ("inside_a_partition", "the window begins inside a partition", _BEGIN,
     lambda n: Windows(n(34, 40), (PARTITION * n(1, 2) + n(1, 6),)), {}),
    ("second_block", "the window begins in the second block of a partition", _END,
     lambda n: Windows(n(20, 30), (PARTITION * n(1, 2) + BLOCK + n(1, 6),)), {}),
    ("at_a_partition_border", "the window begins with a partition", _BEFORE,
     lambda n: Windows(n(18, 30), (PARTITION * n(1, 3),)), {}),
    ("with_and_without", "the same step with a window and with WINDOW = 0", _OFF,
     lambda n: Windows(n(5, 12), (PARTITION + n(1, 6),), (n(2, 4),)), {"also_without": True}),
    ("vectors_float16", "float16, two heads share a KV head, vecs of 16 bytes", _VECS,
     lambda n: Windows(n(20, 30), (PARTITION * n(1, 2) + n(9, 15),)),
     {"dtype": torch.float16, "num_heads": 2}),
)  # fmt: skip

FIRST_CASES = (
    ("partitions_alone", "your first kernel, then our reduce kernel", _BEGIN,
     lambda n: Windows(n(20, 30), (PARTITION * n(1, 2) + n(1, 6), 2 * PARTITION)), {}),
    ("skips_k_and_v", "bytes that are read of K and V: the blocks of the window", _READS,
     lambda n: Windows(n(9, 20), (PARTITION * n(1, 2) + BLOCK, PARTITION * n(1, 2))),
     {"counted": ("k_cache", "v_cache")}),
)  # fmt: skip

REDUCE_CASES = (
    ("reduce_alone", "our first kernel, then your reduce kernel: several left", _BEFORE,
     lambda n: Windows(n(34, 40), (PARTITION * n(1, 2) + n(1, 6), 2 * PARTITION)),
     {"num_heads": 2}),
    ("reduce_one_left", "our first kernel, then your reduce kernel: one left", _COPY,
     lambda n: Windows(n(3, 7), (PARTITION * n(1, 2) + n(1, 8), PARTITION * 2 + 1)),
     {"num_heads": 2}),
)  # fmt: skip
