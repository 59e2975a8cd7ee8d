"""From tensors to launches: what is checked, allocated and handed to the kernels."""

from collections.abc import Callable

import torch
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.kernels.choose import VLLM_PARTITION_SIZE
from pa_tutorial.kernels.dtypes import as_kept
from pa_tutorial.kernels.geometry import FLOAT_BYTES, Geometry, divide_round_up
from pa_tutorial.kernels.gpu import max_shared_bytes
from pa_tutorial.kernels.inputs import (
    flat,
    float32_scale,
    geometry_of,
    longest,
    require_aligned,
    require_shared,
    slopes_or_zeros,
)
from pa_tutorial.kernels.loads import Loads, element_loads
from pa_tutorial.kernels.naive import naive_kernel
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.reduce import reduce
from pa_tutorial.kernels.running import Launch, Partitioned
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.simt.simulate import MAX_SHARED

LoadsOf = Callable[[Geometry], Loads]


def prepare_naive(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    num_threads: int = 128,
    max_seq_len: int | None = None,
) -> Launch:
    """The launch of naive_kernel. Arguments and errors are those of paged_attention_v1."""
    geometry = geometry_of(q, k_cache, v_cache, block_tables, seq_lens, alibi_slopes, num_threads)
    max_seq_len = longest(block_tables, seq_lens, geometry.BLOCK_SIZE, max_seq_len)
    shared_bytes = FLOAT_BYTES * max_seq_len
    require_shared(shared_bytes, max_seq_len, most_shared(q))
    out = not_written(q.shape, q)
    arguments = {
        "out": as_kept(out),
        "q": as_kept(q),
        "k_cache": as_kept(k_cache),
        "v_cache": as_kept(v_cache),
        "scale": float32_scale(scale),
        "block_tables": block_tables,
        "seq_lens": seq_lens,
        "alibi_slopes": slopes_or_zeros(alibi_slopes, q),
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
    loads: LoadsOf = element_loads,
    max_seq_len: int | None = None,
) -> Launch:
    """The launch of paged_attention_v1, for those who want to watch it or to repeat it.

        ready = prepare_v1(...)
        report = ready.simulate(trace=0)

    Arguments and errors are those of paged_attention_v1; num_threads may be 64 or 256 too, loads
    is element_loads or vector_loads.
    """
    geometry = geometry_of(q, k_cache, v_cache, block_tables, seq_lens, alibi_slopes, num_threads)
    max_seq_len = longest(block_tables, seq_lens, geometry.BLOCK_SIZE, max_seq_len)
    shared_bytes = geometry.dynamic_shared_bytes(max_seq_len)
    require_shared(shared_bytes + geometry.static_shared_bytes, max_seq_len, most_shared(q))
    out = not_written(q.shape, q)
    # v1 has no partitions to tell about: touching these is a finding of the simulator. (A GPU
    # needs an address.)
    nothing = torch.empty(1 if q.is_cuda else 0, device=q.device)
    written = {"exp_sums": nothing, "max_logits": nothing, "out": flat(as_kept(out))}
    others = (block_tables, seq_lens, slopes_or_zeros(alibi_slopes, q))
    arguments = written | read_arguments(geometry, loads, q, k_cache, v_cache, scale, *others)
    grid = (q.shape[1], q.shape[0], 1)
    kernel = paged_attention(geometry, loads)
    return Launch(kernel, geometry, grid, shared_bytes, arguments, out)


