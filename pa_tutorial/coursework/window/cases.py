"""The cases of the kernels: named by what they isolate, drawn anew for every draw.

A case says where its windows begin. From that its lengths follow, so that what the case isolates
is true whatever was drawn.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from pa_tutorial.coursework.window.problem import WindowProblem

BLOCK = 8  # tokens of a block, where nothing else is said
PARTITION = 16  # tokens of a partition


class Windows(NamedTuple):
    """A window, where it begins in some sequences, and lengths of sequences within it."""

    window: int
    starts: tuple[int, ...]
    short: tuple[int, ...] = ()


class Case(NamedTuple):
    """windows: n -> Windows, where n(a, b) draws one of a, a + 1, …, b. sizes: WindowProblem's."""

    name: str
    isolates: str
    meaning: str
    windows: Callable[[Callable[[int, int], int]], Windows]
    sizes: dict[str, object]


def problems(cases: tuple[Case, ...], draw: int, **sizes: object) -> list[WindowProblem]:
    """The cases, ready to run.

    draw   the same number gives the same problems
    sizes  of all of them, where a case says nothing else
    """
    drawn = []
    for number, case in enumerate(cases):
        rng = np.random.default_rng((draw, number))
        window, starts, short = case.windows(lambda a, b, rng=rng: int(rng.integers(a, b + 1)))
        lens = tuple(start + window for start in starts) + short
        drawn_sizes = {"window": window, "seq_lens": lens, "seed": int(rng.integers(2**31))}
        words = case.name, case.isolates, case.meaning
        drawn.append(WindowProblem(*words, **{**sizes, **drawn_sizes, **case.sizes}))
    return drawn


def mixed(n: Callable[[int, int], int]) -> Windows:
    """As long as the window, one token longer, a block and more longer; two that are shorter."""
    window = n(10, 20)
    return Windows(window, (0, 1, n(9, 15)), (1, window - n(1, 8)))


def mixed_partitions(n: Callable[[int, int], int]) -> Windows:
    """As long as the window, one token longer, two partitions and more longer; one shorter."""
    window = n(18, 24)
    return Windows(window, (0, 1, 2 * PARTITION + n(1, 6)), (window - n(1, 12),))


_ZERO_TOO = " If far_below_zero fails too, begin there: it is about the weight of masked slots."
_V1_TOO = " If cases of v1 fail too, begin there."
_MASK = "Slots before the window, in its first block, have no part in maximum, sum and output."
_SKIP = "Both loops over blocks begin at the block of the first token that is seen."
_FIRST = "The first token that is seen is seq_len - WINDOW, not one before or behind."
_SHORT = "A sequence shorter than the window is seen from token 0: seq_len - WINDOW is negative."
_ZERO = (
    "A masked slot gets the score 0, which is its final weight only if nobody takes exp of it: "
    "exp(0 - qk_max) is not 0."
)
_MAX = "A slot before the window has a part in qk_max: then exp of all that is seen is 0."
_OFF = (
    "WINDOW = 0 means no window, not a window of no token. If the run with a window is wrong, look "
    "at the other cases first."
)
_NULL = "An entry of the block table before the window is 0: that block holds NaN. Do not read it."
_VECS = "The logits of a vec must begin at a multiple of its size: count from a block's first slot."
_HEADS = "The window is that of the sequence: the same for every head."
_READS = (
    "K or V of blocks before the window were read and masked: right, but all the memory traffic "
    "that a window should save is there."
)

