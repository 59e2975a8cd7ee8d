"""Torch tensors in, torch tensors out: the kernels as functions.

CUDA tensors are read where they are, on torch's current stream; tensors on the CPU go through the
simulator. The functions named prepare_ stop before the launch, for those who want to repeat it,
to watch it, or to put it into a CUDA graph:

    prepared = prepare_v2(...)    # everything is checked and wrapped
    prepared.run()                # as often as you like; prepared.out is written each time
"""

from collections.abc import Callable

from torch import Tensor

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.choose import VLLM_PARTITION_SIZE
from pa_tutorial.kernels.intermediates import look_at_naive, look_at_v1, look_at_v2
from pa_tutorial.kernels.prepare import prepare_naive, prepare_v1, prepare_v2, takes_tensors
from pa_tutorial.kernels.running import Launch, Partitioned, say_simulated
from pa_tutorial.kernels.vectors import vector_loads

__all__ = [
    "Launch",
    "Partitioned",
    "paged_attention_naive",
    "paged_attention_v1",
    "paged_attention_v1_vector",
    "paged_attention_v2",
    "prepare_naive",
    "prepare_v1",
    "prepare_v2",
]

Probe = dict[str, Tensor]


@takes_tensors
def paged_attention_naive(
    step: DecodeStep, probe: Probe | None = None, max_seq_len: int | None = None
) -> Tensor:
    """One decode step by the first paged kernel. Stage `cuda_naive`.

    Arguments, result and errors are those of paged_attention_v1; probe receives `qk` only.
    """
    return run_probed(prepare_naive(**vars(step), max_seq_len=max_seq_len), look_at_naive, probe)


@takes_tensors
def paged_attention_v1(
    step: DecodeStep, probe: Probe | None = None, max_seq_len: int | None = None
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
    probe         receives qk, qk_max, exp_sum, logits and accs (pa_tutorial.kernels.intermediates);
                  in the simulator only
    max_seq_len   of the longest sequence, for the size of the shared memory. If it is not given:
                  the largest of seq_lens; on a GPU, where nobody looks at them, all that a block
                  table has room for
    returns       [num_seqs, num_heads, head_size], in the dtype of q

    NaN in q, or in K of a token, makes the whole output of every head that reads it NaN; in V of a
    token, the same element. NaN in a slot without a token changes nothing. (In the simulator; on a
    GPU, fastmath lets the compiler assume that there is none.)
    With CUDA tensors it runs on the GPU: no copies, on torch's current stream, nobody waits. With
    tensors on the CPU it runs in the simulator, with every check: SimtError if one of them finds
    something.
    Raises, before anything runs, ValueError for shapes, dtypes, devices, strides, lengths, block
    numbers, slopes and scales that the kernel cannot take, and for a context beyond the shared
    memory; TypeError for what should be a tensor and is none, and for a scale that is no number.
    Lengths, block numbers and slopes on a GPU are the caller's promise: to check them would be to
    wait. There is no backward pass: the result has no graph, also where an input requires_grad.
    Source: vLLM, paged_attention_v1 in csrc/attention/paged_attention_v1.cu.
    """
    return run_probed(prepare_v1(**vars(step), max_seq_len=max_seq_len), look_at_v1, probe)


@takes_tensors
def paged_attention_v1_vector(
    step: DecodeStep, probe: Probe | None = None, max_seq_len: int | None = None
) -> Tensor:
    """The same kernel with loads of 4, 8 and 16 bytes. Stage `cuda_v1_vector`.

    Arguments, result and errors are those of paged_attention_v1. Further, q and the caches must
    start at a multiple of what one load brings (16 bytes, for q sometimes less), and so must each
    sequence of q, each block and each head: ValueError otherwise. torch's own tensors do.
    """
    prepared = prepare_v1(**vars(step), loads=vector_loads, max_seq_len=max_seq_len)
    return run_probed(prepared, look_at_v1, probe)


@takes_tensors
def paged_attention_v2(
    step: DecodeStep,
    probe: Probe | None = None,
    max_seq_len: int | None = None,
    partition_size: int = VLLM_PARTITION_SIZE,
) -> Tensor:
    """One decode step in partitions: a thread block for each, then the reduce kernel. Stage
    `cuda_v2`.

    partition_size  tokens of a partition, a multiple of the block size; vLLM has 512

    Other arguments, result and errors are those of paged_attention_v1_vector. A long context
    needs no more shared memory than a short one, but for 8 bytes a partition.
    Source: vLLM, paged_attention_v2 in csrc/attention/paged_attention_v2.cu.
    """
    sizes = {"max_seq_len": max_seq_len, "partition_size": partition_size}
    return run_probed(prepare_v2(**vars(step), **sizes), look_at_v2, probe)


def run_probed(prepared: Launch | Partitioned, look: Callable, probe: Probe | None) -> Tensor:
    """Run what is prepared and return its output; probe receives what `look` sees of the run."""
    return prepared.run() if probe is None else run_watched(prepared, look, probe)


def run_watched(prepared: Launch | Partitioned, look: Callable, probe: Probe) -> Tensor:
    """Raises ValueError on a GPU: nobody can look into a kernel there."""
    if prepared.out.is_cuda:
        raise ValueError(f"probe is a {type(probe).__name__}; on a GPU it must be None")
    say_simulated()
    probe.update(look(prepared))
    return prepared.out
