"""From a decode step to launches: the backends of the CUDA kernels.

Each checks what its kernel can take, allocates the outputs, and passes everything to a launch
(cuda_launch.py), which runs on the GPU for CUDA tensors and in the simulator for others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pa_tutorial.arguments import float32_scale, require, strides, whole_number
from pa_tutorial.attention.step import DecodeStep, require_for_kernel
from pa_tutorial.kernels.choose import VLLM_PARTITION_SIZE
from pa_tutorial.kernels.cuda_launch import (
    CudaLaunch,
    NaiveLaunch,
    PagedLaunch,
    PartitionedLaunch,
    as_stored,
    flat,
)
from pa_tutorial.kernels.geometry import FLOAT_BYTES, VEC_BYTES, Geometry, divide_round_up
from pa_tutorial.kernels.loads import LoadsOf, element_loads
from pa_tutorial.kernels.naive import naive_kernel
from pa_tutorial.kernels.on_gpu import max_shared_bytes
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.reduce import reduce
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.paging.quantization import FLOAT8
from simt.gpus import MAX_GRID_YZ
from simt.launch_options import MAX_SHARED

OF_A_TOKEN = (
    "4 for each token. paged_attention_v2 has no such limit: each of its thread blocks has the "
    "scores of one partition"
)
OF_A_PARTITION = "8 for each partition: a larger partition_size needs less"


@dataclass(frozen=True)
class CudaBackend:
    """What the backends of the CUDA kernels share."""

    layout: ClassVar[str] = "vllm"
    # A launch's shared memory, and v2's partitions, are sized for the lengths it was prepared with.
    reusable: ClassVar[bool] = False

    def why_absent(self) -> None:
        """None, because they run everywhere; without a GPU, in the simulator."""
        return None


class NaiveBackend(CudaBackend):
    """The first paged kernel: one thread per token."""

    def prepare(
        self, step: DecodeStep, num_threads: int = 128, max_seq_len: int | None = None
    ) -> NaiveLaunch:
        """The launch of naive_kernel. Sizes and errors are as for PagedBackend.prepare."""
        require_for_kernel(step, "vllm")
        geometry, q = geometry_of(step, num_threads), step.q
        max_seq_len = step.longest(max_seq_len)
        shared_bytes = FLOAT_BYTES * max_seq_len
        require_shared(shared_bytes, q, max_seq_len, OF_A_TOKEN)
        out = not_written(q.shape, q)
        arguments = {"out": as_stored(out)} | arguments_of(step, as_stored)
        grid = (q.shape[1], q.shape[0], 1)
        return NaiveLaunch(naive_kernel(geometry), geometry, grid, shared_bytes, arguments, out)


@dataclass(frozen=True)
class PagedBackend(CudaBackend):
    """vLLM's v1. loads: element_loads, or vector_loads for loads of 4, 8 and 16 bytes."""

    loads: LoadsOf

    def prepare(
        self, step: DecodeStep, num_threads: int = 128, max_seq_len: int | None = None
    ) -> PagedLaunch:
        """The launch of the paged kernel: run it, watch it or repeat it.

            launch = v1_backend.prepare(step)
            report = launch.simulate(trace=0)

        num_threads  per thread block: 64, 128 or 256
        max_seq_len  length of the longest sequence, for the size of the shared memory. The default
                     is the largest of seq_lens; on a GPU, where they aren't read, as many tokens
                     as a block table has room for

        Raises ValueError for shapes, dtypes, strides and sizes that the kernel can't take, and for
        a context that doesn't fit into shared memory. With vector_loads, q and the caches, each
        sequence of q, each block and each head must also start at a multiple of the bytes that one
        load brings (16, for q sometimes fewer), as in tensors that torch allocates.
        Source: vLLM, csrc/attention/paged_attention_v1.cu.
        """
        return paged_launch(step, geometry_of(step, num_threads), self.loads, max_seq_len)