V1_CASES = (
    Case("one_token", "a window of one token: the output is its V", _FIRST,
         lambda n: Windows(1, (BLOCK * n(1, 3) + n(1, 6), BLOCK * n(1, 2) + 7)), {}),
    Case("inside_a_block", "the window begins and ends inside one block", _MASK,
         lambda n: Windows(n(2, 4), (BLOCK * n(1, 3) + n(1, 3), BLOCK * n(0, 2) + n(1, 3))), {}),
    Case("at_a_block_border", "the window begins with a block", _SKIP,
         lambda n: Windows(n(9, 20), (BLOCK * n(1, 2), BLOCK * n(3, 4))), {}),
    Case("one_more_than_a_border", "one slot of the first block is seen", _FIRST,
         lambda n: Windows(n(9, 20), (BLOCK * n(1, 2) - 1, BLOCK * n(3, 4) - 1)), {}),
    Case("one_less_than_a_border", "one slot of the first block is not seen", _FIRST,
         lambda n: Windows(n(9, 20), (BLOCK * n(1, 2) + 1, BLOCK * n(3, 4) + 1)), {}),
    Case("blocks_a_warp", "several blocks for each of the warps", _SKIP,
         lambda n: Windows(n(34, 44), (BLOCK * n(1, 2) + n(2, 6), BLOCK * n(3, 4) + n(2, 6))),
         {}),
    Case("mixed_lengths", "sequences shorter than the window, as long, and longer", _SHORT,
         mixed, {}),
    Case("far_below_zero", "scores near -300, and slots before the window", _ZERO,
         lambda n: Windows(n(10, 20), (BLOCK * n(1, 2) + n(2, 6),)), {"scores": "deep_negative"}),
    Case("large_score_before", "the largest scores stand just before the window", _MAX,
         lambda n: Windows(n(10, 20), (BLOCK * n(1, 2) + n(2, 6), BLOCK + n(2, 6))),
         {"loud": True}),
    Case("null_block", "NaN before the window; scores rise so steeply that borders do not matter",
         _NULL, lambda n: Windows(n(18, 28), (BLOCK * n(1, 2) + n(2, 6), BLOCK * 2 + n(2, 6))),
         {"scores": "drifting"}),
    Case("still_held", "the blocks before the window hold their tokens: to mask is enough", _MASK,
         lambda n: Windows(n(10, 20), (BLOCK * n(1, 2) + n(2, 6), BLOCK * n(2, 3) + n(2, 6))),
         {"still_held": True}),
    Case("with_and_without", "the same step with a window and with WINDOW = 0", _OFF,
         lambda n: Windows(n(5, 12), (BLOCK * n(1, 2) + n(1, 6),), (n(2, 4),)),
         {"still_held": True, "also_without": True}),
    Case("heads_and_slopes", "four heads share two KV heads; ALiBi", _HEADS,
         lambda n: Windows(n(10, 20), (BLOCK * n(1, 2) + n(2, 6),)),
         {"num_heads": 4, "num_kv_heads": 2, "alibi": True}),
    Case("vectors_float16", "float16, heads of 80, blocks of 16, vecs of 16 bytes", _VECS,
         lambda n: Windows(n(20, 40), (16 * n(1, 2) + n(1, 7), 16 * n(1, 2) + n(9, 15))),
         {"dtype": torch.float16, "head_size": 80, "block_size": 16, "vectors": True}),
)  # fmt: skip

V1_CASES = tuple(
    case if case.meaning in (_ZERO, _OFF) else case._replace(meaning=case.meaning + _ZERO_TOO)
    for case in V1_CASES
)

# The windows begin with a block: a kernel that skips and does not mask is right here.
V1_READS = (
    Case("skips_k", "bytes that are read of K: the blocks of the window", _READS,
         lambda n: Windows(n(5, 12), (BLOCK * n(2, 3), BLOCK * n(4, 5))), {"still_held": True}),
    Case("skips_v", "bytes that are read of V: the blocks of the window", _READS,
         lambda n: Windows(n(5, 12), (BLOCK * n(2, 3), BLOCK * n(4, 5))), {"still_held": True}),
)  # fmt: skip

_END = "end_block_idx counts from where the partition begins, not from where the window does."
_BEGIN = "A partition that the window reaches begins at the window, if that is later."
_BEFORE = (
    "The window begins behind partition p if (p + 1) * PARTITION_SIZE <= the first token: it "
    "returns at once, and the reduce kernel must not read its places, which were never written."
)
_LEFT_OVER = (
    "Nothing in the places of a partition before the window tells that they are not of this step: "
    "the reduce kernel must not read them, whatever they hold."
)
_COPY = (
    "With one partition left, its output is copied: from that partition's place, which is not "
    "always the first."
)
_COUNT = "The partitions that the window reaches: from that of its first token to the last."
_ALONE = "The first kernel alone is wrong: what it left was merged in NumPy."
_NOTHING = (
    "A partition wholly before the window reads no q, K or V and writes nothing: no neutral "
    "numbers either."
)

