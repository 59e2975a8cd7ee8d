"""An 8-bit cache: what changes in v1_vector.py and v2.py, executed after them (template.py).

Its elements are bytes, and a number is its byte, decoded, times a scale of its KV head. q, and with
it VEC_SIZE and V_VEC_SIZE, stay as they were; a vec of the cache is a half or a quarter as long.

    load_key, add_values                    decode the bytes that they load
    paged_attention_v1, paged_attention_v2  have the scales: K's multiplies the scores, V's the rows

Alone, this file is no kernel. Source: vLLM, csrc/attention/attention_kernels.cuh, IS_FP8_KV_CACHE.
"""

import torch
from numba import cuda, float32

from pa_tutorial.kernels.dtypes import TO_FLOAT
from pa_tutorial.kernels.v1 import (
    BLOCK_SIZE,
    HEAD_SIZE,
    NUM_QUERIES_PER_KV,
    NUM_ROWS_PER_ITER,
    NUM_ROWS_PER_THREAD,
    NUM_V_VECS_PER_ROW,
    NUM_VECS_PER_THREAD,
    NUM_WARPS,
    Q_VECS_SHAPE,
    RED_SMEM_SIZE,
    THREAD_GROUP_SIZE,
    V_VEC_SIZE,
    VEC_SIZE,
    WARP_SIZE,
    add_warps,
    block_max,
    fill_logits,
    index_t,
    scalar_t,
    scores_to_weights,
    sum_values,
    write_rows,
)
from pa_tutorial.kernels.v1_vector import load, load_4, load_query, load_row, widen_4
from pa_tutorial.kernels.v2 import bounds_of_partition

CACHE_DTYPE = torch.float8_e4m3fn  # or float8_e5m2

X = 16 // CACHE_DTYPE.itemsize  # elements of K that are neighbours in memory: 16 bytes
byte_to_float = TO_FLOAT[CACHE_DTYPE]


@cuda.jit(device=True)
def load_key(
    k_vecs, k_block, physical_block_offset, thread_idx
):  # k_vecs has the shape K_VECS_SHAPE; k_block [HEAD_SIZE / X, BLOCK_SIZE, X]
    thread_group_offset = thread_idx % THREAD_GROUP_SIZE
    for j in range(NUM_VECS_PER_THREAD):
        vec_idx = thread_group_offset + j * THREAD_GROUP_SIZE
        piece, first = vec_idx * VEC_SIZE // X, vec_idx * VEC_SIZE % X
        stored = load(k_block[piece, physical_block_offset], first)
        for e in range(VEC_SIZE):
            k_vecs[j, e] = byte_to_float(stored[e])


@cuda.jit(device=True)
def add_values(
    accs, logits, v_block, first_token, num_tokens, thread_idx
):  # v_block [HEAD_SIZE, BLOCK_SIZE]; first_token: the place of its first weight in logits
    lane = thread_idx % WARP_SIZE
    physical_block_offset = lane % NUM_V_VECS_PER_ROW * V_VEC_SIZE
    logits_vec = cuda.local.array(V_VEC_SIZE, float32)
    for e in range(0, V_VEC_SIZE, 4):
        widen_4(logits_vec[e:], load_4(logits, first_token + physical_block_offset + e))
    for i in range(NUM_ROWS_PER_THREAD):
        row_idx = lane // NUM_V_VECS_PER_ROW + i * NUM_ROWS_PER_ITER
        if row_idx < HEAD_SIZE:
            v_vec = cuda.local.array(V_VEC_SIZE, float32)
            stored = load_row(v_block[row_idx], physical_block_offset)
            for j in range(V_VEC_SIZE):
                v_vec[j] = byte_to_float(stored[j])
            if first_token + BLOCK_SIZE > num_tokens:  # a byte of an empty slot may be NaN, too
                for j in range(V_VEC_SIZE):
                    if first_token + physical_block_offset + j >= num_tokens:
                        v_vec[j] = float32(0)
            dot = float32(0)
            for j in range(V_VEC_SIZE):
                dot += logits_vec[j] * v_vec[j]
            accs[i] += dot


