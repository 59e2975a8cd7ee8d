"""From a decode step to launches: the backends of the CUDA kernels.

Each checks what its kernel can take, allocates the outputs, and passes everything to a launch
(cuda_launch.py), which runs on the GPU for CUDA tensors and in the simulator for others. The
kernels are those of naive.py, v1.py, v1_vector.py and v2.py; with a reader's functions in them:

    mine = v1_backend.with_functions(v1=[load_key, qk_dot])
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.arguments import float32_scale, require, require_type, strides, whole_number
from pa_tutorial.attention.backend import Backend
from pa_tutorial.attention.step import DecodeStep, require_for_kernel
from pa_tutorial.kernels.choose import VLLM_PARTITION_SIZE
from pa_tutorial.kernels.cuda_launch import (
    CudaLaunch,
    NaiveLaunch,
    PagedLaunch,
    PartitionedLaunch,
    as_stored,
)
from pa_tutorial.kernels.geometry import FLOAT_BYTES, VEC_BYTES, Geometry, divide_round_up
from pa_tutorial.kernels.on_gpu import max_shared_bytes
from pa_tutorial.kernels.sources import FILES, Mine, Source
from pa_tutorial.kernels.template import made
from pa_tutorial.paging.quantization import FLOAT8
from simt.gpus import MAX_GRID_YZ
from simt.launch_options import MAX_SHARED

OF_A_TOKEN = (
    "4 for each token. paged_attention_v2 has no such limit: each of its thread blocks has the "
    "scores of one partition"
)
OF_A_PARTITION = "8 for each partition: a larger partition_size needs less"


class Arguments(NamedTuple):
    """What v1 and the naive kernel are launched with, in their order. bfloat16 is stored as uint16,
    float8 as uint8."""

    out: Tensor
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    scale: np.float32
    block_tables: Tensor
    seq_lens: Tensor
    alibi_slopes: Tensor


def arguments_of(step: DecodeStep) -> Arguments:
    """The step as a kernel takes it, and `out`, all NaN: launch_v1(*arguments_of(step))"""
    tensors = not_written(step.q.shape, step.q), step.q, step.k_cache, step.v_cache
    numbers = float32_scale(step.scale), step.block_tables, step.seq_lens, step.float_slopes()
    return Arguments(*map(as_stored, tensors), *numbers)


def partials_of(step: DecodeStep, num_partitions: int) -> tuple[Tensor, Tensor, Tensor]:
    """What v2's first kernel writes, all NaN: exp_sums, max_logits, tmp_out, as it stores them."""
    num_seqs, num_heads, head_size = step.q.shape
    shape = num_seqs, num_heads, num_partitions
    exp_sums, max_logits = (not_written(shape, step.q, torch.float32) for _ in range(2))
    return exp_sums, max_logits, as_stored(not_written((*shape, head_size), step.q))