@dataclass(frozen=True)
class PartitionedBackend(CudaBackend):
    """vLLM's v2: a thread block per partition of each sequence and head, then the reduce kernel."""

    loads: LoadsOf

    def prepare(
        self,
        step: DecodeStep,
        num_threads: int = 128,
        max_seq_len: int | None = None,
        partition_size: int = VLLM_PARTITION_SIZE,
    ) -> PartitionedLaunch:
        """The two launches of v2.

            launch = v2_backend.prepare(step)
            partitions, reduced = launch.simulate()    # the reports of both

        partition_size  tokens per partition, a multiple of the block size; vLLM has 512

        Other sizes and errors are as for PagedBackend.prepare. A long context needs no more shared
        memory than a short one, except 8 bytes per partition.
        Source: vLLM, csrc/attention/paged_attention_v2.cu.
        """
        require_for_kernel(step, "vllm", reads_float8=True)
        partition_size, size = whole_number("partition_size", partition_size), step.block_size
        allowed = f"a multiple of block_size, which is {size}; v1 has no partitions"
        fits = partition_size >= 1 and partition_size % size == 0
        require(fits, "partition_size", partition_size, allowed)
        geometry = geometry_of(step, num_threads, partition_size)
        partitions = paged_launch(step, geometry, self.loads, max_seq_len)
        return PartitionedLaunch(partitions, reduce_launch(partitions))


naive_backend = NaiveBackend()
v1_backend = PagedBackend(element_loads)
v1_vector_backend = PagedBackend(vector_loads)
v2_backend = PartitionedBackend(vector_loads)


def paged_launch(
    step: DecodeStep, geometry: Geometry, loads: LoadsOf, max_seq_len: int | None
) -> PagedLaunch:
    """The launch of the paged kernel, for v1 or v2."""
    max_seq_len = step.longest(max_seq_len)
    shared_bytes = require_launch(step, geometry, loads, max_seq_len)
    num_partitions = 0
    if geometry.PARTITION_SIZE:
        num_partitions = divide_round_up(max_seq_len, geometry.PARTITION_SIZE)
    num_seqs, num_heads, _ = step.q.shape
    grid, kernel = (num_heads, num_seqs, num_partitions or 1), paged_attention(geometry, loads)
    written = outputs(step.q, num_partitions)
    arguments = {name: flat(tensor) for name, tensor in written.items()} | arguments_of(step)
    arguments |= {  # since it sees flat memory
        "q_stride": step.q.stride(0),
        "kv_block_stride": step.k_cache.stride(0),
        "kv_head_stride": step.k_cache.stride(1),
        "k_scale": scale_of(step, step.k_scale),
        "v_scale": scale_of(step, step.v_scale),
    }
    sizes, out = (geometry, grid, shared_bytes), written["out"]
    return PagedLaunch(kernel, *sizes, arguments, out, unwritten=tuple(written))


def outputs(q: Tensor, num_partitions: int) -> dict[str, Tensor]:
    """What the paged kernel writes, by the names of its arguments; for v2, out is tmp_out."""
    if not num_partitions:
        # v1 has no partitions, so the simulator reports any access to these. (A GPU needs an
        # address.)
        nothing = torch.empty(1 if q.is_cuda else 0, device=q.device)
        return {"exp_sums": nothing, "max_logits": nothing, "out": not_written(q.shape, q)}
    num_seqs, num_heads, head_size = q.shape
    of_a_head = num_seqs, num_heads, num_partitions
    exp_sums, max_logits = (not_written(of_a_head, q, torch.float32) for _ in range(2))
    tmp_out = not_written((*of_a_head, head_size), q)
    return {"exp_sums": exp_sums, "max_logits": max_logits, "out": tmp_out}


def reduce_launch(partitions: PagedLaunch) -> CudaLaunch:
    """The launch that merges the partitions of another launch."""
    tmp_out, geometry = partitions.out, partitions.geometry
    num_seqs, num_heads, num_partitions, head_size = tmp_out.shape
    shared_bytes = 2 * num_partitions * FLOAT_BYTES
    total = shared_bytes + 2 * geometry.NUM_WARPS * FLOAT_BYTES  # and red_smem
    require_shared(total, tmp_out, num_partitions * geometry.PARTITION_SIZE, OF_A_PARTITION)
    out = not_written((num_seqs, num_heads, head_size), tmp_out)
    left = partitions.arguments
    arguments = {
        "out": flat(out),
        "exp_sums": left["exp_sums"],
        "max_logits": left["max_logits"],
        "tmp_out": left["out"],
        "seq_lens": left["seq_lens"],
        "max_num_partitions": num_partitions,
    }
    grid = (num_heads, num_seqs, 1)
    return CudaLaunch(reduce(geometry), geometry, grid, shared_bytes, arguments, out)


