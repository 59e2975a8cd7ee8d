"""Torch tensors in, torch tensors out: the CUDA kernels as functions.

CUDA tensors are read in place, on torch's current stream; tensors on the CPU run in the simulator.
No GPU has run these kernels yet: they have been compiled for GPUs, run in the simulator, and
compared with vLLM's own. To repeat a launch, look inside it, or put it into a CUDA graph, prepare
it first:

    launch = v2_backend.prepare(DecodeStep(q, k_cache, …))    # everything is checked and wrapped
    launch.run()                # as often as you like; writes launch.out each time
"""

from torch import Tensor

from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.cuda_backends import v1_backend, v1_vector_backend, v2_backend


def paged_attention_v1(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
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
    returns       [num_seqs, num_heads, head_size], in the dtype of q

    NaN in q, or in a token's K, makes the whole output of every head that reads it NaN; NaN in a
    token's V affects only the same element. NaN in a slot without a token changes nothing. The
    output is finite for finite V up to 99 % of FLT_MAX.
    With CUDA tensors it runs on the GPU, without copies, on torch's current stream, and returns
    before the GPU is done. With tensors on the CPU it runs in the simulator with every check, and
    raises SimtError if one finds something.
    Raises, before anything runs, TypeError or ValueError, naming the argument, for what
    DecodeStep or the kernel can't take (v1_backend.prepare says what), and for a context that
    doesn't fit into shared memory. There is no backward pass: the result has no graph, even if an
    input requires_grad.
    Source: vLLM, paged_attention_v1 in csrc/attention/paged_attention_v1.cu.
    """
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    return v1_backend.prepare(step).run()


def paged_attention_v1_vector(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """The same kernel with loads of 4, 8 and 16 bytes. Stage `cuda_v1_vector`.

    Arguments, result and errors are as for paged_attention_v1. It also raises ValueError unless q
    and the caches, each sequence of q, each block and each head start at a multiple of the bytes
    that one load brings (16, for q sometimes fewer), as in tensors that torch allocates.
    """
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    return v1_vector_backend.prepare(step).run()


def paged_attention_v2(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi_slopes: Tensor | None = None,
) -> Tensor:
    """One decode step in partitions of 512 tokens: a thread block per partition, then the reduce
    kernel. Stage `cuda_v2`.

    Arguments, result and errors are as for paged_attention_v1_vector. A long context needs no more
    shared memory than a short one, except 8 bytes per partition. For partitions of another size,
    use v2_backend.prepare(step, partition_size=…).
    Source: vLLM, paged_attention_v2 in csrc/attention/paged_attention_v2.cu.
    """
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, scale, alibi_slopes)
    return v2_backend.prepare(step).run()
