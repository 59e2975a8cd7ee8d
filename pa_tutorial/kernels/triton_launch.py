"""The Triton kernels as functions: CUDA tensors go to the GPU, others through the interpreter.

Triton itself is imported only when a kernel is run: it has wheels for Linux only.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce as fold
from importlib.util import find_spec

import torch
from torch import Tensor

from pa_tutorial.arguments import float32_scale
from pa_tutorial.attention.online import Part, merge
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.choose import VLLM_PARTITION_SIZE
from pa_tutorial.kernels.geometry import divide_round_up
from pa_tutorial.kernels.triton_inputs import (
    next_power_of_two,
    padded,
    require_partitions,
    require_sizes,
    require_triton_inputs,
    usual_tile,
)

NUM_WARPS = 4
NUM_STAGES = 3  # as Triton takes where nobody says anything
PARTITIONS_AT_ONCE = 16


def why_absent() -> str | None:
    """Why the Triton stage is not there on this machine; None if it is."""
    if find_spec("triton") is not None:
        return None
    if sys.platform == "linux":
        return "Triton is not installed: pip install 'pa-tutorial[triton]'"
    return f"Triton has wheels for Linux only, and this is {sys.platform}"


@dataclass(frozen=True)
class TritonCall:
    """One kernel with all that it needs to run.

    kernel     a @triton.jit function
    grid       programs along its three axes
    arguments  tensors and numbers, by name
    constants  the compile-time constants, by name
    num_warps  of each program, on a GPU
    num_stages how far ahead a loop may load, on a GPU: see notebook 14
    """

    kernel: Callable
    grid: tuple[int, int, int]
    arguments: dict[str, object]
    constants: dict[str, object]
    num_warps: int = NUM_WARPS
    num_stages: int = NUM_STAGES

    @property
    def options(self) -> dict[str, object]:
        """Of the compiler. a * b + c is rounded once, as in CUDA."""
        sizes = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return sizes | {"enable_fp_fusion": True}

    def run(self) -> None:
        """On the GPU, on torch's current stream, for CUDA tensors; else in the interpreter."""
        q = self.arguments["q_ptr"]
        if q.is_cuda:
            with torch.cuda.device(q.device):  # Triton launches on the current one
                self.kernel[self.grid](**self.arguments, **self.constants, **self.options)
        else:
            from pa_tutorial.kernels.triton_interpreter import interpret

            interpret(self.kernel, self.grid, **self.arguments, **self.constants)


@dataclass(frozen=True)
class TritonLaunch:
    """One decode step: an output for each partition, and one of them all.

    out  [num_seqs, num_heads, head_size], in the dtype of q
    max_logits, exp_sums  [num_seqs, num_heads, max_num_partitions] float32
    tmp_out  [.., head_size] float32: the sum of weights times values, not divided
    """

    partitions: TritonCall
    reduce: TritonCall
    out: Tensor
    max_logits: Tensor
    exp_sums: Tensor
    tmp_out: Tensor

    def run(self) -> Tensor:
        """Both kernels, and `out`: written anew at each run."""
        self.partitions.run()
        self.reduce.run()
        return self.out

    def merged(self) -> Part:
        """What the partitions of the last run come to, in torch: m, l [num_seqs, num_heads] and
        acc [.., head_size]. A partition behind the end of a sequence counts as empty."""
        lens, size = self.partitions.arguments["seq_lens_ptr"], self.partition_size
        partition_idx = torch.arange(self.max_logits.shape[2], device=lens.device)
        is_empty = partition_idx * size >= lens[:, None]
        part = Part(
            self.max_logits.masked_fill(is_empty[:, None], float("-inf")),
            self.exp_sums.masked_fill(is_empty[:, None], 0.0),
            self.tmp_out.masked_fill(is_empty[:, None, :, None], 0.0),
        )
        columns = zip(*(tensor.unbind(2) for tensor in part), strict=True)
        return fold(merge, (Part(*column) for column in columns))

    @property
    def partition_size(self) -> int:
        return self.partitions.arguments["partition_size"]