@cuda.jit
def paged_attention_v1(
    out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes, k_scale, v_scale
):  # k_scale, v_scale [num_kv_heads]
    thread_idx = index_t(cuda.threadIdx.x)
    head_idx, seq_idx = cuda.blockIdx.x, cuda.blockIdx.y
    kv_head_idx, seq_len = head_idx // NUM_QUERIES_PER_KV, seq_lens[seq_idx]
    block_table, slope = block_tables[seq_idx], alibi_slopes[head_idx]
    blocks = 0, (seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE
    q_vecs = cuda.shared.array(Q_VECS_SHAPE, scalar_t, alignment=16)
    logits = cuda.shared.array(0, float32, alignment=16)
    red_smem = cuda.shared.array(RED_SMEM_SIZE, float32)
    accs = cuda.local.array(NUM_ROWS_PER_THREAD, float32)

    load_query(q_vecs, q[seq_idx, head_idx], thread_idx)
    scale *= k_scale[kv_head_idx]  # NEW
    qk_max = fill_logits(
        logits, q_vecs, k_cache, kv_head_idx, block_table, blocks, seq_len, scale, slope, thread_idx
    )
    qk_max = block_max(red_smem, qk_max, THREAD_GROUP_SIZE, thread_idx)
    # mark: scores
    exp_sum = scores_to_weights(logits, red_smem[NUM_WARPS:], qk_max, seq_len, thread_idx)
    # mark: sum
    # mark: weights
    sum_values(accs, logits, v_cache, kv_head_idx, block_table, blocks, seq_len, thread_idx)
    for i in range(NUM_ROWS_PER_THREAD):  # NEW
        accs[i] *= v_scale[kv_head_idx]
    # mark: rows
    cuda.syncthreads()
    add_warps(accs, logits, thread_idx)
    if thread_idx < WARP_SIZE:
        write_rows(out[seq_idx, head_idx], accs, thread_idx)


@cuda.jit
def paged_attention_v2(
    exp_sums, max_logits, tmp_out, q, k_cache, v_cache, scale, block_tables, seq_lens,
    alibi_slopes, k_scale, v_scale,
):  # fmt: skip
    thread_idx = index_t(cuda.threadIdx.x)
    head_idx, seq_idx, partition_idx = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    kv_head_idx, seq_len = head_idx // NUM_QUERIES_PER_KV, seq_lens[seq_idx]
    block_table, slope = block_tables[seq_idx], alibi_slopes[head_idx]
    num_tokens, blocks = bounds_of_partition(partition_idx, seq_len)
    if num_tokens <= 0:
        return
    q_vecs = cuda.shared.array(Q_VECS_SHAPE, scalar_t, alignment=16)
    logits = cuda.shared.array(0, float32, alignment=16)
    red_smem = cuda.shared.array(RED_SMEM_SIZE, float32)
    accs = cuda.local.array(NUM_ROWS_PER_THREAD, float32)

    load_query(q_vecs, q[seq_idx, head_idx], thread_idx)
    scale *= k_scale[kv_head_idx]  # NEW
    qk_max = fill_logits(
        logits, q_vecs, k_cache, kv_head_idx, block_table, blocks, seq_len, scale, slope, thread_idx
    )
    qk_max = block_max(red_smem, qk_max, THREAD_GROUP_SIZE, thread_idx)
    # mark: scores
    exp_sum = scores_to_weights(logits, red_smem[NUM_WARPS:], qk_max, num_tokens, thread_idx)
    # mark: sum
    if thread_idx == 0:
        max_logits[seq_idx, head_idx, partition_idx] = qk_max
        exp_sums[seq_idx, head_idx, partition_idx] = exp_sum
    # mark: weights
    sum_values(accs, logits, v_cache, kv_head_idx, block_table, blocks, num_tokens, thread_idx)
    for i in range(NUM_ROWS_PER_THREAD):  # NEW
        accs[i] *= v_scale[kv_head_idx]
    # mark: rows
    cuda.syncthreads()
    add_warps(accs, logits, thread_idx)
    if thread_idx < WARP_SIZE:
        write_rows(tmp_out[seq_idx, head_idx, partition_idx], accs, thread_idx)