def prepare_v2(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
    num_threads: int = 128,
    loads: LoadsOf = vector_loads,
    max_seq_len: int | None = None,
    partition_size: int = VLLM_PARTITION_SIZE,
) -> Partitioned:
    """The two launches of paged_attention_v2, for those who want to watch or to repeat them.

        ready = prepare_v2(...)
        partitions, reduced = ready.simulate()    # the reports of both

    Arguments and errors are those of paged_attention_v2; num_threads may be 64 or 256 too, loads
    is element_loads or vector_loads.
    """
    require(partition_size != 0, "partition_size", partition_size, "1 or more; v1 is without")
    tensors = (q, k_cache, v_cache, block_tables, seq_lens, alibi_slopes)
    geometry = geometry_of(*tensors, num_threads, partition_size)
    max_seq_len = longest(block_tables, seq_lens, geometry.BLOCK_SIZE, max_seq_len)
    num_partitions = divide_round_up(max_seq_len, partition_size)
    shared_bytes = geometry.dynamic_shared_bytes(max_seq_len)
    total, of_a_token = shared_bytes + geometry.static_shared_bytes, "4 for each of its tokens"
    require_shared(total, partition_size, most_shared(q), "partition_size", of_a_token)
    num_seqs, num_heads, head_size = q.shape
    of_a_head = (num_seqs, num_heads, num_partitions)
    # NaN: places of partitions that a short sequence does not have are never written.
    tmp_out = not_written((*of_a_head, head_size), q)
    written = {
        "exp_sums": flat(not_written(of_a_head, q, torch.float32)),
        "max_logits": flat(not_written(of_a_head, q, torch.float32)),
        "out": flat(as_kept(tmp_out)),
    }
    others = (block_tables, seq_lens, slopes_or_zeros(alibi_slopes, q))
    arguments = written | read_arguments(geometry, loads, q, k_cache, v_cache, scale, *others)
    partitions = Launch(
        kernel=paged_attention(geometry, loads),
        geometry=geometry,
        grid=(num_heads, num_seqs, num_partitions),
        shared_bytes=shared_bytes,
        arguments=arguments,
        out=tmp_out,
        unwritten=tuple(written),
    )
    return Partitioned(partitions, prepare_reduce(partitions))


def prepare_reduce(partitions: Launch) -> Launch:
    """The launch that joins the partitions of another launch."""
    tmp_out, geometry = partitions.out, partitions.geometry
    num_seqs, num_heads, num_partitions, head_size = tmp_out.shape
    shared_bytes = 2 * num_partitions * FLOAT_BYTES
    total = shared_bytes + 2 * geometry.NUM_WARPS * FLOAT_BYTES  # and red_smem
    max_seq_len = num_partitions * geometry.PARTITION_SIZE
    hint = "8 for each partition: a larger partition_size needs less"
    require_shared(total, max_seq_len, most_shared(tmp_out), hint=hint)
    out = not_written((num_seqs, num_heads, head_size), tmp_out)
    arguments = {
        "out": flat(as_kept(out)),
        "exp_sums": partitions.arguments["exp_sums"],
        "max_logits": partitions.arguments["max_logits"],
        "tmp_out": partitions.arguments["out"],
        "seq_lens": partitions.arguments["seq_lens"],
        "max_num_partitions": num_partitions,
    }
    grid = (num_heads, num_seqs, 1)
    return Launch(reduce(geometry), geometry, grid, shared_bytes, arguments, out)


def read_arguments(
    geometry: Geometry,
    loads: LoadsOf,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    scale: float,
    block_tables: Tensor,
    seq_lens: Tensor,
    alibi_slopes: Tensor,
) -> dict[str, object]:
    """What paged_attention reads, by name, in its order."""
    if loads is vector_loads:
        require_aligned(geometry, q, k_cache, v_cache)
    return {
        "q": flat(as_kept(q)),
        "k_cache": flat(as_kept(k_cache)),
        "v_cache": flat(as_kept(v_cache)),
        "scale": float32_scale(scale),
        "block_tables": block_tables,
        "seq_lens": seq_lens,
        "alibi_slopes": alibi_slopes,
        "q_stride": q.stride(0),
        "kv_block_stride": k_cache.stride(0),
        "kv_head_stride": k_cache.stride(1),
    }


def not_written(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """NaN in every place."""
    return torch.full(shape, float("nan"), dtype=dtype or like.dtype, device=like.device)


def most_shared(tensor: Tensor) -> int:
    """Shared memory that a thread block can have where this tensor is."""
    return max_shared_bytes() if tensor.is_cuda else MAX_SHARED
