"""vLLM's v1, as notebooks 10 and 11 build it: thread groups, reductions, rows of V."""

import math

import torch
from numba import cuda, float32, int32

from pa_tutorial.kernels.dtypes import SCALAR_TYPES
from pa_tutorial.kernels.warp import ALL_LANES

HEAD_SIZE = 32
BLOCK_SIZE = 8
DTYPE = torch.float16
NUM_QUERIES_PER_KV = 2  # query heads that share a KV head
NUM_THREADS = 128
WARP_SIZE = 32
FLT_MAX = torch.finfo(torch.float32).max
index_t = int32  # the type of a thread's number; notebook 12 tries another one
scalar_t, to_float, from_float = SCALAR_TYPES[DTYPE]

# Of q and K: notebook 10
NUM_WARPS = NUM_THREADS // WARP_SIZE
THREAD_GROUP_SIZE = max(WARP_SIZE // BLOCK_SIZE, 1)  # threads that share one key token
NUM_THREAD_GROUPS = NUM_THREADS // THREAD_GROUP_SIZE
VEC_SIZE = max(16 // (THREAD_GROUP_SIZE * DTYPE.itemsize), 1)  # a group loads 16 bytes at once
NUM_VECS_PER_THREAD = HEAD_SIZE // (THREAD_GROUP_SIZE * VEC_SIZE)
X = 16 // DTYPE.itemsize  # elements of K that lie side by side: 16 bytes
Q_VECS_SHAPE = (THREAD_GROUP_SIZE, NUM_VECS_PER_THREAD, VEC_SIZE)
K_VECS_SHAPE = (NUM_VECS_PER_THREAD, VEC_SIZE)

# Of V and the reductions: notebook 11
V_VEC_SIZE = min(16 // DTYPE.itemsize, BLOCK_SIZE)  # tokens of one row of V: 16 bytes
NUM_V_VECS_PER_ROW = BLOCK_SIZE // V_VEC_SIZE  # lanes that share a row
NUM_ROWS_PER_ITER = WARP_SIZE // NUM_V_VECS_PER_ROW  # rows that a warp reads at once
NUM_ROWS_PER_THREAD = -(-HEAD_SIZE // NUM_ROWS_PER_ITER)  # rounded up
RED_SMEM_SIZE = 2 * NUM_WARPS


@cuda.jit(device=True)
def load_query(q_vecs, q):  # q [HEAD_SIZE]; q_vecs has the shape Q_VECS_SHAPE
    thread_group_idx = index_t(cuda.threadIdx.x) // THREAD_GROUP_SIZE
    thread_group_offset = index_t(cuda.threadIdx.x) % THREAD_GROUP_SIZE
    for i in range(thread_group_idx, NUM_VECS_PER_THREAD, NUM_THREAD_GROUPS):
        vec_idx = thread_group_offset + i * THREAD_GROUP_SIZE
        for e in range(VEC_SIZE):
            q_vecs[thread_group_offset, i, e] = q[vec_idx * VEC_SIZE + e]
    cuda.syncthreads()


@cuda.jit(device=True)
def load_key(k_vecs, k_block, physical_block_offset):  # k_block [HEAD_SIZE / X, BLOCK_SIZE, X]
    thread_group_offset = index_t(cuda.threadIdx.x) % THREAD_GROUP_SIZE
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
    logits, q_vecs, k_cache, kv_head_idx, block_table, blocks, seq_len, scale, alibi_slope
):  # blocks: the first one, and the one after the last
    start_block_idx, end_block_idx = blocks
    warp_idx = index_t(cuda.threadIdx.x) // WARP_SIZE
    thread_group_idx = index_t(cuda.threadIdx.x) // THREAD_GROUP_SIZE
    thread_group_offset = index_t(cuda.threadIdx.x) % THREAD_GROUP_SIZE
    qk_max = float32(-FLT_MAX)
    # Each warp takes every NUM_WARPS-th block, each thread group one token of it.
    for block_idx in range(start_block_idx + warp_idx, end_block_idx, NUM_WARPS):
        physical_block_offset = thread_group_idx % BLOCK_SIZE
        token_idx = block_idx * BLOCK_SIZE + physical_block_offset
        k_vecs = cuda.local.array(K_VECS_SHAPE, float32)
        load_key(k_vecs, k_cache[block_table[block_idx], kv_head_idx], physical_block_offset)
        # qk = scale * (q . k) + alibi_slope * distance to the newest token
        qk = scale * qk_dot(q_vecs[thread_group_offset], k_vecs)
        qk += alibi_slope * float32(token_idx - seq_len + 1)
        if thread_group_offset == 0:
            empty = token_idx >= seq_len
            logits[token_idx - start_block_idx * BLOCK_SIZE] = float32(0) if empty else qk
            qk_max = qk_max if empty else max(qk_max, qk)
    return qk_max


@cuda.jit(device=True)
def warp_max(value, mask, smallest_mask):
    while mask >= smallest_mask:
        value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, mask))
        mask //= 2
    return value


@cuda.jit(device=True)
def block_max(red_smem, value, smallest_mask):  # the maximum of all threads, for all threads
    warp_idx = index_t(cuda.threadIdx.x) // WARP_SIZE
    lane = index_t(cuda.threadIdx.x) % WARP_SIZE
    value = warp_max(value, WARP_SIZE // 2, smallest_mask)
    if lane == 0:
        red_smem[warp_idx] = value
    cuda.syncthreads()
    value = red_smem[lane] if lane < NUM_WARPS else float32(-FLT_MAX)
    return cuda.shfl_sync(ALL_LANES, warp_max(value, NUM_WARPS // 2, 1), 0)


@cuda.jit(device=True)
def warp_sum(value, mask):
    while mask >= 1:
        value += cuda.shfl_xor_sync(ALL_LANES, value, mask)
        mask //= 2
    return value


@cuda.jit(device=True)
def block_sum(red_smem, value):
    warp_idx = index_t(cuda.threadIdx.x) // WARP_SIZE
    lane = index_t(cuda.threadIdx.x) % WARP_SIZE
    value = warp_sum(value, WARP_SIZE // 2)
    if lane == 0:
        red_smem[warp_idx] = value
    cuda.syncthreads()
    value = red_smem[lane] if lane < NUM_WARPS else float32(0)
    return cuda.shfl_sync(ALL_LANES, warp_sum(value, NUM_WARPS // 2), 0)


@cuda.jit(device=True)
def scores_to_weights(logits, red_smem, qk_max, num_tokens):
    thread_idx = index_t(cuda.threadIdx.x)
    exp_sum = float32(0)
    for i in range(thread_idx, num_tokens, NUM_THREADS):
        logits[i] = math.exp(logits[i] - qk_max)
        exp_sum += logits[i]
    exp_sum = block_sum(red_smem, exp_sum)
    # weight = exp(qk - qk_max) / exp_sum
    inv_sum = float32(1) / (exp_sum + float32(1e-6))
    for i in range(thread_idx, num_tokens, NUM_THREADS):
        logits[i] *= inv_sum
    cuda.syncthreads()
    return exp_sum


@cuda.jit(device=True)
def add_values(accs, logits, v_block, first_token, num_tokens):  # v_block [HEAD_SIZE, BLOCK_SIZE]
    lane = index_t(cuda.threadIdx.x) % WARP_SIZE
    physical_block_offset = lane % NUM_V_VECS_PER_ROW * V_VEC_SIZE
    for i in range(NUM_ROWS_PER_THREAD):
        row_idx = lane // NUM_V_VECS_PER_ROW + i * NUM_ROWS_PER_ITER
        if row_idx < HEAD_SIZE:  # the last rows may not exist: 120 is no multiple of 16
            dot = float32(0)
            for j in range(V_VEC_SIZE):
                token_idx = first_token + physical_block_offset + j
                v = to_float(v_block[row_idx, physical_block_offset + j])
                v = v if token_idx < num_tokens else float32(0)  # 0 * NaN is NaN
                dot += logits[token_idx] * v
            accs[i] += dot


@cuda.jit(device=True)
def sum_values(accs, logits, v_cache, kv_head_idx, block_table, blocks, num_tokens):
    start_block_idx, end_block_idx = blocks
    warp_idx = index_t(cuda.threadIdx.x) // WARP_SIZE
    for i in range(NUM_ROWS_PER_THREAD):
        accs[i] = float32(0)
    # The same warp takes the same blocks as before.
    for block_idx in range(start_block_idx + warp_idx, end_block_idx, NUM_WARPS):
        first_token = (block_idx - start_block_idx) * BLOCK_SIZE  # its place in logits
        v_block = v_cache[block_table[block_idx], kv_head_idx]
        add_values(accs, logits, v_block, first_token, num_tokens)
    # The sum over the lanes that share a row.
    for i in range(NUM_ROWS_PER_THREAD):
        accs[i] = warp_sum(accs[i], NUM_V_VECS_PER_ROW // 2)


@cuda.jit(device=True)
def add_warps(accs, out_smem):
    warp_idx = index_t(cuda.threadIdx.x) // WARP_SIZE
    lane = index_t(cuda.threadIdx.x) % WARP_SIZE
    i = NUM_WARPS
    while i > 1:
        mid = i // 2
        for j in range(NUM_ROWS_PER_THREAD):  # the upper half leaves its rows
            row_idx = lane // NUM_V_VECS_PER_ROW + j * NUM_ROWS_PER_ITER
            writes = row_idx < HEAD_SIZE and lane % NUM_V_VECS_PER_ROW == 0
            if mid <= warp_idx < i and writes:
                out_smem[(warp_idx - mid) * HEAD_SIZE + row_idx] = accs[j]
        cuda.syncthreads()
        for j in range(NUM_ROWS_PER_THREAD):  # the lower half adds them
            row_idx = lane // NUM_V_VECS_PER_ROW + j * NUM_ROWS_PER_ITER
            writes = row_idx < HEAD_SIZE and lane % NUM_V_VECS_PER_ROW == 0
            if warp_idx < mid and writes:
                accs[j] += out_smem[warp_idx * HEAD_SIZE + row_idx]
        cuda.syncthreads()
        i = mid


@cuda.jit(device=True)
def write_rows(out, accs):  # out [HEAD_SIZE]
    # Of the lanes that share a row, the first one writes it.
    lane = index_t(cuda.threadIdx.x) % WARP_SIZE
    for i in range(NUM_ROWS_PER_THREAD):
        row_idx = lane // NUM_V_VECS_PER_ROW + i * NUM_ROWS_PER_ITER
        if row_idx < HEAD_SIZE and lane % NUM_V_VECS_PER_ROW == 0:
            out[row_idx] = from_float(accs[i])


@cuda.jit
def paged_attention_v1(out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes):
    # out, q [num_seqs, num_heads, HEAD_SIZE]; block_tables [num_seqs, max_num_blocks_per_seq]
    # k_cache [num_blocks, num_kv_heads, HEAD_SIZE / X, BLOCK_SIZE, X]
    # v_cache [num_blocks, num_kv_heads, HEAD_SIZE, BLOCK_SIZE]
    head_idx, seq_idx = cuda.blockIdx.x, cuda.blockIdx.y
    kv_head_idx, seq_len = head_idx // NUM_QUERIES_PER_KV, seq_lens[seq_idx]
    block_table, slope = block_tables[seq_idx], alibi_slopes[head_idx]
    blocks = 0, (seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE  # all of the sequence
    q_vecs = cuda.shared.array(Q_VECS_SHAPE, scalar_t)
    logits = cuda.shared.array(0, float32)  # a float32 per slot
    red_smem = cuda.shared.array(RED_SMEM_SIZE, float32)
    accs = cuda.local.array(NUM_ROWS_PER_THREAD, float32)

    load_query(q_vecs, q[seq_idx, head_idx])
    qk_max = fill_logits(
        logits, q_vecs, k_cache, kv_head_idx, block_table, blocks, seq_len, scale, slope
    )
    qk_max = block_max(red_smem, qk_max, THREAD_GROUP_SIZE)
    # mark: scores
    exp_sum = scores_to_weights(logits, red_smem[NUM_WARPS:], qk_max, seq_len)
    # mark: sum
    # mark: weights
    sum_values(accs, logits, v_cache, kv_head_idx, block_table, blocks, seq_len)
    # mark: rows
    cuda.syncthreads()  # out_smem takes the memory of logits
    add_warps(accs, logits)
    if cuda.threadIdx.x < WARP_SIZE:
        write_rows(out[seq_idx, head_idx], accs)


def launch_v1(out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes):
    num_seqs, num_heads, _ = q.shape
    num_slots = -(-int(seq_lens.max()) // BLOCK_SIZE) * BLOCK_SIZE  # whole blocks
    shared_bytes = 4 * max(num_slots, NUM_WARPS // 2 * HEAD_SIZE)  # logits, later out_smem
    paged_attention_v1[(num_heads, num_seqs), NUM_THREADS, 0, shared_bytes](
        out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes
    )
