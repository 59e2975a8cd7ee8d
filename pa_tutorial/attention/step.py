"""One decode step over a paged cache: what it reads, checked once and passed on as a whole."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.arguments import (
    FLT_MAX,
    float32_scale,
    require,
    require_dense,
    require_floats,
    require_readable,
    require_shape,
    require_type,
    strides,
    whole_number,
)
from pa_tutorial.attention.full import require_heads_that_fit
from pa_tutorial.paging.layouts import DTYPES, checked_scales, require_caches
from pa_tutorial.paging.quantization import FLOAT8, Scale

SLOPE_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class DecodeStep:
    """What a decode step over a paged cache reads. Every backend takes one (backend.py).

    q             [num_seqs, num_heads, head_size]   the newest token of each sequence; may be
                  strided over sequences
    k_cache       [num_blocks, num_kv_heads, head_size/x, block_size, x]   vLLM's layout, or
                  [num_blocks, num_kv_heads, block_size, head_size]        the plain one
    v_cache       [num_blocks, num_kv_heads, head_size, block_size]        vLLM's, or as k_cache
    block_tables  [num_seqs, max_num_blocks_per_seq] int32, padded with 0
    seq_lens      [num_seqs] int32   tokens in the cache, the newest included
    scale         usually head_size ** -0.5
    alibi_slopes  [num_heads] or None; adds slope * (j - seq_len + 1) to the score of key j

    Creating one checks it, and raises TypeError or ValueError, naming the argument, for anything
    but tensors and numbers, and for shapes, dtypes, devices, lengths, block numbers, slopes and
    scales that don't go together. Lengths, block numbers, slopes and scales on a GPU aren't
    checked, because reading them would wait for all of the GPU's pending work. What only one
    backend requires, it checks when it prepares a launch.
    """

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    scale: float
    alibi_slopes: Tensor | None = None

    k_scale: ClassVar[None] = None
    v_scale: ClassVar[None] = None

    def __post_init__(self) -> None:
        self._require_readable()
        self._require_shapes()
        float32_scale(self.scale)
        if self.q.device.type == "cpu":
            self._require_numbers()

    @property
    def block_size(self) -> int:
        return require_caches(self.k_cache, self.v_cache)[2]

    def _require_readable(self) -> None:
        """Tensors with elements, all on the device of q."""
        tensors = {name: value for name, value in vars(self).items() if "scale" not in name}
        if self.alibi_slopes is None:
            del tensors["alibi_slopes"]
        for name, tensor in tensors.items():
            require_readable(name, tensor)
            same = tensor.device == self.q.device
            require(same, f"{name}.device", tensor.device, f"{self.q.device}, as q")

    def _require_shapes(self) -> None:
        """Shapes and dtypes fit together; the cache is in either layout."""
        q, block_tables, seq_lens = self.q, self.block_tables, self.seq_lens
        require_floats(q=q, k_cache=self.k_cache)
        must = "it must have 3 dimensions: [num_seqs, num_heads, head_size]"
        require_shape(q.dim() == 3, "q", q, must)
        for name, dtype in (("q", q.dtype), ("k_cache", self.k_cache.dtype)):
            known = dtype.itemsize > 1 or (name == "k_cache" and dtype in FLOAT8)
            allowed = "of 16 bits or more (a cache may also be float8_e4m3fn or float8_e5m2)"
            require(known, f"{name}.dtype", dtype, allowed)
        if self.k_cache.dtype in FLOAT8:
            allowed = "float32, float16 or bfloat16; an 8-bit cache needs a QuantizedStep"
            is_quantized = isinstance(self, QuantizedStep)
            require(is_quantized, "k_cache.dtype", self.k_cache.dtype, allowed)
        num_seqs = q.shape[0]
        _, num_kv_heads, _, head_size = require_caches(self.k_cache, self.v_cache)
        require_heads_that_fit(q, "k_cache", num_kv_heads, head_size, self.alibi_slopes)
        if self.alibi_slopes is not None:
            dtype, names = self.alibi_slopes.dtype, ", ".join(map(str, SLOPE_DTYPES))
            require(dtype in SLOPE_DTYPES, "alibi_slopes.dtype", dtype, f"one of {names}")
        for name, tensor in (("block_tables", block_tables), ("seq_lens", seq_lens)):
            require(tensor.dtype == torch.int32, name, tensor.dtype, "torch.int32")
        is_table = block_tables.dim() == 2 and len(block_tables) == num_seqs
        must = f"it must have one row for each of the {num_seqs} sequences in q"
        require_shape(is_table, "block_tables", block_tables, must)
        is_row = seq_lens.shape == (num_seqs,)
        require_shape(is_row, "seq_lens", seq_lens, f"it must be [{num_seqs}]")

    def _require_numbers(self) -> None:
        num_blocks, _, block_size, _ = require_caches(self.k_cache, self.v_cache)
        require_blocks_and_lengths(self.block_tables, self.seq_lens, num_blocks, block_size)
        slopes = () if self.alibi_slopes is None else self.alibi_slopes
        for head, slope in enumerate(slopes):
            finite = abs(slope.float()) <= FLT_MAX
            require(finite, f"alibi_slopes[{head}]", slope.item(), "finite, as a float32")

    def require_strides(self, k_dims: int, v_dims: int) -> None:
        """Raise ValueError unless the last dimensions (2 of q, k_dims, v_dims) have no gaps, and
        K and V have the same strides over blocks and heads."""
        for name, dims in (("q", 2), ("k_cache", k_dims), ("v_cache", v_dims)):
            require_dense(name, getattr(self, name), dims)
        k_stride, v_stride = self.k_cache.stride()[:2], self.v_cache.stride()[:2]
        same = strides(self.v_cache)[:2] == strides(self.k_cache)[:2]
        require(same, "v_cache.stride()[:2]", v_stride, f"{k_stride}, as in k_cache")

    def longest(self, max_seq_len: int | None) -> int:
        """max_seq_len of a launch: the given one, or the largest of seq_lens.

        On a GPU seq_lens isn't read; there the default is what a block table has room for.
        """
        room = self.block_tables.shape[1] * self.block_size
        on_cpu = self.seq_lens.device.type == "cpu"
        least = int(self.seq_lens.max()) if on_cpu else 1
        if max_seq_len is None:
            return least if on_cpu else room
        max_seq_len = whole_number("max_seq_len", max_seq_len)
        allowed = f"{least} to {room}: the longest sequence, and what a block table has room for"
        require(least <= max_seq_len <= room, "max_seq_len", max_seq_len, allowed)
        return max_seq_len

    def float_slopes(self) -> Tensor:
        """[num_heads] float32, zeros without ALiBi, where vLLM passes a null pointer."""
        if self.alibi_slopes is None:
            return torch.zeros(self.q.shape[1], device=self.q.device)
        return self.alibi_slopes.float()


@dataclass(frozen=True)
class QuantizedStep(DecodeStep):
    """A decode step over an 8-bit cache, whose numbers are what is stored times a scale.

    k_scale, v_scale  a number, or [num_kv_heads]; None is 1. Afterwards a copy, [num_kv_heads]
                      float32

    Raises as DecodeStep and checked_scale do.
    """

    k_scale: Scale = None
    v_scale: Scale = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.k_cache, self.v_cache, self.k_scale, self.v_scale
        for name, scale in zip(("k_scale", "v_scale"), checked_scales(*given), strict=True):
            object.__setattr__(self, name, scale)


def require_for_kernel(step: DecodeStep, layout: str, reads_float8: bool = False) -> None:
    """Raise TypeError or ValueError unless this is a DecodeStep with its cache in this layout,
    "vllm" or "plain", and q and the cache have the same dtype, one that the kernels support.

    reads_float8  whether the cache may also be 8-bit
    """
    require_type(hasattr(step, "require_strides"), "step", step, "a DecodeStep")
    dims, name = {"vllm": (5, "vLLM's"), "plain": (4, "the plain")}[layout]
    shape, allowed = list(step.k_cache.shape), f"of {dims} dimensions: {name} layout"
    require(len(shape) == dims, "k_cache.shape", shape, allowed)
    dtype, cached = step.q.dtype, step.k_cache.dtype
    require(dtype in DTYPES, "q.dtype", dtype, f"one of {', '.join(map(str, DTYPES))}")
    if cached in FLOAT8:
        require(reads_float8, "k_cache.dtype", cached, f"{dtype}, as q: this kernel has no float8")
    else:
        require(dtype == cached, "q.dtype", dtype, f"{cached}, as the cache")


def require_blocks_and_lengths(
    block_tables: Tensor, seq_lens: Tensor, num_blocks: int, block_size: int
) -> None:
    """Raise ValueError unless every sequence has at least one token, fits into its block table, and
    uses blocks of the pool. This reads the numbers, so with tensors on a GPU it waits for them."""
    room = block_tables.shape[1] * block_size
    if seq_lens.device.type == "cpu":  # a quick look, because most steps are right
        lens, tables = seq_lens.numpy(), block_tables.numpy()
        blocks_exist = tables.view(np.uint32).max() < num_blocks  # a negative becomes large
        if blocks_exist and lens.min() >= 1 and lens.max() <= room:
            return
    for sequence in ((seq_lens < 1) | (seq_lens > room)).nonzero()[:1, 0].tolist():
        raise ValueError(
            f"seq_lens[{sequence}] is {seq_lens[sequence]}; it must be 1 to {room}, the tokens "
            "that its block table has room for"
        )
    first_token = torch.arange(0, room, block_size, device=seq_lens.device)
    used = first_token < seq_lens[:, None]
    outside = used & ((block_tables < 0) | (block_tables >= num_blocks))
    for sequence, block_idx in outside.nonzero()[:1].tolist():
        raise ValueError(
            f"block_tables[{sequence}] names block {block_tables[sequence, block_idx]}; "
            f"it must be 0 to {num_blocks - 1}"
        )
