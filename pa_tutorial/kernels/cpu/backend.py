"""The kernel for the CPU as a function: torch tensors in, a torch tensor out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numba
import numpy as np
import torch
from numba import types
from torch import Tensor

from pa_tutorial.arguments import (
    FLT_MAX,
    float32_scale,
    require,
    require_dense,
    whole_number,
)
from pa_tutorial.attention.step import DecodeStep, require_for_kernel
from pa_tutorial.kernels.cpu.kernel import (
    Inner,
    Inputs,
    Outputs,
    Partitions,
    Schedule,
    converters,
    cpu_kernel,
    loops,
)
from pa_tutorial.kernels.cpu.vectors import E4M3_UNIT
from pa_tutorial.paging.layouts import BLOCK_SIZES

# How a step is cut. Work is counted in multiplications of elements of q, K and V. WORK_A_CORE is
# worth waking a core for. A core gets up to SHARES_A_CORE shares of at least WORK_A_SHARE each, so
# that a core that is held up can leave its last shares to others.
WORK_A_CORE = 2**17
WORK_A_SHARE = 2**20
SHARES_A_CORE = 8
# The type under which Numba sees the elements of q and of the cache: it has no narrower floats on
# a CPU.
STORED_AS = {
    torch.float32: types.float32,
    **{torch.float16: types.int16, torch.bfloat16: types.uint16},
    **{torch.float8_e4m3fn: types.uint8, torch.float8_e5m2: types.int8},
}


@dataclass(frozen=True)
class CpuBackend:
    """The CPU kernel: all cores, the plain layout without gaps."""

    layout: ClassVar[str] = "plain"
    reusable: ClassVar[bool] = True

    def prepare(self, step: DecodeStep, num_shares: int | None = None) -> "CpuLaunch":
        """Check everything and allocate the outputs once; then `run()` as often as you like.

        num_shares  how many shares to cut the blocks of the batch into; by default enough to keep
                    all of Numba's threads busy: see cut

        The lengths, the block tables and the numbers in q, K and V may change in place between two
        runs; they aren't checked again. Raises as paged_attention_cpu.
        """
        require_cpu_inputs(step)
        num_workers = num_threads()
        if num_shares is None:
            pieces = cut(step, num_workers)
        else:
            num_shares = whole_number("num_shares", num_shares, least=1)
            pieces = 1, min(num_shares, step.block_tables.numel())  # at most one per block
        q = step.q.detach()
        rows = q.contiguous()
        accs = torch.full(q.shape, torch.nan)
        out = accs.to(q.dtype)
        arguments = kernel_arguments(step, rows, (*pieces, num_workers), accs, out)
        return CpuLaunch(cpu_kernel(), arguments, q, rows, accs, out)

    def why_absent(self) -> None:
        """None, because it runs everywhere."""


def cut(step: DecodeStep, num_workers: int) -> tuple[int, int]:
    """(parts of the KV heads, shares of the blocks): how many pieces a step is cut into.

    Small steps are cut by heads if these divide evenly, because then there is nothing to merge;
    large ones by blocks, which are then read from start to end.
    """
    num_heads, head_size = step.q.shape[1:]
    num_kv_heads = step.k_cache.shape[1]
    work = int(step.seq_lens.numpy().sum()) * (num_heads + 2 * num_kv_heads) * head_size
    cores = max(1, min(work // WORK_A_CORE, num_workers))
    shares_a_core = max(1, min(work // cores // WORK_A_SHARE, SHARES_A_CORE))
    if shares_a_core == 1 and num_kv_heads % cores == 0:
        return cores, 1
    return 1, cores * shares_a_core


def kernel_arguments(
    step: DecodeStep, rows: Tensor, pieces: tuple[int, int, int], accs: Tensor, out: Tensor
) -> tuple[Inputs, Schedule, Partitions, Outputs, Inner]:
    """The kernel's arguments. rows, accs, out: see CpuLaunch."""
    num_seqs, num_heads, head_size = rows.shape
    num_parts, num_shares, num_workers = pieces
    slopes = np.zeros(num_heads, np.float32)
    if step.alibi_slopes is not None:
        slopes = as_array(step.float_slopes().contiguous())
    inputs = Inputs(
        q=as_bytes(rows),
        k_cache=as_bytes(step.k_cache),
        v_cache=as_bytes(step.v_cache),
        block_tables=as_array(step.block_tables),
        seq_lens=as_array(step.seq_lens),
        k_scales=scale_rows(step, "k_scale", float(float32_scale(step.scale))),
        v_scales=scale_rows(step, "v_scale"),
        slopes=slopes,
    )
    schedule = Schedule(
        num_parts=num_parts,
        max_shares=num_shares,
        taken=np.empty(num_workers, np.int64),
        first_block=np.empty(num_seqs + 1, np.int64),
        finished=np.empty((num_parts, num_seqs), np.int64),
    )
    partitions = Partitions(
        max_logits=np.empty((num_shares + num_seqs, num_heads), np.float32),
        exp_sums=np.empty((num_shares + num_seqs, num_heads), np.float32),
        tmp_out=np.empty((num_shares + num_seqs, num_heads, head_size), np.float32),
    )
    outputs = Outputs(
        qk_max=np.full((num_seqs, num_heads), np.nan, np.float32),
        exp_sum=np.full((num_seqs, num_heads), np.nan, np.float32),
        accs=as_array(accs[:0] if accs is out else accs),
        out=as_bytes(out),
    )
    of_q, of_cache = STORED_AS[rows.dtype], STORED_AS[step.k_cache.dtype]
    inner = Inner(*(f.address for f in (*converters(of_q), *loops(head_size, of_cache))))
    return inputs, schedule, partitions, outputs, inner


