"""The kernel for the CPU as a function: torch tensors in, a torch tensor out."""

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
import torch
from torch import Tensor

from pa_tutorial.arguments import float32_scale, require, require_dense
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.cpu import Sizes, cpu_kernel

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCK_SIZES = (8, 16, 32)
CACHE_LINE = 64  # bytes that memory brings at once
BYTES_AHEAD = 4096  # how long before its use a line is asked for, in bytes of K or V
# As what the numbers of the cache are given to Numba, which has no 16-bit floats on a CPU.
STORED_AS = {torch.float16: torch.int16, torch.bfloat16: torch.uint16}


def prepare_cpu(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    num_shares: int | None = None,
    tiles: bool = True,
    ahead: int = BYTES_AHEAD,
) -> "CpuLaunch":
    """Check everything and allocate the outputs once; then `run()` as often as you like.

    The lengths, the block tables and the numbers of q, K and V may change between two runs, in
    place; nobody checks them again. Arguments and errors are those of paged_attention_cpu;
    tiles and ahead
    (in bytes) turn the last two steps of the kernel off: see Sizes.
    """
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    return launch_of_cpu(step, num_shares, tiles, ahead)


def launch_of_cpu(
    step: DecodeStep,
    num_shares: int | None = None,
    tiles: bool = True,
    ahead: int = BYTES_AHEAD,
) -> "CpuLaunch":
    """The launch of prepare_cpu."""
    require_cpu_inputs(step)
    num_seqs, num_heads, head_size = step.q.shape
    if num_shares is None:
        num_shares = numba.get_num_threads()
    require(num_shares >= 1, "num_shares", num_shares, "at least 1")
    read = step.k_cache, step.v_cache, step.block_tables, step.seq_lens, step.float_slopes()
    return CpuLaunch(
        kernel=cpu_kernel(sizes_of(step.v_cache, tiles, ahead)),
        q=step.q.detach(),
        scale=float(float32_scale(step.scale)),
        read=tuple(map(as_array, read)),
        max_logits=new_array(num_shares + num_seqs, num_heads),
        exp_sums=new_array(num_shares + num_seqs, num_heads),
        tmp_out=new_array(num_shares + num_seqs, num_heads, head_size),
        qk_max=new_array(num_seqs, num_heads),
        exp_sum=new_array(num_seqs, num_heads),
        accs=new_array(num_seqs, num_heads, head_size),
    )


@dataclass(frozen=True)
class CpuLaunch:
    """The kernel with all that it reads and writes.

    q       [num_seqs, num_heads, head_size]
    read    k_cache, v_cache, block_tables, seq_lens, slopes
    max_logits, exp_sums  [num_shares + num_seqs, num_heads], and tmp_out [.., head_size]:
            of each partition
    qk_max, exp_sum  [num_seqs, num_heads], and accs [.., head_size] float32: the results
    """

    kernel: Callable
    q: Tensor
    scale: float
    read: tuple[np.ndarray, ...]
    max_logits: np.ndarray
    exp_sums: np.ndarray
    tmp_out: np.ndarray
    qk_max: np.ndarray
    exp_sum: np.ndarray
    accs: np.ndarray

    @property
    def bytes_beside_the_cache(self) -> int:
        """Of the partitions: what the kernel needs beside its inputs and its output."""
        return self.max_logits.nbytes + self.exp_sums.nbytes + self.tmp_out.nbytes

    def run(self) -> Tensor:
        """One decode step; [num_seqs, num_heads, head_size] in the dtype of q."""
        q = self.q.float() * self.scale
        partitions = self.max_logits, self.exp_sums, self.tmp_out
        results = self.qk_max, self.exp_sum, self.accs
        self.kernel(q.contiguous().numpy(), *self.read, *partitions, *results)
        out = torch.from_numpy(self.accs)
        return out.clone() if self.q.dtype == torch.float32 else out.to(self.q.dtype)


def paged_attention_cpu(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    probe: dict[str, Tensor] | None = None,
    num_shares: int | None = None,
) -> Tensor:
    """One decode step on all cores of the CPU. Stage `cpu`.

    q                 [num_seqs, num_heads, head_size]   the newest token of each sequence; may be
                      strided over sequences
    k_cache, v_cache  [num_blocks, num_kv_heads, block_size, head_size]   the plain layout, without
                      gaps; blocks of 8, 16 or 32 tokens
    block_tables      [num_seqs, max_num_blocks_per_seq] int32
    seq_lens          [num_seqs] int32   tokens in the cache, the newest included
    alibi_slopes      [num_heads]; adds slope * (j - seq_len + 1) to the score of key j
    probe             receives qk_max and exp_sum [num_seqs, num_heads, 1], and accs
                      [num_seqs, num_heads, head_size], all float32
    num_shares        into how many shares the blocks of the batch are cut; if it is not given,
                      one for each thread that Numba has
    returns           [num_seqs, num_heads, head_size], in the dtype of q

    The first call for a head size, block size and dtype compiles, some seconds; Numba keeps the
    result on disk, beside this file.
    Raises, before anything runs, TypeError or ValueError, naming the argument, for what the
    kernel cannot take. There is no backward pass: the result has no graph, also where an input
    requires_grad.
    """
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    prepared = launch_of_cpu(step, num_shares)
    out = prepared.run()
    if probe is not None:
        probe["qk_max"] = torch.from_numpy(prepared.qk_max)[..., None]
        probe["exp_sum"] = torch.from_numpy(prepared.exp_sum)[..., None]
        probe["accs"] = torch.from_numpy(prepared.accs)
    return out


def require_cpu_inputs(step: DecodeStep) -> None:
    """Raise TypeError or ValueError, naming the argument, unless the kernel can read all."""
    q, k_cache = step.q, step.k_cache
    step.require_readable(torch.device("cpu"))
    allowed = "of 4 dimensions: the plain layout"
    require(k_cache.dim() == 4, "k_cache.shape", list(k_cache.shape), allowed)
    step.require_shapes()
    block_size = k_cache.shape[2]
    require(q.dtype in DTYPES, "q.dtype", q.dtype, f"one of {', '.join(map(str, DTYPES))}")
    require(q.dtype == k_cache.dtype, "q.dtype", q.dtype, f"{k_cache.dtype}, as the cache")
    require(block_size in BLOCK_SIZES, "k_cache.shape[2]", block_size, f"one of {BLOCK_SIZES}")
    require_dense("k_cache", k_cache, 4)
    require_dense("v_cache", step.v_cache, 4)
    step.require_numbers()


def sizes_of(v_cache: Tensor, tiles: bool = True, ahead: int = BYTES_AHEAD) -> Sizes:
    """What the kernel is compiled for; ahead counts bytes."""
    _, _, block_size, head_size = v_cache.shape
    itemsize = v_cache.element_size()
    return Sizes(head_size, block_size, int(tiles), ahead // itemsize, CACHE_LINE // itemsize)


def as_array(tensor: Tensor) -> np.ndarray:
    """The same memory as a NumPy array; 16-bit floats as the integers that `widen` knows."""
    return tensor.detach().view(STORED_AS.get(tensor.dtype, tensor.dtype)).numpy()


def new_array(*shape: int) -> np.ndarray:
    return np.empty(shape, np.float32)
