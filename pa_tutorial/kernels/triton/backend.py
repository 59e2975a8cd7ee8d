"""The Triton kernels as functions: on the GPU for CUDA tensors, else in the interpreter.

Triton itself is imported only when a kernel runs, because it has wheels for Linux only.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from functools import reduce as fold
from importlib.util import find_spec
from typing import ClassVar

import torch
from torch import Tensor

from pa_tutorial.arguments import float32_scale, require, require_type
from pa_tutorial.attention.online import Part, merge
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.choose import VLLM_PARTITION_SIZE
from pa_tutorial.kernels.geometry import divide_round_up
from pa_tutorial.kernels.triton.inputs import (
    checked_grid,
    checked_size,
    next_power_of_two,
    padded,
    require_triton_inputs,
    stored,
    usual_tile,
)
from simt.gpus import MAX_GRID_YZ

NUM_WARPS = 4
NUM_STAGES = 3  # Triton's own default
PARTITIONS_AT_ONCE = 16


def why_absent() -> str | None:
    """Why the Triton stage can't run on this machine; None if it can."""
    if find_spec("triton") is not None:
        return None
    if sys.platform == "linux":
        return "Triton isn't installed; in a clone, run python -m pip install -e '.[triton]'"
    return f"Triton has wheels for Linux only, and this is {sys.platform}"


@dataclass(frozen=True)
class TritonCall:
    """One kernel with everything it needs to run.

    kernel      a @triton.jit function
    grid        programs along its three axes
    arguments   tensors and numbers, by name
    constants   the compile-time constants, by name
    num_warps   per program, on a GPU
    num_stages  how far ahead a loop may load, on a GPU
    """

    kernel: Callable
    grid: tuple[int, int, int]
    arguments: dict[str, object]
    constants: dict[str, object]
    num_warps: int = NUM_WARPS
    num_stages: int = NUM_STAGES

    @property
    def for_gpu(self) -> dict[str, object]:
        """Everything that the kernel is compiled with. a * b + c is rounded once, as in CUDA."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return self.arguments | self.constants | options | {"enable_fp_fusion": True}

    def run(self) -> None:
        """On the GPU, on torch's current stream, for CUDA tensors; else in the interpreter."""
        lens = self.arguments["seq_lens_ptr"]
        if lens.is_cuda:
            with torch.cuda.device(lens.device):  # Triton launches on the current device
                self.kernel[self.grid](**self.for_gpu)
        else:
            from pa_tutorial.kernels.triton.interpreter import interpret

            interpret(self.kernel, self.grid, **self.arguments, **self.constants)


@dataclass(frozen=True)
class TritonLaunch:
    """One decode step: the result of each partition, then the merged output.

    partitions  writes max_logits, exp_sums [num_seqs, num_heads, max_num_partitions] float32 and
                tmp_out [.., head_size] float32: the sum of weight * value, not yet divided
    reduce      writes out [num_seqs, num_heads, head_size], in the dtype of q
    """

    partitions: TritonCall
    reduce: TritonCall

    @property
    def out(self) -> Tensor:
        return self.reduce.arguments["out_ptr"]

    def run(self) -> Tensor:
        """Run both kernels and return `out`, which each run overwrites."""
        self.partitions.run()
        self.reduce.run()
        return self.out

    def probe(self) -> dict[str, Tensor]:
        """Run both kernels; return `out`, qk_max and exp_sum [num_seqs, num_heads, 1], and accs
        [num_seqs, num_heads, head_size]."""
        self.run()
        m, l, acc = self.merged()
        found = {"qk_max": m[..., None], "exp_sum": l[..., None], "accs": acc / l[..., None]}
        return found | {"out": self.out}

    def merged(self) -> Part:
        """The partitions of the last run, merged in torch: m, l [num_seqs, num_heads] and
        acc [.., head_size]. A partition past the end of a sequence counts as empty."""
        values = self.partitions.arguments
        lens, num_partitions = values["seq_lens_ptr"], values["max_num_partitions"]
        starts = values["partition_size"] * torch.arange(num_partitions, device=lens.device)
        is_empty = (starts >= lens[:, None])[:, None]
        part = Part(
            values["max_logits_ptr"].masked_fill(is_empty, float("-inf")),
            values["exp_sums_ptr"].masked_fill(is_empty, 0.0),
            values["tmp_out_ptr"].masked_fill(is_empty[..., None], 0.0),
        )
        return fold(merge, map(Part, *(tensor.unbind(2) for tensor in part)))


