"""The slot write and the naive kernel, as notebook 08 builds them: one thread per token."""

import math

import torch
from numba import cuda, float32

from pa_tutorial.kernels.dtypes import SCALAR_TYPES

HEAD_SIZE = 32
BLOCK_SIZE = 8
DTYPE = torch.float16
NUM_QUERIES_PER_KV = 2  # query heads that share a KV head
NUM_THREADS = 128

X = 16 // DTYPE.itemsize  # elements of K that are neighbours in memory: 16 bytes
scalar_t, to_float, from_float = SCALAR_TYPES[DTYPE]


@cuda.jit
def write_keys(
    k_cache,  # [num_blocks, num_kv_heads, HEAD_SIZE / X, BLOCK_SIZE, X]
    key,  # [num_tokens, num_kv_heads, HEAD_SIZE]
    slot_mapping,  # [num_tokens] int64
):
    # One thread block per token.
    token_idx = cuda.blockIdx.x
    slot = slot_mapping[token_idx]
    if slot < 0:
        return  # padding
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    for i in range(cuda.threadIdx.x, key.shape[1] * HEAD_SIZE, NUM_THREADS):
        head_idx, d = i // HEAD_SIZE, i % HEAD_SIZE
        k_cache[block, head_idx, d // X, offset, d % X] = key[token_idx, head_idx, d]


@cuda.jit(device=True)
def dot(q, k_block, offset):  # q [HEAD_SIZE], k_block [HEAD_SIZE / X, BLOCK_SIZE, X]
    # q . k, of one token
    qk = float32(0)
    for d in range(HEAD_SIZE):
        qk += to_float(q[d]) * to_float(k_block[d // X, offset, d % X])
    return qk


@cuda.jit(device=True)
def fill_scores(qk, q, k_cache, kv_head_idx, block_table, seq_len, scale, alibi_slope):
    # Thread t takes the tokens t, t + NUM_THREADS, ...
    for token_idx in range(cuda.threadIdx.x, seq_len, NUM_THREADS):
        block = block_table[token_idx // BLOCK_SIZE]
        score = scale * dot(q, k_cache[block, kv_head_idx], token_idx % BLOCK_SIZE)
        qk[token_idx] = score + alibi_slope * float32(token_idx - seq_len + 1)


@cuda.jit(device=True)
def maximum_and_sum(qk, seq_len):  # qk [seq_len]
    # Each thread goes over all scores by itself.
    qk_max = qk[0]
    for token_idx in range(seq_len):
        qk_max = max(qk_max, qk[token_idx])
    exp_sum = float32(0)
    for token_idx in range(seq_len):
        exp_sum += math.exp(qk[token_idx] - qk_max)
    return qk_max, exp_sum


@cuda.jit(device=True)
def write_output(out, qk, qk_max, exp_sum, v_cache, kv_head_idx, block_table, seq_len):
    # Thread t takes the elements t, t + NUM_THREADS, ... of the output.
    for d in range(cuda.threadIdx.x, HEAD_SIZE, NUM_THREADS):
        acc = float32(0)
        for token_idx in range(seq_len):
            block = block_table[token_idx // BLOCK_SIZE]
            v = to_float(v_cache[block, kv_head_idx, d, token_idx % BLOCK_SIZE])
            acc += math.exp(qk[token_idx] - qk_max) * v
        out[d] = from_float(acc / exp_sum)


@cuda.jit
def naive_kernel(out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes):
    # out, q [num_seqs, num_heads, HEAD_SIZE]; block_tables [num_seqs, max_num_blocks_per_seq]
    # k_cache [num_blocks, num_kv_heads, HEAD_SIZE / X, BLOCK_SIZE, X]
    # v_cache [num_blocks, num_kv_heads, HEAD_SIZE, BLOCK_SIZE]
    head_idx, seq_idx = cuda.blockIdx.x, cuda.blockIdx.y
    kv_head_idx = head_idx // NUM_QUERIES_PER_KV
    block_table, seq_len = block_tables[seq_idx], seq_lens[seq_idx]
    qk = cuda.shared.array(0, float32)  # [seq_len]
    query, slope = q[seq_idx, head_idx], alibi_slopes[head_idx]
    fill_scores(qk, query, k_cache, kv_head_idx, block_table, seq_len, scale, slope)
    cuda.syncthreads()
    # mark: scores
    qk_max, exp_sum = maximum_and_sum(qk, seq_len)
    head_out = out[seq_idx, head_idx]
    write_output(head_out, qk, qk_max, exp_sum, v_cache, kv_head_idx, block_table, seq_len)


def launch_naive(out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes):
    num_seqs, num_heads, _ = q.shape
    shared_bytes = 4 * int(seq_lens.max())  # a float32 per token
    naive_kernel[(num_heads, num_seqs), NUM_THREADS, 0, shared_bytes](
        out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes
    )
