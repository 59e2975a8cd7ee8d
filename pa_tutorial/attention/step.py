"""One decode step over a paged cache: its arguments, checked in one place, travel together."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.arguments import (
    FLT_MAX,
    require,
    require_dense,
    require_readable,
    steps,
)
from pa_tutorial.attention.full import require_heads_that_fit
from pa_tutorial.paging.layouts import require_caches

MAX_GRID_YZ = 65_535  # thread blocks along axis y or z of a grid
SLOPE_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class DecodeStep:
    """What a decode step over a paged cache reads: the arguments of every paged stage.

    q             [num_seqs, num_heads, head_size]; may be strided over sequences
    k_cache, v_cache  in the layout that the stage declares
    block_tables  [num_seqs, max_num_blocks_per_seq] int32, padded with 0
    seq_lens      [num_seqs] int32
    alibi_slopes  [num_heads] or None

    The functions that take vLLM's arguments make one at once. Nothing is checked then: what a
    stage can read, it requires by the methods, which raise TypeError or ValueError that names the
    argument.
    """

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    scale: float
    alibi_slopes: Tensor | None = None

    def require_for_cuda(self) -> None:
        """vLLM's layout, as the kernels compute their offsets in it."""
        self.require_readable()
        k_cache, dtype = self.k_cache, self.q.dtype
        require(k_cache.dim() == 5, "k_cache.shape", list(k_cache.shape), "of 5 dimensions: vLLM's")
        self.require_shapes()
        x = 16 // k_cache.element_size()
        require(k_cache.shape[4] == x, "k_cache.shape[4]", k_cache.shape[4], f"x = {x}")
        require(dtype == k_cache.dtype, "q.dtype", dtype, f"{k_cache.dtype}, as the cache")
        self.require_strides(k_dims=3, v_dims=2)
        self.require_for_grid()
        self.require_numbers()

    def require_readable(self, device: torch.device | None = None) -> None:
        """All hold numbers, on this device, or else on that of q."""
        tensors = {"q": self.q, "k_cache": self.k_cache, "v_cache": self.v_cache}
        tensors |= {"block_tables": self.block_tables, "seq_lens": self.seq_lens}
        if self.alibi_slopes is not None:
            tensors["alibi_slopes"] = self.alibi_slopes
        for name, tensor in tensors.items():
            require_readable(name, tensor)
            where = self.q.device if device is None else device
            if tensor.device != where:
                on = f"{where}, as q" if device is None else where
                require(False, f"{name}.device", tensor.device, on)

    def require_shapes(self) -> None:
        """Shapes and dtypes fit together; the cache is in either layout."""
        q, block_tables, seq_lens = self.q, self.block_tables, self.seq_lens
        if q.dim() != 3 or q.shape[0] == 0:
            raise ValueError(
                f"q has shape {list(q.shape)}; it must have 3 dimensions: "
                "[num_seqs, num_heads, head_size], and at least one sequence"
            )
        num_seqs = q.shape[0]
        _, num_kv_heads, _, head_size = require_caches(self.k_cache, self.v_cache)
        require_heads_that_fit(*q.shape[1:], num_kv_heads, head_size, self.alibi_slopes)
        for name, tensor in (("block_tables", block_tables), ("seq_lens", seq_lens)):
            if tensor.dtype != torch.int32:
                raise ValueError(f"{name} is {tensor.dtype}; it must be torch.int32")
        if block_tables.dim() != 2 or block_tables.shape[0] != num_seqs:
            raise ValueError(
                f"block_tables has shape {list(block_tables.shape)}; it must have one row for each "
                f"of the {num_seqs} sequences of q"
            )
        if seq_lens.shape != (num_seqs,):
            raise ValueError(f"seq_lens has shape {list(seq_lens.shape)}; it must be [{num_seqs}]")

    def require_strides(self, k_dims: int, v_dims: int) -> None:
        """So many last dimensions have no gaps (of q two), and K and V of a block and head lie as
        far from the first."""
        for name, dims in (("q", 2), ("k_cache", k_dims), ("v_cache", v_dims)):
            require_dense(name, getattr(self, name), dims)
        k_stride, v_stride = self.k_cache.stride()[:2], self.v_cache.stride()[:2]
        same = steps(self.v_cache)[:2] == steps(self.k_cache)[:2]
        require(same, "v_cache.stride()[:2]", v_stride, f"{k_stride}, as those of k_cache")

    def require_lengths(self) -> None:
        """Each sequence has a token or more, in blocks that exist. It reads the numbers."""
        num_blocks, _, block_size, _ = require_caches(self.k_cache, self.v_cache)
        require_blocks_and_lengths(self.block_tables, self.seq_lens, num_blocks, block_size)

    def require_numbers(self) -> None:
        """Lengths, block numbers and slopes, unless they are on a GPU: to look at them would be to
        wait for everything that the GPU still has to do."""
        if self.q.device.type == "cpu":
            self.require_lengths()
            if self.alibi_slopes is not None:
                require_slopes(self.alibi_slopes)

    def require_for_grid(self) -> None:
        """A grid has room for the sequences, and the slopes are floats."""
        allowed = f"at most {MAX_GRID_YZ}: axis y of a grid"
        require(len(self.q) <= MAX_GRID_YZ, "len(q)", len(self.q), allowed)
        if self.alibi_slopes is not None:
            allowed = f"one of {', '.join(map(str, SLOPE_DTYPES))}"
            dtype = self.alibi_slopes.dtype
            require(dtype in SLOPE_DTYPES, "alibi_slopes.dtype", dtype, allowed)

    def longest(self, max_seq_len: int | None) -> int:
        """max_seq_len of a launch: what is given, or the longest of seq_lens.

        On a GPU nobody looks at seq_lens; there it is all that a block table has room for.
        """
        block_size = require_caches(self.k_cache, self.v_cache)[2]
        room = self.block_tables.shape[1] * block_size
        on_cpu = self.seq_lens.device.type == "cpu"
        least = int(self.seq_lens.max()) if on_cpu else 1
        if max_seq_len is None:
            return least if on_cpu else room
        if not isinstance(max_seq_len, int) or isinstance(max_seq_len, bool):
            raise TypeError(
                f"max_seq_len is of type {type(max_seq_len).__name__}; it must be an int"
            )
        allowed = f"{least} to {room}: the longest sequence, and what a block table has room for"
        require(least <= max_seq_len <= room, "max_seq_len", max_seq_len, allowed)
        return max_seq_len

    def float_slopes(self) -> Tensor:
        """[num_heads] float32. vLLM passes a null pointer for no slopes; Python has none."""
        if self.alibi_slopes is None:
            return torch.zeros(self.q.shape[1], device=self.q.device)
        return self.alibi_slopes.float()


