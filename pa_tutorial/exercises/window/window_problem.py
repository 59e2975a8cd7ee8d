"""Decode steps with a sliding window: hostile inputs, and the expected outputs in float64."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.checks.oracle import Array, attend
from pa_tutorial.checks.problem import DecodeProblem, float64


@dataclass(frozen=True)
class WindowProblem(DecodeProblem):
    """One decode step in which each query sees the newest `window` tokens.

    window          0: all tokens
    also_without    whether the same step must also be right without a window
    little_memory   whether shared memory has room only for the logits of the window's blocks
    counted         arrays of which only the blocks of the windows may be read
    partition_size  of the launch; 0 is v1
    vectors         whether the kernel reads 16-byte vecs
    """

    head_size: int = 32
    block_size: int = 8
    num_heads: int = 1
    num_kv_heads: int = 1
    window: int = 0
    also_without: bool = False
    little_memory: bool = False
    counted: tuple[str, ...] = ()
    partition_size: int = 0
    vectors: bool = False

    def first_tokens(self) -> list[int]:
        """For each sequence, the first token that its query sees."""
        return [max(n - self.window, 0) if self.window else 0 for n in self.seq_lens]

    def bytes_seen(self) -> int:
        """Bytes of K in the blocks that contain a token of a window, once per head."""
        pairs = zip(self.first_tokens(), self.seq_lens, strict=True)
        blocks = sum(len({t // self.block_size for t in range(*pair)}) for pair in pairs)
        of_block = self.block_size * self.head_size * self.dtype.itemsize
        return blocks * self.num_heads * of_block

    def paged(self, layout: str) -> DecodeStep:
        """Fill blocks before the window with NaN and set their entries to 0, like
        BlockTable.slide."""
        inputs = super().paged(layout)
        for row, first in zip(inputs.block_tables, self.first_tokens(), strict=True):
            gone = row[: first // self.block_size]
            for cache in (inputs.k_cache, inputs.v_cache):
                cache[gone.long()] = torch.nan
            gone.fill_(0)  # the null block, which holds NaN
        return inputs

    def steps(self) -> list["WindowProblem"]:
        """The steps to run: this one, and the same without a window if requested."""
        without = replace(self, window=0, also_without=False)
        return [self, without] if self.also_without else [self]

    def expected(self) -> dict[str, Array]:
        """Float64: out [steps, num_seqs, num_heads, head_size]."""
        return {"out": np.stack([step.attention() for step in self.steps()])}

    def attention(self) -> Array:
        inputs = self.inputs()
        tokens = zip(inputs.q, inputs.keys, inputs.values, strict=True)
        options = self.scale, float64(inputs.alibi_slopes), self.window
        return np.stack([attend_in_window(*map(float64, one), *options) for one in tokens])


def attend_in_window(
    q: Array, keys: Array, values: Array, scale: float, slopes: Array | None, window: int
) -> Array:
    """Attention of the newest query over the tokens of its window, the last ones.

    q             [num_heads, head_size]
    keys, values  [seq_len, num_kv_heads, head_size]
    slopes        [num_heads] or None
    window        number of tokens that are seen; 0: all
    returns       [num_heads, head_size]
    """
    keys, values = keys[-window:], values[-window:]  # -0 selects all
    return attend(q[None], keys, values, scale, slopes, first=len(keys) - 1)["out"][0]