def prepare_triton(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    max_seq_len: int | None = None,
    partition_size: int = VLLM_PARTITION_SIZE,
    tile_size: int | None = None,
    num_warps: int = NUM_WARPS,
    num_stages: int = NUM_STAGES,
    k_new: Tensor | None = None,
    v_new: Tensor | None = None,
) -> TritonLaunch:
    """Check everything and allocate the outputs once; then `run()` as often as you like.

    num_warps, num_stages  of each program, on a GPU: see TritonCall
    k_new, v_new   K and V of the newest token, beside the cache: see
                   paged_attention_triton_beside; the lengths do not count it then

    The other arguments and the errors are those of paged_attention_triton.
    """
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    sizes = {"max_seq_len": max_seq_len, "partition_size": partition_size, "tile_size": tile_size}
    newest = None if k_new is None and v_new is None else {"k_new": k_new, "v_new": v_new}
    return launch_of_triton(step, newest, **sizes, num_warps=num_warps, num_stages=num_stages)


def launch_of_triton(
    step: DecodeStep,
    newest: dict[str, Tensor] | None = None,
    max_seq_len: int | None = None,
    partition_size: int = VLLM_PARTITION_SIZE,
    tile_size: int | None = None,
    num_warps: int = NUM_WARPS,
    num_stages: int = NUM_STAGES,
) -> TritonLaunch:
    """The launch of prepare_triton; newest is k_new and v_new by name, if they are given."""
    if why := why_absent():
        raise ImportError(f"the Triton kernels cannot run here: {why}")
    from pa_tutorial.kernels import triton_decode

    require_triton_inputs(step, newest)
    q = step.q
    num_seqs, num_heads, head_size = q.shape
    _, num_kv_heads, block_size, _ = step.v_cache.shape
    if tile_size is None:
        tile_size = usual_tile(head_size, q.element_size())
    require_sizes(partition_size, tile_size, num_warps, num_stages)
    most = step.longest(max_seq_len)
    max_num_partitions = max(1, divide_round_up(most, partition_size))
    require_partitions(max_num_partitions, partition_size)
    out, max_logits, exp_sums, tmp_out = unwritten_outputs(q, max_num_partitions)
    of_both = {
        "max_logits_ptr": max_logits,
        "exp_sums_ptr": exp_sums,
        "tmp_out_ptr": tmp_out,
        "q_ptr": q.detach(),
        "seq_lens_ptr": step.seq_lens,
        "scale": float(float32_scale(step.scale)),
        "partition_size": partition_size,
        "max_num_partitions": max_num_partitions,
        "q_stride": q.stride(0),
    }
    sizes = {
        "NUM_QUERIES_PER_KV": num_heads // num_kv_heads,
        "HEAD_SIZE": head_size,
        "HEAD_SIZE_PADDED": padded(head_size),
        "NEWEST_IN_CACHE": newest is None,
    }
    partitions = TritonCall(
        triton_decode.paged_decode_kernel,
        grid=(num_kv_heads, num_seqs, max_num_partitions),
        arguments=of_both | of_the_cache(step),
        constants=sizes
        | {
            "BLOCK_SIZE": block_size,
            "TILE_SIZE": tile_size,
            "NUM_QUERIES_PADDED": next_power_of_two(num_heads // num_kv_heads),
        },
        num_warps=num_warps,
        num_stages=num_stages,
    )
    beside = newest or {}
    reduce = TritonCall(
        triton_decode.reduce_kernel,
        grid=(num_heads, num_seqs, 1),
        arguments=of_both
        | {"out_ptr": out, "k_new_ptr": beside.get("k_new"), "v_new_ptr": beside.get("v_new")},
        constants=sizes | {"PARTITIONS_AT_ONCE": PARTITIONS_AT_ONCE},
    )
    return TritonLaunch(partitions, reduce, out, max_logits, exp_sums, tmp_out)


def unwritten_outputs(q: Tensor, max_num_partitions: int) -> tuple[Tensor, ...]:
    """out, max_logits, exp_sums and tmp_out of a launch, all NaN.

    Each by itself: for a tensor that does not begin at a multiple of 16 bytes, as a piece of
    another may, Triton compiles anew.
    """
    shape = *q.shape[:2], max_num_partitions
    max_logits = q.new_full(shape, torch.nan, dtype=torch.float32)
    exp_sums = torch.full_like(max_logits, torch.nan)
    tmp_out = q.new_full((*shape, q.shape[2]), torch.nan, dtype=torch.float32)
    return q.new_full(q.shape, torch.nan), max_logits, exp_sums, tmp_out


def of_the_cache(step: DecodeStep) -> dict[str, object]:
    """Arguments of the kernel that reads it."""
    return {
        "k_cache_ptr": step.k_cache.detach(),
        "v_cache_ptr": step.v_cache.detach(),
        "block_tables_ptr": step.block_tables,
        "alibi_slopes_ptr": step.float_slopes(),
        "table_stride": step.block_tables.stride(0),
        "kv_block_stride": step.k_cache.stride(0),
        "kv_head_stride": step.k_cache.stride(1),
    }


def paged_attention_triton(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    probe: dict[str, Tensor] | None = None,
    max_seq_len: int | None = None,
    partition_size: int = VLLM_PARTITION_SIZE,
    tile_size: int | None = None,
) -> Tensor:
    """One decode step in Triton. Stage `triton`.

    q                 [num_seqs, num_heads, head_size]   the newest token of each sequence; may be
                      strided over sequences
    k_cache, v_cache  [num_blocks, num_kv_heads, block_size, head_size]   the plain layout; may
                      have gaps between blocks and heads, the same ones. Any head size, any block
                      size
    block_tables      [num_seqs, max_num_blocks_per_seq] int32
    seq_lens          [num_seqs] int32   tokens in the cache, the newest included
    alibi_slopes      [num_heads]; adds slope * (j - seq_len + 1) to the score of key j
    probe             receives qk_max and exp_sum [num_seqs, num_heads, 1], and accs
                      [num_seqs, num_heads, head_size], the output before it is rounded, all float32
    max_seq_len       of the longest sequence, for the number of partitions. If it is not given:
                      the largest of seq_lens; on a GPU, where nobody looks at them, all that a
                      block table has room for
    partition_size    tokens that one program goes through
    tile_size         tokens of one step of its loop: a power of two, 16 to 1,024; if it is not
                      given, what 8 KiB of keys come to, at most 64
    returns           [num_seqs, num_heads, head_size], in the dtype of q

    With CUDA tensors it runs on the GPU, on torch's current stream. With tensors on the CPU it
    runs in Triton's interpreter, about 4 ms for each tile.
    Raises ImportError, with the reason, where there is no Triton; before anything runs, TypeError
    or ValueError, naming the argument, for what the kernel cannot take.
    """
    sizes = {"max_seq_len": max_seq_len, "partition_size": partition_size, "tile_size": tile_size}
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    prepared = launch_of_triton(step, **sizes)
    out = prepared.run()
    if probe is not None:
        m, l, acc = prepared.merged()
        probe |= {"qk_max": m[..., None], "exp_sum": l[..., None], "accs": acc / l[..., None]}
    return out


def paged_attention_triton_beside(
    q: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    **sizes: int | None,
) -> Tensor:
    """paged_attention_triton with K and V of the newest token beside the cache, not yet in it.

    k_new, v_new  [num_seqs, num_kv_heads, head_size], without gaps
    context_lens  [num_seqs] int32   tokens in the cache: seq_len - 1, so 0 for a first token
    sizes         max_seq_len (of the longest context), partition_size, tile_size
    returns       what paged_attention_triton returns once k_new and v_new are in the cache

    Errors: those of paged_attention_triton.
    Source: the rosellm project, "paged attention in rosellm": its kernel takes them so.
    """
    step = DecodeStep(q, k_cache, v_cache, block_tables, context_lens, scale, alibi_slopes)
    return launch_of_triton(step, {"k_new": k_new, "v_new": v_new}, **sizes).run()
