"""The decode steps that `make gpu` times: the kernels, their twins in C++, and torch's own."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pa_tutorial.arguments import require
from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.attention.paged import paged_gather, paged_online
from pa_tutorial.bench.batches import Arguments
from pa_tutorial.bench.cold_batches import Pool, Workload
from pa_tutorial.kernels.gpu_launch import DEFAULT_SHARED
from pa_tutorial.kernels.launch import Launch, prepare_naive, prepare_v1, prepare_v2
from pa_tutorial.kernels.vectors import vector_loads

Step = Callable[[], Tensor]  # one launch, or a few; its result is written again at each call


def run_twin(prepared: Launch) -> Tensor:
    """The twin in C++ in the place of the kernel, on torch's current stream."""
    from pa_tutorial.kernels.cpp_twin import twin_kernel

    total = prepared.shared_bytes + prepared.geometry.static_shared_bytes
    require(total <= DEFAULT_SHARED, "shared_bytes", total, f"at most {DEFAULT_SHARED}, for a twin")
    stream = torch.cuda.current_stream().cuda_stream
    twin = twin_kernel(prepared.geometry)
    configuration = prepared.grid, prepared.geometry.NUM_THREADS, stream, prepared.shared_bytes
    twin[configuration](*prepared.kernel_arguments)
    return prepared.out


def twin_v1(arguments: Arguments) -> Step:
    return partial(run_twin, prepare_v1(**arguments, loads=vector_loads))


def twin_v2(arguments: Arguments) -> Step:
    """The partitions by the twin; its reduce kernel is ours."""
    prepared = prepare_v2(**arguments)

    def run() -> Tensor:
        run_twin(prepared.partitions)
        return prepared.reduce.run()

    return run


# Those that read a paged cache: arguments -> a step.
PAGED: dict[str, Callable[[Arguments], Step]] = {
    "cuda_naive": lambda arguments: prepare_naive(**arguments).run,
    "cuda_v1": lambda arguments: prepare_v1(**arguments).run,
    "cuda_v1_vector": lambda arguments: prepare_v1(**arguments, loads=vector_loads).run,
    "cuda_v2": lambda arguments: prepare_v2(**arguments).run,
    "twin_v1": twin_v1,
    "twin_v2": twin_v2,
}


# The stages in torch that read a paged cache: many small operations, launched one by one.
IN_TORCH = {"paged_gather": paged_gather, "paged_online": paged_online}


def in_torch(pool: Pool, workload: Workload, sets: list[Arguments]) -> dict[str, list[Step]]:
    """Two steps of each stage that is no kernel: they are not captured, so two must do."""
    names = ("q", "k_cache", "v_cache", "block_tables", "seq_lens", "scale")
    steps = {"kv_cache": [kv_cache(pool, workload, i) for i in range(2)]}
    for name, function in IN_TORCH.items():
        steps[name] = [partial(function, *(arguments[n] for n in names)) for arguments in sets[:2]]
    return steps


def sdpa(pool: Pool, workload: Workload, i: int) -> Step:
    """torch's own attention over K and V side by side: an outside reference."""
    k, v = pool.contiguous(workload, i)
    q = torch.randn_like(k[:, :1, :1]).expand(-1, workload.num_heads, -1, -1).contiguous()
    shared = workload.num_heads != workload.num_kv_heads
    attention = torch.nn.functional.scaled_dot_product_attention
    return partial(attention, q, k, v, enable_gqa=shared)


def kv_cache(pool: Pool, workload: Workload, i: int) -> Step:
    """The stage kv_cache: K and V side by side, one call a sequence, for it has no batch."""
    k, v = pool.contiguous(workload, i)
    shape = workload.num_seqs, -1, workload.num_kv_heads, workload.head_size
    k, v = k.reshape(shape), v.reshape(shape)
    q = torch.randn_like(k[:, :1, :1]).expand(-1, 1, workload.num_heads, -1).contiguous()

    def run() -> Tensor:
        scale = workload.head_size**-0.5
        return torch.stack([cached_attention(*qkv, scale) for qkv in zip(q, k, v, strict=True)])

    return run
