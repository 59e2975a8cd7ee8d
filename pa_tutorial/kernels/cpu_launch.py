"""The kernel for the CPU as a function: torch tensors in, a torch tensor out."""

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
import torch
from torch import Tensor

from pa_tutorial.arguments import float32_scale, require, require_dense, steps
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.cpu import Sizes, cpu_kernel

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCK_SIZES = (8, 16, 32)
BYTES_AHEAD = 8192  # how long before its use a line is asked for, in bytes of K or V
# Into how many shares a batch is cut: enough that no core waits long for the last one, and none so
# small that to take it, and to merge it, costs more than it saves.
SHARES_A_CORE = 8
WORK_A_SHARE = 2**20  # elements of q, K and V that meet in the products of a share
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
    ahead: int = BYTES_AHEAD,
) -> "CpuLaunch":
    """Check everything and allocate the outputs once; then `run()` as often as you like.

    The lengths, the block tables and the numbers of q, K and V may change between two runs, in
    place; nobody checks them again. Arguments and errors are those of paged_attention_cpu; ahead,
    in bytes, is how early a line of the cache is asked for, and 0 is never.
    """
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    return launch_of_cpu(step, num_shares, ahead)


def launch_of_cpu(
    step: DecodeStep, num_shares: int | None = None, ahead: int = BYTES_AHEAD
) -> "CpuLaunch":
    """The launch of prepare_cpu."""
    require_cpu_inputs(step)
    num_seqs, num_heads, head_size = step.q.shape
    _, num_kv_heads, block_size, _ = step.k_cache.shape
    num_workers = numba.get_num_threads()
    if num_shares is None:
        num_shares = shares_of(step, num_workers)
    require(num_shares >= 1, "num_shares", num_shares, "at least 1")
    lengths = step.block_tables, step.seq_lens, step.float_slopes()
    partitions = 2 * num_shares, num_heads
    accs = new_array(num_seqs, num_heads * head_size)
    out = torch.from_numpy(accs).view(step.q.shape)
    q = step.q.detach()
    return CpuLaunch(
        kernel=cpu_kernel(Sizes(head_size, block_size, ahead)),
        q=q,
        rows=q if steps(q)[1:] == (head_size, 1) else q.contiguous(),
        scale=float32_scale(step.scale),
        cache=(as_array(step.k_cache.flatten()), as_array(step.v_cache.flatten()), num_kv_heads),
        lengths=tuple(map(as_array, lengths)),
        counts=(num_workers, num_shares),
        counters=(np.empty(1 + num_seqs, np.int64), np.empty(1 + num_seqs, np.int64)),
        partitions=(
            new_array(*partitions),
            new_array(*partitions),
            new_array(2 * num_shares, num_heads * head_size),
        ),
        qk_max=new_array(num_seqs, num_heads),
        exp_sum=new_array(num_seqs, num_heads),
        accs=accs,
        out=out if q.dtype == torch.float32 else torch.empty_like(out, dtype=q.dtype),
    )


def shares_of(step: DecodeStep, num_workers: int) -> int:
    """Into how many shares the blocks of a batch are cut."""
    num_heads, head_size = step.q.shape[1:]
    work = int(step.seq_lens.sum()) * (num_heads + 2 * step.k_cache.shape[1]) * head_size
    return max(1, min(work // WORK_A_SHARE, SHARES_A_CORE * num_workers))


@dataclass(frozen=True)
class CpuLaunch:
    """The kernel with all that it reads and writes.

    q, rows  [num_seqs, num_heads, head_size]; rows is q, or a copy of it without gaps in a row
    cache    k_cache and v_cache, flat, and num_kv_heads
    lengths  block_tables, seq_lens, slopes
    counts   num_workers, num_shares
    counters    [1 + num_seqs] each: see the kernel
    partitions  max_logits and exp_sums [2 * num_shares, num_heads], and tmp_out
                [2 * num_shares, num_heads * head_size]
    qk_max, exp_sum  [num_seqs, num_heads], and accs [num_seqs, num_heads * head_size] float32
    out      [num_seqs, num_heads, head_size] in the dtype of q
    """

    kernel: Callable
    q: Tensor
    rows: Tensor
    scale: np.float32
    cache: tuple[np.ndarray, np.ndarray, int]
    lengths: tuple[np.ndarray, ...]
    counts: tuple[int, int]
    counters: tuple[np.ndarray, np.ndarray]
    partitions: tuple[np.ndarray, ...]
    qk_max: np.ndarray
    exp_sum: np.ndarray
    accs: np.ndarray
    out: Tensor

    @property
    def bytes_beside_the_cache(self) -> int:
        """Of the partitions: what the kernel needs beside its inputs and its output."""
        return sum(array.nbytes for array in self.partitions)

    def run(self) -> Tensor:
        """One decode step: `out`, which the next run overwrites."""
        if self.rows is not self.q:
            self.rows.copy_(self.q)
        self.kernel(
            as_array(self.rows),
            self.scale,
            *self.cache,
            *self.lengths,
            *self.counts,
            *self.counters,
            *self.partitions,
            self.qk_max,
            self.exp_sum,
            self.accs,
            as_array(self.out.view(self.accs.shape)),
        )
        return self.out


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
                      as many as keep all threads of Numba at work: shares_of
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
        probe["accs"] = torch.from_numpy(prepared.accs).view(q.shape)
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


def as_array(tensor: Tensor) -> np.ndarray:
    """The same memory as a NumPy array; 16-bit floats as the integers that `widen` knows."""
    return tensor.detach().view(STORED_AS.get(tensor.dtype, tensor.dtype)).numpy()


def new_array(*shape: int) -> np.ndarray:
    return np.empty(shape, np.float32)
