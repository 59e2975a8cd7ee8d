"""One decode step of a batch by every stage that can run on a CPU, as functions to be timed."""

from collections.abc import Callable

import torch
from torch import Tensor

from pa_tutorial.attention.cached import cached_attention
from pa_tutorial.attention.full import causal_attention
from pa_tutorial.attention.online import online_attention
from pa_tutorial.attention.paged import paged_gather, paged_online
from pa_tutorial.bench.cpu_inputs import Batch
from pa_tutorial.bench.cpu_shapes import Shape
from pa_tutorial.kernels.cpu_launch import prepare_cpu
from pa_tutorial.kernels.geometry import VEC_BYTES
from pa_tutorial.walk.ladder import STAGES

Step = Callable[[], Tensor]  # one decode step: [num_seqs, num_heads, head_size]

SIMULATED = ("cuda_naive", "cuda_v1", "cuda_v1_vector", "cuda_v2")
NOT_ON_A_CPU = {"triton": "in Triton's interpreter a time says nothing about the kernel"}
MOST_SCORES = 2**24  # of full_recompute: one for every two tokens of a sequence and every head
MOST_REPEATED_BYTES = 2**30  # of K and V of one sequence, in float32 and for each query head
MOST_BLOCK_STEPS = 512  # of paged_online: each block index of the longest sequence is one
MOST_PYTHON_STEPS = 2048  # of online_softmax: each token of each sequence is one


def cpu(batch: Batch) -> Step:
    """The compiled kernel. Its arguments are checked once, here, as a server would do."""
    return prepare_cpu(*batch.arguments).run


def of_each_sequence(batch: Batch, attention: Callable[..., Tensor]) -> Step:
    """A stage before paging, which knows one sequence at a time."""
    sequences, scale = batch.sequences, batch.scale
    return lambda: torch.cat([attention(q, k, v, scale) for q, k, v in sequences])


def recomputed(batch: Batch) -> Step:
    """Attention of every token anew, to get that of the newest: there is no cache of the others."""
    sequences, scale = batch.sequences, batch.scale
    # The older queries are random: nothing is kept of them.
    queries = [torch.randn(len(k), *q.shape[1:]).to(q.dtype) for q, k, _ in sequences]
    for (q, _, _), of_sequence in zip(sequences, queries, strict=True):
        of_sequence[-1] = q[0]
    return lambda: torch.stack(
        [
            causal_attention(q, k, v, scale)[-1]
            for q, (_, k, v) in zip(queries, sequences, strict=True)
        ]
    )


def too_much(shape: Shape) -> dict[str, str]:
    """stage -> why it is not even tried on such a shape: time and memory grow without use."""
    longest, heads = max(shape.seq_lens), shape.num_heads
    why = {}
    scores = heads * sum(seq_len**2 for seq_len in shape.seq_lens)
    if scores > MOST_SCORES:
        why["full_recompute"] = f"{scores / 1e6:,.0f} million scores"
    if sum(shape.seq_lens) > MOST_PYTHON_STEPS:
        why["online_softmax"] = f"more than {MOST_PYTHON_STEPS:,} steps in Python"
    if longest > MOST_BLOCK_STEPS * shape.block_size:
        why["paged_online"] = f"more than {MOST_BLOCK_STEPS} block indices, one after the other"
    repeated = 2 * 4 * heads * longest * shape.head_size
    if repeated > MOST_REPEATED_BYTES:
        reason = f"K and V for each query head need {repeated / 2**30:,.1f} GiB"
        why["kv_cache"] = why["paged_gather"] = reason
    return why


def stages(batch: Batch) -> dict[str, Step]:
    """name -> one decode step, for the stages that are not too much for the shape."""
    makers: dict[str, Callable[[], Step]] = {
        "full_recompute": lambda: recomputed(batch),
        "kv_cache": lambda: of_each_sequence(batch, cached_attention),
        "online_softmax": lambda: of_each_sequence(batch, online_attention),
        "paged_gather": lambda: lambda: paged_gather(*batch.arguments),
        "paged_online": lambda: lambda: paged_online(*batch.arguments),
        "cpu": lambda: cpu(batch),
    }
    left_out = too_much(batch.shape)
    return {name: make() for name, make in makers.items() if name not in left_out}


def simulated_stages(batch: Batch) -> dict[str, Step]:
    """The CUDA kernels in the simulator, with every check, over the same cache in vLLM's layout."""
    x = VEC_BYTES // batch.k_cache.element_size()
    k_cache = batch.k_cache.unflatten(-1, (-1, x)).transpose(2, 3).contiguous()
    v_cache = batch.v_cache.mT.contiguous()
    q, _, _, block_tables, seq_lens, scale = batch.arguments

    def step(name: str) -> Step:
        function = STAGES[name].function
        return lambda: function(q, k_cache, v_cache, block_tables, seq_lens, scale)

    return {name: step(name) for name in SIMULATED}
