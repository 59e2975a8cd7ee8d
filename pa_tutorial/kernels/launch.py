"""Torch tensors in, torch tensors out: the kernels as functions. They run in the simulator."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pa_tutorial.kernels.dtypes import as_kept
from pa_tutorial.kernels.geometry import FLOAT_BYTES, Geometry
from pa_tutorial.kernels.inputs import (
    flat,
    float32_scale,
    geometry_of,
    require_shared,
    slopes_or_zeros,
)
from pa_tutorial.kernels.intermediates import LINES, NAMES, intermediates, scores
from pa_tutorial.kernels.loads import Loads, element_loads
from pa_tutorial.kernels.naive import naive_kernel
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.simt import Report, launch


@dataclass(frozen=True)
class Launch:
    """A kernel with all that it needs to run.

    kernel        a @cuda.jit kernel, made for this geometry
    grid          thread blocks along x, y, z: (num_heads, num_seqs, 1)
    shared_bytes  dynamic shared memory of one thread block; the static comes on top
    arguments     of the kernel, by name, in their order
    out           [num_seqs, num_heads, head_size], NaN before the run
    """

    kernel: Callable
    geometry: Geometry
    grid: tuple[int, int, int]
    shared_bytes: int
    arguments: dict[str, object]
    out: Tensor

    def simulate(self, **options: object) -> Report:
        """Run it without a GPU; `out` is written. The options are those of simt.launch."""
        return launch(
            self.kernel,
            self.grid,
            self.geometry.NUM_THREADS,
            *self.arguments.values(),
            shared_bytes=self.shared_bytes,
            unwritten="out",
            **options,
        )


def prepare_naive(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    num_threads: int = 128,
) -> Launch:
    """The launch of naive_kernel. Arguments and errors are those of paged_attention_v1."""
    geometry = geometry_of(q, k_cache, v_cache, block_tables, seq_lens, alibi_slopes, num_threads)
    shared_bytes = FLOAT_BYTES * int(seq_lens.max())
    require_shared(shared_bytes, seq_lens)
    out = torch.full(q.shape, float("nan"), dtype=q.dtype)
    arguments = {
        "out": as_kept(out),
        "q": as_kept(q),
        "k_cache": as_kept(k_cache),
        "v_cache": as_kept(v_cache),
        "scale": float32_scale(scale),
        "block_tables": block_tables,
        "seq_lens": seq_lens,
        "alibi_slopes": slopes_or_zeros(alibi_slopes, q.shape[1]),
    }
    grid = (q.shape[1], q.shape[0], 1)
    return Launch(naive_kernel(geometry), geometry, grid, shared_bytes, arguments, out)


def prepare_v1(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    num_threads: int = 128,
    loads: Callable[[Geometry], Loads] = element_loads,
) -> Launch:
    """The launch of paged_attention_v1, for those who want to watch it.

        ready = prepare_v1(...)
        report = ready.simulate(trace=0)

    Arguments and errors are those of paged_attention_v1; num_threads may be 64 or 256 too.
    """
    geometry = geometry_of(q, k_cache, v_cache, block_tables, seq_lens, alibi_slopes, num_threads)
    shared_bytes = geometry.dynamic_shared_bytes(int(seq_lens.max()))
    require_shared(shared_bytes + geometry.static_shared_bytes, seq_lens)
    out = torch.full(q.shape, float("nan"), dtype=q.dtype)
    nothing = torch.empty(0)  # v1 has no partitions to tell about; touching it is a finding
    arguments = {
        "exp_sums": nothing,
        "max_logits": nothing,
        "out": flat(as_kept(out)),
        "q": flat(as_kept(q)),
        "k_cache": flat(as_kept(k_cache)),
        "v_cache": flat(as_kept(v_cache)),
        "scale": float32_scale(scale),
        "block_tables": block_tables,
        "seq_lens": seq_lens,
        "alibi_slopes": slopes_or_zeros(alibi_slopes, q.shape[1]),
        "q_stride": q.stride(0),
        "kv_block_stride": k_cache.stride(0),
        "kv_head_stride": k_cache.stride(1),
    }
    grid = (q.shape[1], q.shape[0], 1)
    kernel = paged_attention(geometry, loads)
    return Launch(kernel, geometry, grid, shared_bytes, arguments, out)


def paged_attention_naive(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    probe: dict[str, Tensor] | None = None,
) -> Tensor:
    """One decode step by the first paged kernel. Stage `cuda_naive`.

    Arguments, result and errors are those of paged_attention_v1; probe receives `qk` only.
    """
    ready = prepare_naive(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    report = ready.simulate(watch="end", names="qk")
    if probe is not None:
        probe["qk"] = scores(report, "end", "qk", seq_lens)
    return ready.out


def paged_attention_v1(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    probe: dict[str, Tensor] | None = None,
) -> Tensor:
    """One decode step by vLLM's kernel. Stage `cuda_v1`.

    q             [num_seqs, num_heads, head_size]   the newest token of each sequence; may be
                  strided over sequences
    k_cache       [num_blocks, num_kv_heads, head_size/x, block_size, x]
    v_cache       [num_blocks, num_kv_heads, head_size, block_size]   both may have gaps between
                  blocks and heads, the same ones
    block_tables  [num_seqs, max_num_blocks_per_seq] int32
    seq_lens      [num_seqs] int32   tokens in the cache, the newest included
    alibi_slopes  [num_heads]; adds slope * (j - seq_len + 1) to the score of key j
    probe         receives qk, qk_max, exp_sum, logits and accs (pa_tutorial.kernels.intermediates)
    returns       [num_seqs, num_heads, head_size], in the dtype of q

    Runs in the simulator, with every check: SimtError if one of them finds something.
    Raises, before anything runs, ValueError for shapes, dtypes, devices, strides, lengths, block
    numbers, slopes and scales that the kernel cannot take, and for a context beyond the shared
    memory; TypeError for what should be a tensor and is none, and for a scale that is no number.
    There is no backward pass: the result has no graph, also where an input requires_grad.
    Source: vLLM, paged_attention_v1 in csrc/attention/paged_attention_v1.cu.
    """
    ready = prepare_v1(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    return run_probed(ready, probe)


def run_probed(ready: Launch, probe: dict[str, Tensor] | None) -> Tensor:
    """Run a launch of paged_attention and return its output; probe receives the intermediates."""
    report = ready.simulate(watch=LINES, names=NAMES)
    if probe is not None:
        probe.update(intermediates(report, ready.geometry, ready.arguments["seq_lens"]))
    return ready.out