def not_written(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of NaN."""
    return torch.full(shape, float("nan"), dtype=dtype or like.dtype, device=like.device)


def scales_of(step: DecodeStep) -> dict[str, Tensor]:
    """[num_kv_heads] float32 each, of an 8-bit cache; another has none."""
    if step.k_cache.dtype not in FLOAT8:
        return {}
    return {"k_scale": step.k_scale, "v_scale": step.v_scale}


@dataclass(frozen=True)
class CudaBackend:
    """What the backends of the CUDA kernels share.

    kernel  which files make it: see sources.FILES
    mine    a reader's functions, by file: see with_functions
    """

    kernel: str
    mine: Mine = ()

    layout: ClassVar[str] = "vllm"
    # A launch's shared memory, and v2's partitions, are sized for the lengths it was prepared with.
    reusable: ClassVar[bool] = False

    def why_absent(self) -> None:
        """None, because they run everywhere; without a GPU, in the simulator."""
        return None

    def with_functions(self, **functions: Sequence[Callable | Source]) -> Self:
        """This backend with a reader's functions in its kernel, besides those it has already.

        functions  by file: v1=[load_key, qk_dot] take the place of these functions of v1.py

        Where a later file of the kernel defines a function again, the earlier one doesn't run. For
        an 8-bit cache float8.py comes last: load_key, add_values and the paged kernels are ours.

        Raises ValueError for a file that isn't one of the kernel's, TypeError for a function that
        is in no list.
        """
        mine, files = dict(self.mine), FILES[self.kernel]
        for file, theirs in functions.items():
            require(file in files, "file", file, f"one of {', '.join(files)} for {self.kernel}")
            require_type(isinstance(theirs, list | tuple), file, theirs, "a list of functions")
            mine[file] = (*mine.get(file, ()), *theirs)
        return replace(self, mine=tuple(mine.items()))

    def namespace(self, **sizes: object) -> ModuleType:
        """The kernel's constants and functions for these sizes: see template.made."""
        return made(self.kernel, self.mine, **sizes)

    def same_bits(self, other: Backend, step: DecodeStep) -> list[str]:
        """The quantities of a step (qk, …, out) whose bits another backend has, too."""
        mine, theirs = self.prepare(step).probe(), other.prepare(step).probe()
        return [n for n in theirs if torch.equal(mine[n].nan_to_num(), theirs[n].nan_to_num())]


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
        namespace, arguments = self.namespace(**geometry.sizes), arguments_of(step)
        return NaiveLaunch(
            namespace,
            namespace.naive_kernel,
            geometry,
            grid=(q.shape[1], q.shape[0], 1),
            shared_bytes=shared_bytes,
            arguments=arguments._asdict(),
            out=arguments.out.view(q.dtype),
        )


class PagedBackend(CudaBackend):
    """vLLM's v1: "v1", by element, or "v1_vector", with loads of 4, 8 and 16 bytes."""

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
        a context that doesn't fit into shared memory. With vector loads (an 8-bit cache is always
        read by them), q and the caches, each sequence of q, each block and each head must also
        start at a multiple of the bytes that one load brings (16, for q sometimes fewer), as in
        tensors that torch allocates.
        Source: vLLM, csrc/attention/paged_attention_v1.cu.
        """
        geometry, max_seq_len = geometry_of(step, num_threads), step.longest(max_seq_len)
        reads_vecs = self.kernel == "v1_vector" or geometry.cache_dtype is not None
        shared_bytes = require_launch(step, geometry, max_seq_len, reads_vecs)
        namespace, arguments = self.namespace(**geometry.sizes), arguments_of(step)
        return PagedLaunch(
            namespace,
            namespace.paged_attention_v1,
            geometry,
            grid=(step.q.shape[1], step.q.shape[0], 1),
            shared_bytes=shared_bytes,
            arguments=arguments._asdict() | scales_of(step),
            out=arguments.out.view(step.q.dtype),
        )


class PartitionedBackend(CudaBackend):
    """vLLM's v2: a thread block per partition of each sequence and head, then the reduce kernel."""

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
        num_partitions = divide_round_up(step.longest(max_seq_len), partition_size)
        namespace = self.namespace(**geometry.sizes)
        partitions = partitions_launch(namespace, geometry, step, num_partitions)
        return PartitionedLaunch(partitions, reduce_launch(namespace, partitions, step))


naive_backend = NaiveBackend("naive")
v1_backend = PagedBackend("v1")
v1_vector_backend = PagedBackend("v1_vector")
v2_backend = PartitionedBackend("v2")


def partitions_launch(
    namespace: ModuleType, geometry: Geometry, step: DecodeStep, num_partitions: int
) -> PagedLaunch:
    """The launch of v2's first kernel; its out is tmp_out."""
    shared_bytes = require_launch(step, geometry, geometry.PARTITION_SIZE, reads_vecs=True)
    exp_sums, max_logits, tmp_out = partials_of(step, num_partitions)
    written = {"exp_sums": exp_sums, "max_logits": max_logits, "tmp_out": tmp_out}
    read = arguments_of(step)._asdict() | scales_of(step)
    del read["out"]  # of the reduce kernel
    return PagedLaunch(
        namespace,
        namespace.paged_attention_v2,
        geometry,
        grid=(step.q.shape[1], step.q.shape[0], num_partitions),
        shared_bytes=shared_bytes,
        arguments=written | read,
        out=tmp_out.view(step.q.dtype),
        unwritten=tuple(written),
    )


def reduce_launch(namespace: ModuleType, partitions: PagedLaunch, step: DecodeStep) -> CudaLaunch:
    """The launch that merges the partitions of another launch."""
    geometry, num_partitions = partitions.geometry, partitions.out.shape[2]
    shared_bytes = 2 * num_partitions * FLOAT_BYTES
    total = shared_bytes + 2 * geometry.NUM_WARPS * FLOAT_BYTES  # and red_smem
    require_shared(total, step.q, num_partitions * geometry.PARTITION_SIZE, OF_A_PARTITION)
    out = not_written(step.q.shape, step.q)
    left = {n: partitions.arguments[n] for n in ("exp_sums", "max_logits", "tmp_out", "seq_lens")}
    return CudaLaunch(
        namespace,
        namespace.reduce_partitions,
        geometry,
        grid=(step.q.shape[1], step.q.shape[0], 1),
        shared_bytes=shared_bytes,
        arguments={"out": as_stored(out)} | left,
        out=out,
    )


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


def require_launch(step: DecodeStep, geometry: Geometry, max_seq_len: int, reads_vecs: bool) -> int:
    """The paged kernel's dynamic shared memory; ValueError if the kernel can't be launched."""
    shared_bytes = geometry.dynamic_shared_bytes(max_seq_len)
    total, size = shared_bytes + geometry.static_shared_bytes, geometry.PARTITION_SIZE
    if size:
        require_shared(total, step.q, size, "4 for each of its tokens", "partition_size")
    else:
        require_shared(total, step.q, max_seq_len, OF_A_TOKEN)
    if reads_vecs:
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
