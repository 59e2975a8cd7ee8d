"""v1 with vector loads: the four functions of v1.py that change, executed after it (template.py).

Alone, this file is no kernel: the kernel and all other functions are v1.py's.
"""

from numba import cuda, float32

from pa_tutorial.kernels.v1 import (
    ALL_LANES,
    BLOCK_SIZE,
    HEAD_SIZE,
    NUM_ROWS_PER_ITER,
    NUM_ROWS_PER_THREAD,
    NUM_THREAD_GROUPS,
    NUM_V_VECS_PER_ROW,
    NUM_VECS_PER_THREAD,
    THREAD_GROUP_SIZE,
    V_VEC_SIZE,
    VEC_SIZE,
    WARP_SIZE,
    X,
)
from pa_tutorial.kernels.vectors import vector_access

load, store, widen = vector_access(VEC_SIZE)  # of q and K
load_row, _, widen_row = vector_access(V_VEC_SIZE)  # of V
load_4, store_4, widen_4 = vector_access(4)  # of the weights, float32


@cuda.jit(device=True)
def load_query(q_vecs, q, thread_idx):  # q [HEAD_SIZE], of one head of one sequence
    thread_group_idx = thread_idx // THREAD_GROUP_SIZE
    thread_group_offset = thread_idx % THREAD_GROUP_SIZE
    for i in range(thread_group_idx, NUM_VECS_PER_THREAD, NUM_THREAD_GROUPS):
        vec_idx = thread_group_offset + i * THREAD_GROUP_SIZE
        q_vec = load(q, vec_idx * VEC_SIZE)
        store(q_vecs[thread_group_offset, i], 0, q_vec)
    cuda.syncthreads()


@cuda.jit(device=True)
def load_key(
    k_vecs, k_block, physical_block_offset, thread_idx
):  # k_vecs has the shape K_VECS_SHAPE; k_block [HEAD_SIZE / X, BLOCK_SIZE, X]
    thread_group_offset = thread_idx % THREAD_GROUP_SIZE
    for j in range(NUM_VECS_PER_THREAD):
        vec_idx = thread_group_offset + j * THREAD_GROUP_SIZE
        piece, first = vec_idx * VEC_SIZE // X, vec_idx * VEC_SIZE % X
        k_vec = load(k_block[piece, physical_block_offset], first)
        widen(k_vecs[j], k_vec)


@cuda.jit(device=True)
def qk_dot(q_vecs, k_vecs):  # both [NUM_VECS_PER_THREAD, VEC_SIZE]: this thread's share
    qk = float32(0)
    for j in range(NUM_VECS_PER_THREAD):
        q_vec = cuda.local.array(VEC_SIZE, float32)
        widen(q_vec, load(q_vecs[j], 0))
        for e in range(VEC_SIZE):
            qk += q_vec[e] * k_vecs[j, e]
    # The sum over the thread group: every thread of it gets the whole score.
    mask = THREAD_GROUP_SIZE // 2
    while mask >= 1:
        qk += cuda.shfl_xor_sync(ALL_LANES, qk, mask)
        mask //= 2
    return qk


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
        if row_idx < HEAD_SIZE:  # the last rows may not exist: 120 is no multiple of 16
            v_vec = cuda.local.array(V_VEC_SIZE, float32)
            widen_row(v_vec, load_row(v_block[row_idx], physical_block_offset))
            # Only the last block has slots without a token. Their weight is 0, but 0 * NaN is NaN.
            if first_token + BLOCK_SIZE > num_tokens:
                for j in range(V_VEC_SIZE):
                    if first_token + physical_block_offset + j >= num_tokens:
                        v_vec[j] = float32(0)
            dot = float32(0)
            for j in range(V_VEC_SIZE):
                dot += logits_vec[j] * v_vec[j]
            accs[i] += dot
