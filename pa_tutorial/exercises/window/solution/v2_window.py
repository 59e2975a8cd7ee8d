"""Your v2: executed after the package's kernels and your v1_window.py (README.md).

paged_attention_v2 calls bounds_of_partition, and your fill_logits.
"""

from numba import cuda, float32

from pa_tutorial.kernels.v1 import BLOCK_SIZE, HEAD_SIZE, NUM_THREADS, RED_SMEM_SIZE, index_t
from pa_tutorial.kernels.v2 import (
    PARTITION_SIZE,
    largest_of_partitions,
    merged_output,
    rescaled_sums,
)

WINDOW = 0  # tokens that the newest query sees, itself included; 0: no window, it sees all


@cuda.jit(device=True)
def first_token_seen(seq_len):
    """A sequence shorter than the window is seen from token 0."""
    return max(seq_len - WINDOW, 0) if WINDOW > 0 else 0


@cuda.jit(device=True)
def bounds_of_partition(partition_idx, seq_len):  # num_tokens, (start_block_idx, end_block_idx)
    first_block_idx = first_token_seen(seq_len) // BLOCK_SIZE
    start_block_idx = max(partition_idx * (PARTITION_SIZE // BLOCK_SIZE), first_block_idx)
    end_token_idx = min((partition_idx + 1) * PARTITION_SIZE, seq_len)
    # 0 or less for a partition before the window, too: it ends before the first block begins.
    num_tokens = end_token_idx - start_block_idx * BLOCK_SIZE
    num_blocks = (num_tokens + BLOCK_SIZE - 1) // BLOCK_SIZE
    return num_tokens, (start_block_idx, start_block_idx + num_blocks)


@cuda.jit
def reduce_partitions(out, exp_sums, max_logits, tmp_out, seq_lens):
    thread_idx = index_t(cuda.threadIdx.x)
    head_idx, seq_idx = cuda.blockIdx.x, cuda.blockIdx.y
    head = seq_idx, head_idx
    seq_len = seq_lens[seq_idx]
    # Only the partitions from the first one on have written anything.
    first = first_token_seen(seq_len) // PARTITION_SIZE
    num_partitions = (seq_len + PARTITION_SIZE - 1) // PARTITION_SIZE - first
    # One partition has all that is seen. All threads return: none is left to wait at a barrier.
    if num_partitions == 1:
        for i in range(thread_idx, HEAD_SIZE, NUM_THREADS):
            out[head][i] = tmp_out[head][first, i]
        return
    shared_max_logits = cuda.shared.array(0, float32)  # two float32 per partition
    shared_exp_sums = shared_max_logits[num_partitions:]
    red_smem = cuda.shared.array(RED_SMEM_SIZE, float32)

    max_logit = largest_of_partitions(
        shared_max_logits, red_smem, max_logits[head][first:], num_partitions, thread_idx
    )
    global_exp_sum = rescaled_sums(
        shared_exp_sums, red_smem, exp_sums[head][first:], shared_max_logits, max_logit,
        num_partitions, thread_idx,
    )  # fmt: skip
    merged_output(
        out[head], tmp_out[head][first:], shared_exp_sums, global_exp_sum, num_partitions,
        thread_idx,
    )  # fmt: skip
