"""vLLM's v1, one function for each step: thread groups, reductions, rows of V.

Read it from top to bottom: sizes, q and K, softmax, V, and the kernel that joins them. The values
at the top are those of the worked example. For other sizes, template.py executes this file with
other values for these names, as a C++ template is compiled for other arguments.
Source: vLLM, csrc/attention/attention_kernels.cuh, paged_attention_kernel.
"""

import math

import torch
from numba import cuda, float32, uint32

from pa_tutorial.kernels.dtypes import SCALAR_TYPES
from simt.gpus import ALL_LANES, WARP_SIZE

HEAD_SIZE = 32
BLOCK_SIZE = 8
DTYPE = torch.float16
NUM_QUERIES_PER_KV = 2  # query heads that share a KV head
NUM_THREADS = 128  # of a thread block

# The type of a thread's number. No index is negative, but the compiler can't know that: for a
# signed one, each access would first ask whether it counts from the end of the array.
index_t = uint32
scalar_t, to_float, from_float = SCALAR_TYPES[DTYPE]
FLT_MAX = torch.finfo(torch.float32).max

# Of q and K
NUM_WARPS = NUM_THREADS // WARP_SIZE
THREAD_GROUP_SIZE = max(WARP_SIZE // BLOCK_SIZE, 1)  # threads that share one key token
NUM_THREAD_GROUPS = NUM_THREADS // THREAD_GROUP_SIZE
VEC_SIZE = max(16 // (THREAD_GROUP_SIZE * DTYPE.itemsize), 1)  # a group loads 16 bytes at once
NUM_VECS_PER_THREAD = HEAD_SIZE // (THREAD_GROUP_SIZE * VEC_SIZE)
X = 16 // DTYPE.itemsize  # elements of K that are neighbours in memory: 16 bytes
Q_VECS_SHAPE = (THREAD_GROUP_SIZE, NUM_VECS_PER_THREAD, VEC_SIZE)
K_VECS_SHAPE = (NUM_VECS_PER_THREAD, VEC_SIZE)

# Of V and the reductions
V_VEC_SIZE = min(16 // DTYPE.itemsize, BLOCK_SIZE)  # tokens of one row of V: 16 bytes
NUM_V_VECS_PER_ROW = BLOCK_SIZE // V_VEC_SIZE  # lanes that share a row
NUM_ROWS_PER_ITER = WARP_SIZE // NUM_V_VECS_PER_ROW  # rows that a warp reads at once
NUM_ROWS_PER_THREAD = -(-HEAD_SIZE // NUM_ROWS_PER_ITER)  # rounded up
RED_SMEM_SIZE = 2 * NUM_WARPS  # a half for the maximum, a half for the sum


# The query, the keys and their scores -------------------------------------------------------------


@cuda.jit(device=True)
def load_query(q_vecs, q, thread_idx):  # q [HEAD_SIZE]; q_vecs has the shape Q_VECS_SHAPE
    # Row r of q_vecs is the share of the threads with thread_group_offset r: vecs r, r +
    # THREAD_GROUP_SIZE, ... of the head. The groups take the vecs of a share in turn.
    thread_group_idx = thread_idx // THREAD_GROUP_SIZE
    thread_group_offset = thread_idx % THREAD_GROUP_SIZE
    for i in range(thread_group_idx, NUM_VECS_PER_THREAD, NUM_THREAD_GROUPS):
        vec_idx = thread_group_offset + i * THREAD_GROUP_SIZE
        for e in range(VEC_SIZE):
            q_vecs[thread_group_offset, i, e] = q[vec_idx * VEC_SIZE + e]
    cuda.syncthreads()


@cuda.jit(device=True)
def load_key(
    k_vecs, k_block, physical_block_offset, thread_idx
):  # k_vecs has the shape K_VECS_SHAPE; k_block [HEAD_SIZE / X, BLOCK_SIZE, X]
    # The vecs of this thread's share, as of q: together, a group reads 16 bytes side by side.
    thread_group_offset = thread_idx % THREAD_GROUP_SIZE
    for j in range(NUM_VECS_PER_THREAD):
        vec_idx = thread_group_offset + j * THREAD_GROUP_SIZE
        piece, first = vec_idx * VEC_SIZE // X, vec_idx * VEC_SIZE % X
        for e in range(VEC_SIZE):
            k_vecs[j, e] = to_float(k_block[piece, physical_block_offset, first + e])


@cuda.jit(device=True)
def qk_dot(q_vecs, k_vecs):  # both [NUM_VECS_PER_THREAD, VEC_SIZE]: this thread's share
    qk = float32(0)
    for j in range(NUM_VECS_PER_THREAD):
        for e in range(VEC_SIZE):
            qk += to_float(q_vecs[j, e]) * k_vecs[j, e]
    # The sum over the thread group: every thread of it gets the whole score.
    mask = THREAD_GROUP_SIZE // 2
    while mask >= 1:
        qk += cuda.shfl_xor_sync(ALL_LANES, qk, mask)
        mask //= 2
    return qk


@cuda.jit(device=True)
def fill_logits(
    logits, q_vecs, k_cache, kv_head_idx, block_table, blocks, seq_len, scale, slope, thread_idx
):  # blocks: the first one, and the one after the last; returns this thread's largest score
    start_block_idx, end_block_idx = blocks
    warp_idx = thread_idx // WARP_SIZE
    thread_group_idx = thread_idx // THREAD_GROUP_SIZE
    thread_group_offset = thread_idx % THREAD_GROUP_SIZE
    qk_max = float32(-FLT_MAX)
    # Each warp takes every NUM_WARPS-th block, each thread group one token of it.
    for block_idx in range(start_block_idx + warp_idx, end_block_idx, NUM_WARPS):
        physical_block_offset = thread_group_idx % BLOCK_SIZE
        token_idx = block_idx * BLOCK_SIZE + physical_block_offset
        k_vecs = cuda.local.array(K_VECS_SHAPE, float32)
        physical_block_number = index_t(block_table[block_idx])
        k_block = k_cache[physical_block_number, kv_head_idx]
        load_key(k_vecs, k_block, physical_block_offset, thread_idx)
        # qk = scale * (q . k) + slope * distance to the newest token
        qk = scale * qk_dot(q_vecs[thread_group_offset], k_vecs)
        qk += slope * float32(token_idx - seq_len + 1)
        # All threads of the group have qk; the first one keeps it. A slot without a token gets 0
        # for its final weight, and has no part in the maximum.
        if thread_group_offset == 0:
            empty = token_idx >= seq_len
            logits[token_idx - start_block_idx * BLOCK_SIZE] = float32(0) if empty else qk
            qk_max = qk_max if empty else max(qk_max, qk)
    return qk_max


# Softmax ------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def warp_max(value, mask, smallest_mask):
    while mask >= smallest_mask:
        value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, mask))
        mask //= 2
    return value


@cuda.jit(device=True)
def block_max(red_smem, value, smallest_mask, thread_idx):  # of all threads, for all threads
    warp_idx, lane = thread_idx // WARP_SIZE, thread_idx % WARP_SIZE
    value = warp_max(value, WARP_SIZE // 2, smallest_mask)
    if lane == 0:
        red_smem[warp_idx] = value
    cuda.syncthreads()
    # Every warp finds the maximum over the warps, in its first NUM_WARPS lanes.
    value = red_smem[lane] if lane < NUM_WARPS else float32(-FLT_MAX)
    return cuda.shfl_sync(ALL_LANES, warp_max(value, NUM_WARPS // 2, 1), 0)


@cuda.jit(device=True)
def warp_sum(value, mask):
    while mask >= 1:
        value += cuda.shfl_xor_sync(ALL_LANES, value, mask)
        mask //= 2
    return value


@cuda.jit(device=True)
def block_sum(red_smem, value, thread_idx):  # of all threads, for all threads
    warp_idx, lane = thread_idx // WARP_SIZE, thread_idx % WARP_SIZE
    value = warp_sum(value, WARP_SIZE // 2)
    if lane == 0:
        red_smem[warp_idx] = value
    cuda.syncthreads()
    value = red_smem[lane] if lane < NUM_WARPS else float32(0)
    return cuda.shfl_sync(ALL_LANES, warp_sum(value, NUM_WARPS // 2), 0)


@cuda.jit(device=True)
def scores_to_weights(logits, red_smem, qk_max, num_tokens, thread_idx):
    # exp_sum = sum of exp(qk - qk_max). Thread t takes tokens t, t + NUM_THREADS, ...
    exp_sum = float32(0)
    for i in range(thread_idx, num_tokens, NUM_THREADS):
        logits[i] = math.exp(logits[i] - qk_max)
        exp_sum += logits[i]
    exp_sum = block_sum(red_smem, exp_sum, thread_idx)
    # weight = exp(qk - qk_max) / exp_sum
    inv_sum = float32(1) / (exp_sum + float32(1e-6))
    for i in range(thread_idx, num_tokens, NUM_THREADS):
        logits[i] *= inv_sum
    cuda.syncthreads()
    return exp_sum


# V ------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def add_values(
    accs, logits, v_block, first_token, num_tokens, thread_idx
):  # v_block [HEAD_SIZE, BLOCK_SIZE]; first_token: the place of its first weight in logits
    lane = thread_idx % WARP_SIZE
    physical_block_offset = lane % NUM_V_VECS_PER_ROW * V_VEC_SIZE
    for i in range(NUM_ROWS_PER_THREAD):
        row_idx = lane // NUM_V_VECS_PER_ROW + i * NUM_ROWS_PER_ITER
        if row_idx < HEAD_SIZE:  # the last rows may not exist: 120 is no multiple of 16
            v_vec = cuda.local.array(V_VEC_SIZE, float32)
            for j in range(V_VEC_SIZE):
                v_vec[j] = to_float(v_block[row_idx, physical_block_offset + j])
            # Only the last block has slots without a token. Their weight is 0, but 0 * NaN is NaN.
            if first_token + BLOCK_SIZE > num_tokens:
                for j in range(V_VEC_SIZE):
                    if first_token + physical_block_offset + j >= num_tokens:
                        v_vec[j] = float32(0)
            dot = float32(0)
            for j in range(V_VEC_SIZE):
                dot += logits[first_token + physical_block_offset + j] * v_vec[j]
            accs[i] += dot


@cuda.jit(device=True)
def sum_values(accs, logits, v_cache, kv_head_idx, block_table, blocks, num_tokens, thread_idx):
    start_block_idx, end_block_idx = blocks
    warp_idx = thread_idx // WARP_SIZE
    for i in range(NUM_ROWS_PER_THREAD):
        accs[i] = float32(0)
    # The same warp takes the same blocks as before.
    for block_idx in range(start_block_idx + warp_idx, end_block_idx, NUM_WARPS):
        first_token = index_t(block_idx - start_block_idx) * BLOCK_SIZE  # its place in logits
        v_block = v_cache[index_t(block_table[block_idx]), kv_head_idx]
        add_values(accs, logits, v_block, first_token, num_tokens, thread_idx)
    # The sum over the lanes that share a row.
    for i in range(NUM_ROWS_PER_THREAD):
        accs[i] = warp_sum(accs[i], NUM_V_VECS_PER_ROW // 2)


@cuda.jit(device=True)
def add_warps(accs, out_smem, thread_idx):  # out_smem [NUM_WARPS / 2 * HEAD_SIZE]
    # As a tree: the upper half of the warps leaves its rows, the lower half adds them; then the
    # same with half as many warps.
    warp_idx, lane = thread_idx // WARP_SIZE, thread_idx % WARP_SIZE
    i = NUM_WARPS
    while i > 1:
        mid = i // 2
        for j in range(NUM_ROWS_PER_THREAD):
            row_idx = lane // NUM_V_VECS_PER_ROW + j * NUM_ROWS_PER_ITER
            writes = row_idx < HEAD_SIZE and lane % NUM_V_VECS_PER_ROW == 0
            if mid <= warp_idx < i and writes:
                out_smem[(warp_idx - mid) * HEAD_SIZE + row_idx] = accs[j]
        cuda.syncthreads()
        for j in range(NUM_ROWS_PER_THREAD):
            row_idx = lane // NUM_V_VECS_PER_ROW + j * NUM_ROWS_PER_ITER
            writes = row_idx < HEAD_SIZE and lane % NUM_V_VECS_PER_ROW == 0
            if warp_idx < mid and writes:
                accs[j] += out_smem[warp_idx * HEAD_SIZE + row_idx]
        cuda.syncthreads()
        i = mid


@cuda.jit(device=True)
def write_rows(out, accs, thread_idx):  # out [HEAD_SIZE]
    # Of the lanes that share a row, the first one writes it.
    lane = thread_idx % WARP_SIZE
    for i in range(NUM_ROWS_PER_THREAD):
        row_idx = lane // NUM_V_VECS_PER_ROW + i * NUM_ROWS_PER_ITER
        if row_idx < HEAD_SIZE and lane % NUM_V_VECS_PER_ROW == 0:
            out[row_idx] = from_float(accs[i])


# The kernel ---------------------------------------------------------------------------------------


@cuda.jit
def paged_attention_v1(out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes):
    # out, q [num_seqs, num_heads, HEAD_SIZE]; block_tables [num_seqs, max_num_blocks_per_seq]
    # k_cache [num_blocks, num_kv_heads, HEAD_SIZE / X, BLOCK_SIZE, X]
    # v_cache [num_blocks, num_kv_heads, HEAD_SIZE, BLOCK_SIZE]
    thread_idx = index_t(cuda.threadIdx.x)
    head_idx, seq_idx = cuda.blockIdx.x, cuda.blockIdx.y
    kv_head_idx, seq_len = head_idx // NUM_QUERIES_PER_KV, seq_lens[seq_idx]
    block_table, slope = block_tables[seq_idx], alibi_slopes[head_idx]
    blocks = 0, (seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE  # all of the sequence
    # Aligned, so that a load of 16 bytes may begin at each vec.
    q_vecs = cuda.shared.array(Q_VECS_SHAPE, scalar_t, alignment=16)
    logits = cuda.shared.array(0, float32, alignment=16)  # a float32 per slot
    red_smem = cuda.shared.array(RED_SMEM_SIZE, float32)
    accs = cuda.local.array(NUM_ROWS_PER_THREAD, float32)

    load_query(q_vecs, q[seq_idx, head_idx], thread_idx)
    qk_max = fill_logits(
        logits, q_vecs, k_cache, kv_head_idx, block_table, blocks, seq_len, scale, slope, thread_idx
    )
    qk_max = block_max(red_smem, qk_max, THREAD_GROUP_SIZE, thread_idx)
    # mark: scores
    # (At a mark the simulator can look at variables: intermediates.py.)
    exp_sum = scores_to_weights(logits, red_smem[NUM_WARPS:], qk_max, seq_len, thread_idx)
    # mark: sum
    # mark: weights
    sum_values(accs, logits, v_cache, kv_head_idx, block_table, blocks, seq_len, thread_idx)
    # mark: rows
    cuda.syncthreads()  # out_smem takes the memory of logits
    add_warps(accs, logits, thread_idx)
    if thread_idx < WARP_SIZE:
        write_rows(out[seq_idx, head_idx], accs, thread_idx)


def launch_v1(out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes):
    num_seqs, num_heads, _ = q.shape
    num_slots = -(-int(seq_lens.max()) // BLOCK_SIZE) * BLOCK_SIZE  # whole blocks
    shared_bytes = 4 * max(num_slots, NUM_WARPS // 2 * HEAD_SIZE)  # logits, later out_smem
    paged_attention_v1[(num_heads, num_seqs), NUM_THREADS, 0, shared_bytes](
        out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes
    )
