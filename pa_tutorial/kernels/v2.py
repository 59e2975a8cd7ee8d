"""vLLM's v2: a thread block for each partition of a sequence, then the reduce kernel.

Executed after v1.py and v1_vector.py (template.py), whose functions both kernels call.
Source: vLLM, csrc/attention/attention_kernels.cuh, paged_attention_v2_reduce_kernel.
"""

import math

from numba import cuda, float32

from pa_tutorial.kernels.v1 import (
    BLOCK_SIZE,
    FLT_MAX,
    HEAD_SIZE,
    NUM_QUERIES_PER_KV,
    NUM_ROWS_PER_THREAD,
    NUM_THREADS,
    NUM_WARPS,
    Q_VECS_SHAPE,
    RED_SMEM_SIZE,
    THREAD_GROUP_SIZE,
    WARP_SIZE,
    add_warps,
    block_max,
    block_sum,
    fill_logits,
    from_float,
    index_t,
    scalar_t,
    scores_to_weights,
    sum_values,
    to_float,
    write_rows,
)
from pa_tutorial.kernels.v1_vector import load_query

PARTITION_SIZE = 8  # tokens of a thread block, in whole blocks; vLLM has 512


@cuda.jit(device=True)
def bounds_of_partition(partition_idx, seq_len):  # num_tokens, (start_block_idx, end_block_idx)
    num_tokens = min(PARTITION_SIZE, seq_len - partition_idx * PARTITION_SIZE)
    start_block_idx = partition_idx * (PARTITION_SIZE // BLOCK_SIZE)
    num_blocks = (num_tokens + BLOCK_SIZE - 1) // BLOCK_SIZE
    return num_tokens, (start_block_idx, start_block_idx + num_blocks)


@cuda.jit
def paged_attention_v2(
    exp_sums, max_logits, tmp_out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes
):  # exp_sums, max_logits [num_seqs, num_heads, max_num_partitions]; tmp_out [..., HEAD_SIZE]
    thread_idx = index_t(cuda.threadIdx.x)
    head_idx, seq_idx, partition_idx = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z  # NEW
    kv_head_idx, seq_len = head_idx // NUM_QUERIES_PER_KV, seq_lens[seq_idx]
    block_table, slope = block_tables[seq_idx], alibi_slopes[head_idx]
    num_tokens, blocks = bounds_of_partition(partition_idx, seq_len)
    if num_tokens <= 0:
        return  # the sequence ends before this partition
    q_vecs = cuda.shared.array(Q_VECS_SHAPE, scalar_t, alignment=16)
    logits = cuda.shared.array(0, float32, alignment=16)  # a float32 per slot of the partition
    red_smem = cuda.shared.array(RED_SMEM_SIZE, float32)
    accs = cuda.local.array(NUM_ROWS_PER_THREAD, float32)

    load_query(q_vecs, q[seq_idx, head_idx], thread_idx)
    qk_max = fill_logits(
        logits, q_vecs, k_cache, kv_head_idx, block_table, blocks, seq_len, scale, slope, thread_idx
    )
    qk_max = block_max(red_smem, qk_max, THREAD_GROUP_SIZE, thread_idx)
    # mark: scores
    exp_sum = scores_to_weights(logits, red_smem[NUM_WARPS:], qk_max, num_tokens, thread_idx)
    # mark: sum
    if thread_idx == 0:  # what the merge needs
        max_logits[seq_idx, head_idx, partition_idx] = qk_max
        exp_sums[seq_idx, head_idx, partition_idx] = exp_sum
    # mark: weights
    sum_values(accs, logits, v_cache, kv_head_idx, block_table, blocks, num_tokens, thread_idx)
    # mark: rows
    cuda.syncthreads()  # out_smem takes the memory of logits
    add_warps(accs, logits, thread_idx)
    if thread_idx < WARP_SIZE:
        write_rows(tmp_out[seq_idx, head_idx, partition_idx], accs, thread_idx)


@cuda.jit(device=True)
def largest_of_partitions(
    shared_max_logits, red_smem, max_logits, num_partitions, thread_idx
):  # max_logits [max_num_partitions], of one head of one sequence
    max_logit = float32(-FLT_MAX)
    for i in range(thread_idx, num_partitions, NUM_THREADS):
        shared_max_logits[i] = max_logits[i]
        max_logit = max(max_logit, shared_max_logits[i])
    return block_max(red_smem, max_logit, 1, thread_idx)


@cuda.jit(device=True)
def rescaled_sums(
    shared_exp_sums, red_smem, exp_sums, shared_max_logits, max_logit, num_partitions, thread_idx
):  # exp_sums [max_num_partitions], of one head of one sequence
    global_exp_sum = float32(0)
    for i in range(thread_idx, num_partitions, NUM_THREADS):
        r = exp_sums[i] * math.exp(shared_max_logits[i] - max_logit)
        shared_exp_sums[i] = r
        global_exp_sum += r
    # The barrier in block_sum shows every thread what the others left in shared memory.
    return block_sum(red_smem[NUM_WARPS:], global_exp_sum, thread_idx)


@cuda.jit(device=True)
def merged_output(
    out, tmp_out, shared_exp_sums, global_exp_sum, num_partitions, thread_idx
):  # out [HEAD_SIZE], tmp_out [max_num_partitions, HEAD_SIZE]
    inv_sum = float32(1) / (global_exp_sum + float32(1e-6))
    for i in range(thread_idx, HEAD_SIZE, NUM_THREADS):
        acc = float32(0)
        for j in range(num_partitions):
            acc += to_float(tmp_out[j, i]) * (shared_exp_sums[j] * inv_sum)
        out[i] = from_float(acc)


@cuda.jit
def reduce_partitions(out, exp_sums, max_logits, tmp_out, seq_lens):
    thread_idx = index_t(cuda.threadIdx.x)
    head_idx, seq_idx = cuda.blockIdx.x, cuda.blockIdx.y
    head = seq_idx, head_idx
    num_partitions = (seq_lens[seq_idx] + PARTITION_SIZE - 1) // PARTITION_SIZE
    # One partition is the whole sequence. All threads return: none is left to wait at a barrier.
    if num_partitions == 1:
        for i in range(thread_idx, HEAD_SIZE, NUM_THREADS):
            out[head][i] = tmp_out[head][0, i]
        return
    shared_max_logits = cuda.shared.array(0, float32)  # two float32 per partition
    shared_exp_sums = shared_max_logits[num_partitions:]
    red_smem = cuda.shared.array(RED_SMEM_SIZE, float32)

    max_logit = largest_of_partitions(
        shared_max_logits, red_smem, max_logits[head], num_partitions, thread_idx
    )
    global_exp_sum = rescaled_sums(
        shared_exp_sums, red_smem, exp_sums[head], shared_max_logits, max_logit, num_partitions,
        thread_idx,
    )  # fmt: skip
    # mark: rescaled
    merged_output(
        out[head], tmp_out[head], shared_exp_sums, global_exp_sum, num_partitions, thread_idx
    )


def launch_partitions(
    exp_sums, max_logits, tmp_out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes
):
    num_seqs, num_heads, max_num_partitions, _ = tmp_out.shape
    shared_bytes = 4 * max(PARTITION_SIZE, NUM_WARPS // 2 * HEAD_SIZE)  # logits, later out_smem
    grid = num_heads, num_seqs, max_num_partitions
    paged_attention_v2[grid, NUM_THREADS, 0, shared_bytes](
        exp_sums, max_logits, tmp_out, q, k_cache, v_cache, scale, block_tables, seq_lens,
        alibi_slopes,
    )  # fmt: skip


def launch_reduce(out, exp_sums, max_logits, tmp_out, seq_lens):
    num_seqs, num_heads, max_num_partitions, _ = tmp_out.shape
    shared_bytes = 8 * max_num_partitions  # two float32 per partition
    reduce_partitions[(num_heads, num_seqs), NUM_THREADS, 0, shared_bytes](
        out, exp_sums, max_logits, tmp_out, seq_lens
    )
