"""Decode steps with a sliding window: hostile inputs, and what must come out, in float64."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.walk.decode_inputs import DecodeInputs
from pa_tutorial.walk.oracle import Array
from pa_tutorial.walk.problem import DecodeProblem

LOUD = 25.0  # keys along the query: scores near 150


@dataclass(frozen=True)
class WindowProblem(DecodeProblem):
    """One decode step in which each query sees the newest `window` tokens.

    window        0: all tokens
    still_held    blocks before the window are in the block table, with their tokens. Else their
                  entries are 0, as after BlockTable.slide, and what they hold is NaN
    loud          the tokens just before the window, in its first block, have by far the largest
                  scores
    also_without  the same step must be right without a window, too
    left_over     in v2, the places of partitions before the window hold numbers of an earlier
                  step. Else they hold NaN
    partition_size, num_threads  of the launch; partition_size 0 is v1
    vectors       the kernel reads vecs of 16 bytes
    """

    head_size: int = 32
    block_size: int = 8
    num_heads: int = 1
    num_kv_heads: int = 1
    window: int = 0
    still_held: bool = False
    loud: bool = False
    also_without: bool = False
    left_over: bool = False
    partition_size: int = 0
    num_threads: int = 64
    vectors: bool = False

    def first_tokens(self) -> list[int]:
        """For each sequence the first token that its query sees."""
        return [max(n - self.window, 0) if self.window else 0 for n in self.seq_lens]

    def blocks_seen(self) -> int:
        """Blocks that hold a token of a window, of all sequences."""
        pairs = zip(self.first_tokens(), self.seq_lens, strict=True)
        return sum(len({t // self.block_size for t in range(*pair)}) for pair in pairs)

    def inputs(self) -> DecodeInputs:
        inputs = super().inputs()
        if self.loud:
            q = inputs.q[:, :: self.num_heads // self.num_kv_heads]
            for sequence, first in enumerate(self.first_tokens()):
                before = slice(first - first % self.block_size, first)
                inputs.keys[sequence][before] = LOUD * q[sequence]
        return inputs

    def paged(self, layout: str) -> DecodeStep:
        inputs = super().paged(layout)
        if not self.still_held:
            for row, first in zip(inputs.block_tables, self.first_tokens(), strict=True):
                gone = row[: first // self.block_size]
                for cache in (inputs.k_cache, inputs.v_cache):
                    cache[gone.long()] = torch.nan
                gone.fill_(0)  # the null block, which holds NaN
        return inputs

    def without(self) -> "WindowProblem":
        """The same step without a window."""
        return replace(self, window=0, also_without=False)

    def expected(self) -> dict[str, Array]:
        """Float64: out [num_seqs, num_heads, head_size]."""
        inputs = self.inputs()
        tokens = zip(inputs.q, inputs.keys, inputs.values, strict=True)
        slopes = np.zeros(self.num_heads)
        if inputs.alibi_slopes is not None:
            slopes = inputs.alibi_slopes.double().numpy()
        arrays = ([tensor.double().numpy() for tensor in one] for one in tokens)
        outs = [attend_in_window(*one, self.scale, slopes, self.window) for one in arrays]
        return {"out": np.stack(outs)}


def attend_in_window(
    q: Array, keys: Array, values: Array, scale: float, slopes: Array, window: int
) -> Array:
    """Attention of the newest query over contiguous K and V, with an explicit mask.

    q             [num_heads, head_size]
    keys, values  [seq_len, num_kv_heads, head_size]
    slopes        [num_heads]
    window        tokens that are seen; 0: all
    returns       [num_heads, head_size]
    """
    seq_len, num_kv_heads, _ = keys.shape
    distance = np.arange(seq_len)[::-1]  # to the newest token
    masked = distance >= (window or seq_len)
    out = np.zeros_like(q)
    for head, query in enumerate(q):
        group = head * num_kv_heads // len(q)
        scores = keys[:, group] @ query * scale - slopes[head] * distance
        scores[masked] = -np.inf
        weights = np.exp(scores - scores.max())
        out[head] = weights / weights.sum() @ values[:, group]
    return out