def arguments_of(step: DecodeStep, memory: Callable[[Tensor], Tensor] = flat) -> dict[str, object]:
    """What the kernels read, in the order of their signatures; `memory` turns q and the caches
    into what a kernel takes."""
    return {
        "q": memory(step.q),
        "k_cache": memory(step.k_cache),
        "v_cache": memory(step.v_cache),
        "scale": float32_scale(step.scale),
        "block_tables": step.block_tables,
        "seq_lens": step.seq_lens,
        "alibi_slopes": step.float_slopes(),
    }


def scale_of(step: DecodeStep, scale: Tensor | None) -> Tensor:
    """[num_kv_heads] float32. A kernel for another cache than an 8-bit one doesn't read it."""
    return torch.ones(step.k_cache.shape[1], device=step.q.device) if scale is None else scale


def not_written(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of NaN."""
    return torch.full(shape, float("nan"), dtype=dtype or like.dtype, device=like.device)


# What a kernel can take -----------------------------------------------------------------------


def geometry_of(step: DecodeStep, num_threads: int, partition_size: int = 0) -> Geometry:
    """The geometry of a step. Raises TypeError or ValueError for what no kernel can take."""
    require_for_kernel(step, "vllm", reads_float8=True)
    x = 16 // step.k_cache.element_size()
    require(step.k_cache.shape[4] == x, "k_cache.shape[4]", step.k_cache.shape[4], f"x = {x}")
    step.require_strides(k_dims=3, v_dims=2)
    allowed = f"at most {MAX_GRID_YZ}: axis y of a grid"
    require(len(step.q) <= MAX_GRID_YZ, "len(q)", len(step.q), allowed)
    num_heads, head_size = step.q.shape[1:]
    return Geometry(
        head_size=head_size,
        block_size=step.k_cache.shape[3],
        dtype=step.q.dtype,
        num_threads=num_threads,
        partition_size=partition_size,
        num_queries_per_kv=num_heads // step.k_cache.shape[1],
        cache_dtype=step.k_cache.dtype if step.k_cache.dtype in FLOAT8 else None,
    )


def require_launch(step: DecodeStep, geometry: Geometry, loads: LoadsOf, max_seq_len: int) -> int:
    """The paged kernel's dynamic shared memory; ValueError if the kernel can't be launched."""
    shared_bytes = geometry.dynamic_shared_bytes(max_seq_len)
    total, size = shared_bytes + geometry.static_shared_bytes, geometry.PARTITION_SIZE
    if size:
        require_shared(total, step.q, size, "4 for each of its tokens", "partition_size")
    else:
        require_shared(total, step.q, max_seq_len, OF_A_TOKEN)
    if loads is vector_loads:
        require_aligned(geometry, step)
    return shared_bytes


def require_aligned(geometry: Geometry, step: DecodeStep) -> None:
    """Raise ValueError unless every vec starts at a multiple of its size.

    A GPU stops a kernel that loads 16 bytes from an address that isn't a multiple of 16. The heads
    of q and the pieces of a block are whole numbers of vecs long, so only the start of a tensor
    and the strides over sequences, blocks and heads need checking.
    """
    vec_bytes = geometry.VEC_SIZE * geometry.ITEMSIZE
    for name, tensor, num_bytes, dims in (
        ("q", step.q, vec_bytes, 1),
        ("k_cache", step.k_cache, VEC_BYTES, 2),
        ("v_cache", step.v_cache, VEC_BYTES, 2),
    ):
        past = tensor.data_ptr() % num_bytes
        where = f"{past} bytes past a multiple of {num_bytes}"
        allowed = f"at a multiple of {num_bytes}, the bytes of one load"
        require(past == 0, f"{name}.data_ptr()", where, allowed)
        for dim, distance in enumerate(strides(tensor)[:dims]):
            stride = distance * tensor.element_size()
            allowed = f"a multiple of {num_bytes} bytes, the size of one load"
            require(stride % num_bytes == 0, f"{name}.stride({dim})", f"{stride} bytes", allowed)


def require_shared(
    num_bytes: int, where: Tensor, value: int, hint: str, name: str = "max_seq_len"
) -> None:
    """Raise ValueError for a value that needs more shared memory than a thread block can have.

    v1 keeps all scores of a sequence there, which limits its length.
    """
    limit = most_shared(where)
    if num_bytes > limit:
        raise ValueError(
            f"{name} is {value}, which needs {num_bytes:,} bytes of shared memory; a thread block "
            f"has at most {limit:,}, {hint}"
        )


def most_shared(tensor: Tensor) -> int:
    """The most shared memory that a thread block can have on this tensor's device."""
    return max_shared_bytes() if tensor.is_cuda else MAX_SHARED