V2_CASES = (
    Case("inside_a_partition", "the window begins inside a partition, and inside a block", _BEGIN,
         lambda n: Windows(n(34, 40), (PARTITION * n(1, 2) + n(1, 6),)), {}),
    Case("second_block", "the window begins in the second block of a partition", _END,
         lambda n: Windows(n(20, 30), (PARTITION * n(1, 2) + BLOCK + n(1, 6),)), {}),
    Case("at_a_partition_border", "the window begins with a partition", _BEFORE,
         lambda n: Windows(n(18, 30), (PARTITION * n(1, 3),)), {}),
    Case("one_token_of_a_partition", "one token of the first partition is seen", _COUNT,
         lambda n: Windows(n(18, 30), (PARTITION * n(2, 3) - 1,)), {}),
    Case("one_partition_left", "all that is seen lies in one partition, not the first", _COPY,
         lambda n: Windows(n(3, 7), (PARTITION * n(1, 2) + n(1, 8), PARTITION * 2 + n(1, 8))), {}),
    Case("one_token", "a window of one token", _COPY,
         lambda n: Windows(1, (PARTITION * n(1, 2) + n(1, 14), PARTITION * n(1, 2))), {}),
    Case("mixed_lengths", "sequences shorter than the window, as long, and longer", _SHORT,
         mixed_partitions, {}),
    Case("far_apart", "scores from -300 to 300, rising in one head and falling in the other",
         _BEGIN, lambda n: Windows(n(34, 40), (PARTITION * n(1, 2) + n(2, 6),)),
         {"scores": "drifting", "num_heads": 2, "num_kv_heads": 2}),
    Case("left_over", "places of partitions before the window hold numbers of an earlier step",
         _LEFT_OVER,
         lambda n: Windows(n(18, 24), (PARTITION * n(1, 2) + n(1, 6), PARTITION * 3)),
         {"left_over": True}),
    Case("with_and_without", "the same step with a window and with WINDOW = 0", _OFF,
         lambda n: Windows(n(5, 12), (PARTITION + n(1, 6),), (n(2, 4),)),
         {"still_held": True, "also_without": True}),
    Case("vectors_float16", "float16, two heads share a KV head, vecs of 16 bytes", _VECS,
         lambda n: Windows(n(20, 30), (PARTITION * n(1, 2) + n(9, 15),)),
         {"dtype": torch.float16, "num_heads": 2, "vectors": True}),
)  # fmt: skip

V2_CASES = tuple(case._replace(meaning=case.meaning + _V1_TOO) for case in V2_CASES)

FIRST_CASES = (
    Case("partitions_alone", "the first kernel alone", _ALONE,
         lambda n: Windows(n(20, 30), (PARTITION * n(1, 2) + n(1, 6), 2 * PARTITION)), {}),
    Case("partitions_before", "what partitions wholly before the window do: nothing", _NOTHING,
         lambda n: Windows(n(9, 20), (PARTITION * n(2, 3) + n(1, 6), PARTITION)), {}),
    Case("skips_k_and_v", "bytes that are read of K and V: the blocks of the window", _READS,
         lambda n: Windows(n(9, 20), (PARTITION * n(1, 2) + BLOCK, PARTITION * n(1, 2))),
         {"still_held": True}),
)  # fmt: skip

REDUCE_CASES = (
    Case("reduce_alone", "the reduce kernel after ours: several partitions left", _BEFORE,
         lambda n: Windows(n(34, 40), (PARTITION * n(1, 2) + n(1, 6), 2 * PARTITION)),
         {"num_heads": 2}),
    Case("reduce_copies", "the reduce kernel after ours: one partition left", _COPY,
         lambda n: Windows(n(3, 7), (PARTITION * n(1, 2) + n(1, 8), PARTITION * 2 + n(1, 8))),
         {"num_heads": 2}),
)  # fmt: skip