@dataclass(frozen=True)
class TritonBackend:
    """The Triton kernels: any head size and block size, the plain layout."""

    layout: ClassVar[str] = "plain"
    reusable: ClassVar[bool] = False  # a launch's partitions are for the lengths it was made with

    def prepare(
        self,
        step: DecodeStep,
        max_seq_len: int | None = None,
        partition_size: int = VLLM_PARTITION_SIZE,
        tile_size: int | None = None,
        num_warps: int = NUM_WARPS,
        num_stages: int = NUM_STAGES,
    ) -> TritonLaunch:
        """Check everything and allocate the outputs once; then `run()` as often as you like.

        max_seq_len     length of the longest sequence, for the number of partitions. The default is
                        the largest of seq_lens; on a GPU, where they aren't read, as many tokens
                        as a block table has room for
        partition_size  tokens that one program processes
        tile_size       tokens per iteration of its loop: a power of two, 16 to 1,024; by default as
                        many as fit into 8 KiB of keys, at most 64
        num_warps, num_stages  on a GPU: see TritonCall

        Raises as paged_attention_triton.
        """
        if why := why_absent():
            raise ImportError(f"the Triton kernels cannot run here: {why}")
        from pa_tutorial.kernels.triton import decode

        require_triton_inputs(step)
        num_seqs, num_heads, head_size = step.q.shape
        if tile_size is None:
            tile_size = usual_tile(head_size, step.k_cache.element_size())
        partition_size = checked_size("partition_size", partition_size)
        tile_size = checked_size("tile_size", tile_size)
        options = {
            "num_warps": checked_size("num_warps", num_warps),
            "num_stages": checked_size("num_stages", num_stages),
        }
        most = step.longest(max_seq_len)
        max_num_partitions = divide_round_up(most, partition_size)
        least = divide_round_up(most, MAX_GRID_YZ)
        allowed = f"at least {least}: a grid has room for {MAX_GRID_YZ:,} partitions along axis z"
        require(partition_size >= least, "partition_size", partition_size, allowed)
        values = values_of(step) | unwritten_outputs(step.q, max_num_partitions)
        values |= {"partition_size": partition_size, "max_num_partitions": max_num_partitions}
        values |= {"TILE_SIZE": tile_size}
        grid = step.k_cache.shape[1], num_seqs, max_num_partitions
        partitions = call_of(decode.paged_decode_kernel, grid, values, **options)
        reduce = call_of(decode.reduce_kernel, (num_heads, num_seqs, 1), values)
        return TritonLaunch(partitions, reduce)

    def why_absent(self) -> str | None:
        return why_absent()


triton_backend = TritonBackend()


def call_of(
    kernel: Callable, grid: tuple[int, int, int], values: dict[str, object], **options: int
) -> TritonCall:
    """The call, with the values that the kernel takes; its constants are in capitals.

    Raises TypeError or ValueError, naming the argument, for what a call can't have.
    """
    grid = checked_grid(kernel, grid)
    has_all = isinstance(values, dict) and set(kernel.arg_names) <= set(values)
    require_type(has_all, "values", values, "a dictionary with all arguments of the kernel")
    known = {name: values[name] for name in kernel.arg_names}
    constants = {name: known.pop(name) for name in list(known) if name.isupper()}
    return TritonCall(kernel, grid, known, constants, **options)


def values_of(step: DecodeStep) -> dict[str, object]:
    """The arguments and constants of both kernels that follow from the step."""
    num_heads, head_size = step.q.shape[1:]
    _, num_kv_heads, block_size, _ = step.k_cache.shape
    return {
        "q_ptr": step.q.detach(),
        "k_cache_ptr": stored(step.k_cache),
        "v_cache_ptr": stored(step.v_cache),
        "block_tables_ptr": step.block_tables,
        "seq_lens_ptr": step.seq_lens,
        "alibi_slopes_ptr": step.float_slopes().contiguous(),
        "k_scale_ptr": step.k_scale,
        "v_scale_ptr": step.v_scale,
        "scale": float(float32_scale(step.scale)),
        "table_stride": step.block_tables.stride(0),
        "q_stride": step.q.stride(0),
        "kv_block_stride": step.k_cache.stride(0),
        "kv_head_stride": step.k_cache.stride(1),
        "NUM_QUERIES_PER_KV": num_heads // num_kv_heads,
        "NUM_QUERIES_PADDED": next_power_of_two(num_heads // num_kv_heads),
        "HEAD_SIZE": head_size,
        "HEAD_SIZE_PADDED": padded(head_size),
        "BLOCK_SIZE": block_size,
        "PARTITIONS_AT_ONCE": PARTITIONS_AT_ONCE,
    }


def unwritten_outputs(q: Tensor, max_num_partitions: int) -> dict[str, Tensor]:
    """What both kernels write, all NaN. Each is a separate allocation, because Triton recompiles
    for a tensor that doesn't begin at a multiple of 16 bytes, as a piece of another may not."""
    nan, shape = partial(q.new_full, fill_value=torch.nan), (*q.shape[:2], max_num_partitions)
    return {
        "max_logits_ptr": nan(shape, dtype=torch.float32),
        "exp_sums_ptr": nan(shape, dtype=torch.float32),
        "tmp_out_ptr": nan((*shape, q.shape[2]), dtype=torch.float32),
        "out_ptr": nan(q.shape),
    }


def paged_attention_triton(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """One decode step in Triton. Stage `triton`.

    The arguments and the output are those of paged_attention_cpu. Any head size and block size
    works, and the caches may have gaps between blocks and heads, the same in both. For other tile
    or partition sizes, use triton_backend.prepare.

    With CUDA tensors it runs on the GPU, on torch's current stream. With tensors on the CPU it
    runs in Triton's interpreter, about 4 ms per tile.
    Raises ImportError, with the reason, where there is no Triton; TypeError or ValueError, naming
    the argument, before anything runs, for what DecodeStep or the kernel can't take.
    """
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    return triton_backend.prepare(step).run()