def scale_rows(step: DecodeStep, name: str, factor: float = 1.0) -> np.ndarray:
    """[num_heads] float32: for each query head, what the kernel multiplies the K or V that it has
    read by: a scale of the step, by its name, times `factor`. ValueError if that isn't finite."""
    num_heads, num_kv_heads = step.q.shape[1], step.k_cache.shape[1]
    scale = getattr(step, name)
    if scale is None:
        return np.full(num_heads, factor, np.float32)
    unit = E4M3_UNIT if STORED_AS[step.k_cache.dtype] == types.uint8 else 1.0
    rows = scale.double() / unit * factor
    most = FLT_MAX * unit / abs(factor or 1)
    allowed = f"at most {most:.1e} in the CPU kernel, so that its multiples are finite"
    require(float(rows.abs().max()) <= FLT_MAX, name, scale.tolist(), allowed)
    return rows.float().repeat_interleave(num_heads // num_kv_heads).numpy()


def num_threads() -> int:
    """How many threads Numba has. They start now, if they haven't, and set OpenMP's number of
    threads, which is torch's too: it gets its own back."""
    of_torch = torch.get_num_threads()
    of_numba = numba.get_num_threads()
    torch.set_num_threads(of_torch)
    return of_numba


@dataclass
class CpuLaunch:
    """The kernel with everything that it reads and writes.

    arguments  of the kernel
    q          [num_seqs, num_heads, head_size]
    rows       q itself if it is contiguous; otherwise a copy, which each run fills. Strides would
               be a type of their own to Numba, and a strided q another kernel to compile.
    accs       same shape: the output in float32
    out        same shape, in the dtype of q; accs itself if that is float32
    """

    kernel: Callable
    arguments: tuple[Inputs, Schedule, Partitions, Outputs, Inner]
    q: Tensor
    rows: Tensor
    accs: Tensor
    out: Tensor

    def __post_init__(self) -> None:
        self.values = tuple(map(tuple, self.arguments))

    def run(self) -> Tensor:
        """Compute the step and return `out`, which the next run overwrites."""
        if self.rows is not self.q:
            self.rows.copy_(self.q)
        self.kernel(*self.values)
        return self.out

    def probe(self) -> dict[str, Tensor]:
        """Compute the step; return `out`, and qk_max, exp_sum [num_seqs, num_heads, 1] and accs
        [num_seqs, num_heads, head_size], all float32."""
        self.run()
        outputs = self.arguments[3]
        qk_max, exp_sum = map(torch.from_numpy, (outputs.qk_max, outputs.exp_sum))
        found = {"qk_max": qk_max[..., None], "exp_sum": exp_sum[..., None], "accs": self.accs}
        return found | {"out": self.out}


def paged_attention_cpu(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """One decode step on all cores of the CPU. Stage `cpu`.

    q                 [num_seqs, num_heads, head_size]   the newest token of each sequence; may be
                      strided over sequences
    k_cache, v_cache  [num_blocks, num_kv_heads, block_size, head_size]   the plain layout, without
                      gaps; blocks of 8, 16 or 32 tokens
    block_tables      [num_seqs, max_num_blocks_per_seq] int32
    seq_lens          [num_seqs] int32   tokens in the cache, the newest included
    alibi_slopes      [num_heads]; adds slope * (j - seq_len + 1) to the score of key j
    returns           [num_seqs, num_heads, head_size], in the dtype of q

    The division by the sum of the weights comes last, so V times seq_len must stay below FLT_MAX;
    otherwise the output may be infinite or NaN.
    The first call compiles, which takes some seconds, and the first for a head size and dtype half
    a second; Numba caches the results on disk, next to this file.
    Raises, before anything runs, TypeError or ValueError, naming the argument, for what DecodeStep
    or the kernel can't take. There is no backward pass: the result has no graph, even if an input
    requires_grad.
    """
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    return cpu_backend.prepare(step).run()


cpu_backend = CpuBackend()


def require_cpu_inputs(step: DecodeStep) -> None:
    """Raise ValueError, naming the argument, unless the kernel can read the step."""
    require_for_kernel(step, "plain", reads_float8=True)
    require(step.q.device.type == "cpu", "q.device", step.q.device, "cpu")
    size = step.block_size
    require(size in BLOCK_SIZES, "k_cache.shape[2]", size, f"one of {BLOCK_SIZES}")
    require_dense("k_cache", step.k_cache, 4)
    require_dense("v_cache", step.v_cache, 4)


def as_array(tensor: Tensor) -> np.ndarray:
    """The same memory as a NumPy array."""
    return tensor.detach().numpy()


def as_bytes(tensor: Tensor) -> np.ndarray:
    """The same memory as an array of uint8, with the bytes of a row in the last dimension."""
    return tensor.detach().view(torch.uint8).numpy()
