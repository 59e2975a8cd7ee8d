"""Your v1: executed after the package's kernel, whose functions it defines again (README.md)."""

from numba import cuda, float32

from pa_tutorial.kernels.v1 import (
    BLOCK_SIZE,
    FLT_MAX,
    K_VECS_SHAPE,
    NUM_QUERIES_PER_KV,
    NUM_ROWS_PER_THREAD,
    NUM_WARPS,
    Q_VECS_SHAPE,
    RED_SMEM_SIZE,
    THREAD_GROUP_SIZE,
    WARP_SIZE,
    add_warps,
    block_max,
    index_t,
    load_key,
    load_query,
    qk_dot,
    scalar_t,
    scores_to_weights,
    sum_values,
    write_rows,
)

WINDOW = 0  # tokens that the newest query sees, itself included; 0: no window, it sees all


@cuda.jit(device=True)
def first_token_seen(seq_len):
    """A sequence shorter than the window is seen from token 0."""
    return max(seq_len - WINDOW, 0) if WINDOW > 0 else 0


@cuda.jit(device=True)
def fill_logits(
    logits, q_vecs, k_cache, kv_head_idx, block_table, blocks, seq_len, scale, slope, thread_idx
):  # blocks: the first one, and the one after the last; returns this thread's largest score
    start_block_idx, end_block_idx = blocks
    warp_idx = thread_idx // WARP_SIZE
    thread_group_idx = thread_idx // THREAD_GROUP_SIZE
    thread_group_offset = thread_idx % THREAD_GROUP_SIZE
    qk_max = float32(-FLT_MAX)
    first_token_idx = first_token_seen(seq_len)
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
        if token_idx < first_token_idx:
            qk = float32(-FLT_MAX)  # its weight becomes 0, and the maximum is another's
        # All threads of the group have qk; the first one keeps it. A slot without a token gets 0
        # for its final weight, and has no part in the maximum.
        if thread_group_offset == 0:
            empty = token_idx >= seq_len
            logits[token_idx - start_block_idx * BLOCK_SIZE] = float32(0) if empty else qk
            qk_max = qk_max if empty else max(qk_max, qk)
    return qk_max


@cuda.jit
def paged_attention_v1(out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes):
    # out, q [num_seqs, num_heads, HEAD_SIZE]; block_tables [num_seqs, max_num_blocks_per_seq]
    # k_cache [num_blocks, num_kv_heads, HEAD_SIZE / X, BLOCK_SIZE, X]
    # v_cache [num_blocks, num_kv_heads, HEAD_SIZE, BLOCK_SIZE]
    thread_idx = index_t(cuda.threadIdx.x)
    head_idx, seq_idx = cuda.blockIdx.x, cuda.blockIdx.y
    kv_head_idx, seq_len = head_idx // NUM_QUERIES_PER_KV, seq_lens[seq_idx]
    block_table, slope = block_tables[seq_idx], alibi_slopes[head_idx]
    start_block_idx = first_token_seen(seq_len) // BLOCK_SIZE
    blocks = start_block_idx, (seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE
    num_tokens = seq_len - start_block_idx * BLOCK_SIZE  # logit 0 is the first block's first slot
    q_vecs = cuda.shared.array(Q_VECS_SHAPE, scalar_t, alignment=16)
    logits = cuda.shared.array(0, float32, alignment=16)  # a float32 per slot of these blocks
    red_smem = cuda.shared.array(RED_SMEM_SIZE, float32)
    accs = cuda.local.array(NUM_ROWS_PER_THREAD, float32)

    load_query(q_vecs, q[seq_idx, head_idx], thread_idx)
    qk_max = fill_logits(
        logits, q_vecs, k_cache, kv_head_idx, block_table, blocks, seq_len, scale, slope, thread_idx
    )
    qk_max = block_max(red_smem, qk_max, THREAD_GROUP_SIZE, thread_idx)
    scores_to_weights(logits, red_smem[NUM_WARPS:], qk_max, num_tokens, thread_idx)
    sum_values(accs, logits, v_cache, kv_head_idx, block_table, blocks, num_tokens, thread_idx)
    cuda.syncthreads()  # out_smem takes the memory of logits
    add_warps(accs, logits, thread_idx)
    if thread_idx < WARP_SIZE:
        write_rows(out[seq_idx, head_idx], accs, thread_idx)
