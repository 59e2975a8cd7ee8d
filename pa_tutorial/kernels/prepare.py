"""From a decode step to launches: what is checked, allocated and handed to the kernels."""

from collections.abc import Callable
from functools import wraps
from inspect import signature

import torch
from torch import Tensor

from pa_tutorial.arguments import float32_scale, require, steps
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.choose import VLLM_PARTITION_SIZE
from pa_tutorial.kernels.geometry import FLOAT_BYTES, VEC_BYTES, Geometry, divide_round_up
from pa_tutorial.kernels.gpu_launch import max_shared_bytes
from pa_tutorial.kernels.loads import LoadsOf, element_loads
from pa_tutorial.kernels.naive import naive_kernel
from pa_tutorial.kernels.paged_attention import paged_attention
from pa_tutorial.kernels.reduce import reduce
from pa_tutorial.kernels.running import Launch, Partitioned, as_stored, flat
from pa_tutorial.kernels.vectors import vector_loads
from pa_tutorial.simt.simulate import MAX_SHARED

OF_A_TOKEN = (
    "4 for each token. paged_attention_v2 has no such limit: each of its thread blocks has the "
    "scores of one partition"
)
OF_A_PARTITION = "8 for each partition: a larger partition_size needs less"

# The arguments of the kernels, in the order of their signatures.
NAIVE = ("out", "q", "k_cache", "v_cache", "scale", "block_tables", "seq_lens", "alibi_slopes")
STRIDES = ("q_stride", "kv_block_stride", "kv_head_stride")
PAGED = ("exp_sums", "max_logits", *NAIVE, *STRIDES)
REDUCE = ("out", "exp_sums", "max_logits", "tmp_out", "seq_lens", "max_num_partitions")


def takes_tensors(function: Callable) -> Callable:
    """A function of a DecodeStep, as one that is called with the tensors of the step:

    function(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes=None, ...)
    """
    of_step, fields = signature(function), signature(DecodeStep).parameters
    _, *options = of_step.parameters.values()
    of_tensors = of_step.replace(parameters=[*fields.values(), *options])

    @wraps(function)
    def called(*tensors: object, **named: object) -> object:
        given = of_tensors.bind(*tensors, **named).arguments
        step = DecodeStep(**{name: given.pop(name) for name in fields if name in given})
        return function(step, **given)

    called.__signature__ = of_tensors
    return called


@takes_tensors
def prepare_naive(
    step: DecodeStep, num_threads: int = 128, max_seq_len: int | None = None
) -> Launch:
    """The launch of naive_kernel. Arguments and errors are those of paged_attention_v1."""
    q, geometry = step.q, geometry_of(step, num_threads)
    max_seq_len = step.longest(max_seq_len)
    shared_bytes = FLOAT_BYTES * max_seq_len
    require_shared(shared_bytes, q, max_seq_len, OF_A_TOKEN)
    out = not_written(q.shape, q)
    named = {"out": as_stored(out)} | arguments_of(step, as_stored)
    arguments = {name: named[name] for name in NAIVE}
    grid = (q.shape[1], q.shape[0], 1)
    return Launch(naive_kernel(geometry), geometry, grid, shared_bytes, arguments, NAIVE, out)


@takes_tensors
def prepare_v1(
    step: DecodeStep,
    num_threads: int = 128,
    loads: LoadsOf = element_loads,
    max_seq_len: int | None = None,
) -> Launch:
    """The launch of paged_attention_v1, for those who want to watch it or to repeat it.

        prepared = prepare_v1(...)
        report = prepared.simulate(trace=0)

    Arguments and errors are those of paged_attention_v1; num_threads may be 64 or 256 too, loads
    is element_loads or vector_loads.
    """
    return launch_of(step, geometry_of(step, num_threads), loads, max_seq_len)


@takes_tensors
def prepare_v2(
    step: DecodeStep,
    num_threads: int = 128,
    loads: LoadsOf = vector_loads,
    max_seq_len: int | None = None,
    partition_size: int = VLLM_PARTITION_SIZE,
) -> Partitioned:
    """The two launches of paged_attention_v2, for those who want to watch or to repeat them.

        prepared = prepare_v2(...)
        partitions, reduced = prepared.simulate()    # the reports of both

    Arguments and errors are those of paged_attention_v2; num_threads may be 64 or 256 too, loads
    is element_loads or vector_loads.
    """
    require(partition_size != 0, "partition_size", partition_size, "1 or more; v1 is without")
    geometry = geometry_of(step, num_threads, partition_size)
    partitions = launch_of(step, geometry, loads, max_seq_len)
    return Partitioned(partitions, prepare_reduce(partitions))


def launch_of(
    step: DecodeStep, geometry: Geometry, loads: LoadsOf, max_seq_len: int | None
) -> Launch:
    """The launch of the paged kernel, of v1 or v2."""
    max_seq_len = step.longest(max_seq_len)
    shared_bytes = require_launch(step, geometry, loads, max_seq_len)
    num_partitions, unwritten = 0, ()
    if geometry.PARTITION_SIZE:  # places of partitions that a short sequence lacks stay unwritten
        num_partitions = divide_round_up(max_seq_len, geometry.PARTITION_SIZE)
        unwritten = "exp_sums", "max_logits", "out"
    num_seqs, num_heads, _ = step.q.shape
    grid, kernel = (num_heads, num_seqs, num_partitions or 1), paged_attention(geometry, loads)
    written = outputs(step.q, num_partitions)
    arguments = {name: flat(tensor) for name, tensor in written.items()} | arguments_of(step)
    sizes, out = (geometry, grid, shared_bytes), written["out"]
    return Launch(kernel, *sizes, arguments, PAGED, out, unwritten=unwritten)