def require_slopes(alibi_slopes: Tensor) -> None:
    """Raise ValueError unless every slope is finite as a float32. It reads the numbers."""
    for head, slope in enumerate(alibi_slopes.float().tolist()):
        finite = abs(slope) <= FLT_MAX
        original = alibi_slopes[head].item()
        require(finite, f"alibi_slopes[{head}]", original, "finite, as a float32")


def require_blocks_and_lengths(
    block_tables: Tensor, seq_lens: Tensor, num_blocks: int, block_size: int
) -> None:
    """Raise ValueError unless every sequence has from one token to what its table has room for, in
    blocks of the pool. This reads the numbers: of tensors on a GPU, it waits for them."""
    room = block_tables.shape[1] * block_size
    if seq_lens.device.type == "cpu":  # a quick look: most steps are right
        lens, tables = seq_lens.numpy(), block_tables.numpy()
        blocks_exist = tables.view(np.uint32).max() < num_blocks  # as one, a negative is large
        if blocks_exist and lens.min() >= 1 and lens.max() <= room:
            return
    for sequence in ((seq_lens < 1) | (seq_lens > room)).nonzero()[:1, 0].tolist():
        raise ValueError(
            f"seq_lens[{sequence}] is {seq_lens[sequence]}; it must be 1 to {room}, the tokens for "
            "which its block table has room"
        )
    first_token = torch.arange(0, room, block_size, device=seq_lens.device)
    used = first_token < seq_lens[:, None]
    outside = used & ((block_tables < 0) | (block_tables >= num_blocks))
    for sequence, block_idx in outside.nonzero()[:1].tolist():
        raise ValueError(
            f"block_tables[{sequence}] names block {block_tables[sequence, block_idx]}; "
            f"it must be 0 to {num_blocks - 1}"
        )
