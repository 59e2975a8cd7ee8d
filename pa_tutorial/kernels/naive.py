"""A first paged kernel: the indexing and nothing else."""

import math
from collections.abc import Callable

from numba import cuda, float32, uint32

from pa_tutorial.kernels.dtypes import SCALAR_TYPES
from pa_tutorial.kernels.geometry import Geometry, made_once


@made_once
def naive_kernel(geometry: Geometry) -> Callable:
    """One thread per token for the scores, then one thread per element of the output.

    grid (num_heads, num_seqs), NUM_THREADS threads, shared memory for max_seq_len float32

    There is no reduction: each thread finds the maximum and the sum by itself. The kernel reads
    and computes far too often; it is here to show the indexing. Stage `cuda_naive`.
    """
    HEAD_SIZE, BLOCK_SIZE, X = geometry.HEAD_SIZE, geometry.BLOCK_SIZE, geometry.X
    NUM_THREADS, NUM_QUERIES_PER_KV = geometry.NUM_THREADS, geometry.NUM_QUERIES_PER_KV
    _, to_float, from_float = SCALAR_TYPES[geometry.dtype]

    @cuda.jit(fastmath=True)
    def naive_kernel(out, q, k_cache, v_cache, scale, block_tables, seq_lens, alibi_slopes):
        """out, q      [num_seqs, num_heads, HEAD_SIZE]
        k_cache        [num_blocks, num_kv_heads, HEAD_SIZE / X, BLOCK_SIZE, X]
        v_cache        [num_blocks, num_kv_heads, HEAD_SIZE, BLOCK_SIZE]
        block_tables   [num_seqs, max_num_blocks_per_seq]
        """
        head_idx, seq_idx = cuda.blockIdx.x, cuda.blockIdx.y
        thread_idx = uint32(cuda.threadIdx.x)
        kv_head_idx = head_idx // NUM_QUERIES_PER_KV
        seq_len = seq_lens[seq_idx]
        qk = cuda.shared.array(0, float32)  # [seq_len]

        # Thread t takes the tokens t, t + NUM_THREADS, ...
        for token_idx in range(thread_idx, seq_len, NUM_THREADS):
            block = block_tables[seq_idx, token_idx // BLOCK_SIZE]
            offset = token_idx % BLOCK_SIZE
            # qk = scale * (q . k) + slope * (token_idx - (seq_len - 1))
            dot = float32(0)
            for d in range(HEAD_SIZE):
                k = k_cache[block, kv_head_idx, d // X, offset, d % X]
                dot += to_float(q[seq_idx, head_idx, d]) * to_float(k)
            distance = float32(token_idx - seq_len + 1)
            qk[token_idx] = scale * dot + alibi_slopes[head_idx] * distance
        cuda.syncthreads()  # from here on, every thread reads the scores of all
        # mark: scores

        # Every thread for itself: the maximum, then the sum.
        qk_max = qk[0]
        for token_idx in range(seq_len):
            qk_max = max(qk_max, qk[token_idx])
        exp_sum = float32(0)
        for token_idx in range(seq_len):
            exp_sum += math.exp(qk[token_idx] - qk_max)
        # mark: sum

        # Thread t takes the elements t, t + NUM_THREADS, ... of the output.
        for d in range(thread_idx, HEAD_SIZE, NUM_THREADS):
            acc = float32(0)
            for token_idx in range(seq_len):
                block = block_tables[seq_idx, token_idx // BLOCK_SIZE]
                v = v_cache[block, kv_head_idx, d, token_idx % BLOCK_SIZE]
                acc += math.exp(qk[token_idx] - qk_max) * to_float(v)
            out[seq_idx, head_idx, d] = from_float(acc / exp_sum)

    return naive_kernel