def outputs(q: Tensor, num_partitions: int) -> dict[str, Tensor]:
    """What the paged kernel writes, by the names of its arguments; of v2, out is tmp_out."""
    if not num_partitions:
        # v1 has no partitions to tell about: touching these is a finding of the simulator. (A GPU
        # needs an address.)
        nothing = torch.empty(1 if q.is_cuda else 0, device=q.device)
        return {"exp_sums": nothing, "max_logits": nothing, "out": not_written(q.shape, q)}
    num_seqs, num_heads, head_size = q.shape
    of_a_head = num_seqs, num_heads, num_partitions
    exp_sums, max_logits = (not_written(of_a_head, q, torch.float32) for _ in range(2))
    tmp_out = not_written((*of_a_head, head_size), q)
    return {"exp_sums": exp_sums, "max_logits": max_logits, "out": tmp_out}


def prepare_reduce(partitions: Launch) -> Launch:
    """The launch that joins the partitions of another launch."""
    tmp_out, geometry = partitions.out, partitions.geometry
    num_seqs, num_heads, num_partitions, head_size = tmp_out.shape
    shared_bytes = 2 * num_partitions * FLOAT_BYTES
    total = shared_bytes + 2 * geometry.NUM_WARPS * FLOAT_BYTES  # and red_smem
    require_shared(total, tmp_out, num_partitions * geometry.PARTITION_SIZE, OF_A_PARTITION)
    out = not_written((num_seqs, num_heads, head_size), tmp_out)
    read = {name: partitions.arguments[name] for name in ("exp_sums", "max_logits", "seq_lens")}
    own = {"tmp_out": partitions.arguments["out"], "max_num_partitions": num_partitions}
    grid, arguments = (num_heads, num_seqs, 1), {"out": flat(out)} | read | own
    return Launch(reduce(geometry), geometry, grid, shared_bytes, arguments, REDUCE, out)


def arguments_of(step: DecodeStep, memory: Callable[[Tensor], Tensor] = flat) -> dict[str, object]:
    """What the kernels read, by name; memory is how they see q and the caches."""
    return {
        "q": memory(step.q),
        "k_cache": memory(step.k_cache),
        "v_cache": memory(step.v_cache),
        "scale": float32_scale(step.scale),
        "block_tables": step.block_tables,
        "seq_lens": step.seq_lens,
        "alibi_slopes": step.float_slopes(),
        "q_stride": step.q.stride(0),
        "kv_block_stride": step.k_cache.stride(0),
        "kv_head_stride": step.k_cache.stride(1),
    }


def not_written(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """NaN in every place."""
    return torch.full(shape, float("nan"), dtype=dtype or like.dtype, device=like.device)


# What a kernel can take -----------------------------------------------------------------------


def geometry_of(step: DecodeStep, num_threads: int, partition_size: int = 0) -> Geometry:
    """The geometry that a step asks for. TypeError or ValueError for what no kernel can take."""
    step.require_for_cuda()
    num_heads, head_size = step.q.shape[1:]
    return Geometry(
        head_size=head_size,
        block_size=step.k_cache.shape[3],
        dtype=step.q.dtype,
        num_threads=num_threads,
        partition_size=partition_size,
        num_queries_per_kv=num_heads // step.k_cache.shape[1],
    )


def require_launch(step: DecodeStep, geometry: Geometry, loads: LoadsOf, max_seq_len: int) -> int:
    """The dynamic shared memory of the paged kernel; ValueError if it cannot be launched so."""
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

    A GPU stops a kernel that loads 16 bytes from another address. The heads of q are a multiple
    of its vecs long, and so are the pieces of a block: what counts is where a tensor starts, and
    the strides over sequences, blocks and heads.
    """
    vec_bytes = geometry.VEC_SIZE * geometry.ITEMSIZE
    for name, tensor, num_bytes, dims in (
        ("q", step.q, vec_bytes, 1),
        ("k_cache", step.k_cache, VEC_BYTES, 2),
        ("v_cache", step.v_cache, VEC_BYTES, 2),
    ):
        require_aligned_start(name, tensor, num_bytes)
        for dim, distance in enumerate(steps(tensor)[:dims]):
            stride = distance * geometry.ITEMSIZE
            allowed = f"a multiple of {num_bytes} bytes, what one load brings"
            require(stride % num_bytes == 0, f"{name}.stride({dim})", f"{stride} bytes", allowed)


def require_aligned_start(name: str, tensor: Tensor, num_bytes: int) -> None:
    past = tensor.data_ptr() % num_bytes
    where = f"{past} bytes past a multiple of {num_bytes}"
    allowed = f"at a multiple of {num_bytes}, the bytes that one load brings"
    require(past == 0, f"{name}.data_ptr()", where, allowed)


def require_shared(
    num_bytes: int, where: Tensor, value: int, hint: str, name: str = "max_seq_len"
) -> None:
    """Raise ValueError for a value that asks for more shared memory than a thread block can have.

    In v1 all scores of a sequence lie there; so its length has an end.
    """
    limit = most_shared(where)
    if num_bytes > limit:
        raise ValueError(
            f"{name} is {value}, which needs {num_bytes:,} bytes of shared memory; a thread block "
            f"has at most {limit:,}, {hint}"
        )


def most_shared(tensor: Tensor) -> int:
    """Shared memory that a thread block can have where this tensor is."""
    return max_shared_bytes() if tensor.is_cuda else MAX_SHARED
