"""The kernel: vLLM's paged attention, in its order and with its names.

Source: vLLM, csrc/attention/attention_kernels.cuh, paged_attention_kernel.
"""

import math
from collections.abc import Callable

from numba import cuda, float32, int32, int64, uint32

from pa_tutorial.arguments import require_type
from pa_tutorial.kernels.dtypes import SCALAR_TYPES
from pa_tutorial.kernels.geometry import FLT_MAX, VEC_BYTES, Geometry, made_once
from pa_tutorial.kernels.loads import Loads, element_loads
from pa_tutorial.kernels.warp import ALL_LANES, make_block_sum, make_qk_dot
from simt.gpus import WARP_SIZE


@made_once
def paged_attention(
    geometry: Geometry, loads: Callable[[Geometry], Loads] = element_loads
) -> Callable:
    """The kernel for one geometry, made once.

    grid (num_heads, num_seqs, max_num_partitions), NUM_THREADS threads,
    geometry.dynamic_shared_bytes(max_seq_len) bytes of dynamic shared memory

    geometry  what a C++ template takes; PARTITION_SIZE = 0 is v1, more is the first half of v2
    loads     how vecs are read: element_loads, or one with wider loads
    """
    require_type(callable(loads), "loads", loads, "a function, such as element_loads")
    HEAD_SIZE, BLOCK_SIZE, X = geometry.HEAD_SIZE, geometry.BLOCK_SIZE, geometry.X
    NUM_THREADS, PARTITION_SIZE = geometry.NUM_THREADS, geometry.PARTITION_SIZE
    NUM_QUERIES_PER_KV = geometry.NUM_QUERIES_PER_KV
    USE_PARTITIONING = PARTITION_SIZE > 0
    IS_QUANTIZED = geometry.cache_dtype is not None
    NUM_WARPS = geometry.NUM_WARPS
    THREAD_GROUP_SIZE = geometry.THREAD_GROUP_SIZE
    NUM_THREAD_GROUPS = geometry.NUM_THREAD_GROUPS
    NUM_TOKENS_PER_THREAD_GROUP = geometry.NUM_TOKENS_PER_THREAD_GROUP
    VEC_SIZE, NUM_VECS_PER_THREAD = geometry.VEC_SIZE, geometry.NUM_VECS_PER_THREAD
    V_VEC_SIZE, NUM_V_VECS_PER_ROW = geometry.V_VEC_SIZE, geometry.NUM_V_VECS_PER_ROW
    NUM_ROWS_PER_ITER = geometry.NUM_ROWS_PER_ITER
    NUM_ROWS_PER_THREAD = geometry.NUM_ROWS_PER_THREAD

    # The shape of an array in a kernel must be a name.
    Q_VECS_SHAPE = geometry.q_vecs_shape
    K_VECS_SHAPE = (NUM_VECS_PER_THREAD, VEC_SIZE)
    RED_SMEM_SIZE = 2 * NUM_WARPS

    scalar_t, _, from_float = SCALAR_TYPES[geometry.dtype]
    load_q, load_q_vec, load_k, load_logits, load_v = loads(geometry)
    qk_dot, block_sum = make_qk_dot(geometry, load_q_vec), make_block_sum(geometry)

    @cuda.jit(fastmath=True)
    def paged_attention_kernel(
        exp_sums,  # [num_seqs, num_heads, max_num_partitions]; not used by v1
        max_logits,  # the same
        out,  # [num_seqs, num_heads, max_num_partitions, HEAD_SIZE]; v1 has one partition
        q,  # [num_seqs, num_heads, HEAD_SIZE]
        k_cache,  # [num_blocks, num_kv_heads, HEAD_SIZE / X, BLOCK_SIZE, X]
        v_cache,  # [num_blocks, num_kv_heads, HEAD_SIZE, BLOCK_SIZE]
        scale,
        block_tables,  # [num_seqs, max_num_blocks_per_seq]
        seq_lens,  # [num_seqs]
        alibi_slopes,  # [num_heads]; 0: no bias
        q_stride,
        kv_block_stride,
        kv_head_stride,
        k_scale,  # [num_kv_heads]; of an 8-bit cache
        v_scale,  # the same
    ):
        """exp_sums, max_logits, out, q, k_cache and v_cache are flat: the offsets are computed
        here, in elements, as a C++ kernel does with its pointers."""
        # Prologue: which head, sequence and tokens are this thread block's.
        seq_idx = cuda.blockIdx.y
        partition_idx = cuda.blockIdx.z
        max_num_partitions = cuda.gridDim.z
        seq_len = seq_lens[seq_idx]
        if USE_PARTITIONING and partition_idx * PARTITION_SIZE >= seq_len:
            return  # the sequence ends before this partition

        # [start_block_idx, end_block_idx) is the range of blocks to process: in v1, all.
        num_seq_blocks = (seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE
        num_blocks_per_partition = (
            PARTITION_SIZE // BLOCK_SIZE if USE_PARTITIONING else num_seq_blocks
        )
        start_block_idx = partition_idx * num_blocks_per_partition
        end_block_idx = min(start_block_idx + num_blocks_per_partition, num_seq_blocks)
        # [start_token_idx, end_token_idx) is the range of tokens to process.
        start_token_idx = start_block_idx * BLOCK_SIZE
        end_token_idx = min(end_block_idx * BLOCK_SIZE, seq_len)
        num_tokens = end_token_idx - start_token_idx

        # uint32 first: no index can be negative, so the divisions are shifts. Then int32 again:
        # in Numba, uint64 and int64 meet as float64.
        thread_idx = uint32(cuda.threadIdx.x)
        warp_idx = int32(thread_idx // WARP_SIZE)
        lane = int32(thread_idx % WARP_SIZE)
        head_idx = cuda.blockIdx.x
        num_heads = cuda.gridDim.x
        kv_head_idx = head_idx // NUM_QUERIES_PER_KV
        alibi_slope = alibi_slopes[head_idx]
        scale_of_k = k_scale[kv_head_idx] if IS_QUANTIZED else float32(1)
        scale_of_v = v_scale[kv_head_idx] if IS_QUANTIZED else float32(1)

        # A thread group shares one key token. Its number counts through the whole thread block.
        thread_group_idx = int32(thread_idx // THREAD_GROUP_SIZE)
        thread_group_offset = int32(thread_idx % THREAD_GROUP_SIZE)

        # q to shared memory, once for all groups: row r holds the vecs of the threads with
        # thread_group_offset r. Group g brings the vecs g, g + NUM_THREAD_GROUPS, ... of each row.
        q_ptr = int64(seq_idx) * q_stride + head_idx * HEAD_SIZE
        q_vecs = cuda.shared.array(Q_VECS_SHAPE, scalar_t, alignment=VEC_BYTES)
        for i in range(thread_group_idx, NUM_VECS_PER_THREAD, NUM_THREAD_GROUPS):
            vec_idx = thread_group_offset + i * THREAD_GROUP_SIZE
            load_q(q_vecs[thread_group_offset, i], q, q_ptr + vec_idx * VEC_SIZE)
        cuda.syncthreads()

        # Dynamic shared memory: the scores, then the weights; at the very end, sums of rows of V.
        shared_mem = cuda.shared.array(0, float32, alignment=VEC_BYTES)
        logits = shared_mem
        # The first half for the maximum, the second for the sum.
        red_smem = cuda.shared.array(RED_SMEM_SIZE, float32)
        qk_max = float32(-FLT_MAX)

        # Each warp takes every NUM_WARPS-th block: with 4 warps, warp 1 takes blocks 1, 5, 9, ...
        block_table = block_tables[seq_idx]
        for block_idx in range(start_block_idx + warp_idx, end_block_idx, NUM_WARPS):
            # 64 bits: block number times stride passes 2**31 in a large pool.
            physical_block_number = int64(block_table[block_idx])
            # Each thread group takes one token of the block; with BLOCK_SIZE > 32, more in turn.
            for i in range(NUM_TOKENS_PER_THREAD_GROUP):
                physical_block_offset = (thread_group_idx + i * WARP_SIZE) % BLOCK_SIZE
                token_idx = block_idx * BLOCK_SIZE + physical_block_offset
                k_vecs = cuda.local.array(K_VECS_SHAPE, float32)
                k_ptr = (
                    physical_block_number * kv_block_stride
                    + kv_head_idx * kv_head_stride
                    + physical_block_offset * X
                )
                # Each thread takes every THREAD_GROUP_SIZE-th vec of the token: together the
                # group reads 16 bytes side by side; of an 8-bit cache, fewer.
                for j in range(NUM_VECS_PER_THREAD):
                    vec_idx = thread_group_offset + j * THREAD_GROUP_SIZE
                    offset1 = (vec_idx * VEC_SIZE) // X
                    offset2 = (vec_idx * VEC_SIZE) % X
                    load_k(k_vecs[j], k_cache, k_ptr + offset1 * BLOCK_SIZE * X + offset2)
                    if IS_QUANTIZED:
                        for e in range(VEC_SIZE):
                            k_vecs[j, e] *= scale_of_k

                # qk = scale * (q . k), summed over the threads of the group
                qk = scale * qk_dot(q_vecs[thread_group_offset], k_vecs)
                # ALiBi: slope * distance to the newest token. (The original asks first whether
                # there is a slope; asked so, Numba's compiler makes two loops of this one, and
                # needs 96 registers in place of 58.)
                qk += alibi_slope * float32(token_idx - seq_len + 1)

                # All threads of the group have qk; the first one keeps it. (Here `mask` says
                # whether a slot is empty; further down it is a distance of lanes, as in vLLM.)
                if thread_group_offset == 0:
                    # A slot behind the sequence gets 0 for its final weight. It has no part in
                    # the maximum, and the loop over num_tokens below leaves it out of the sum.
                    mask = token_idx >= seq_len
                    logits[token_idx - start_token_idx] = float32(0) if mask else qk
                    qk_max = qk_max if mask else max(qk_max, qk)

        # The maximum over the warp: the first thread of each group has a candidate.
        mask = WARP_SIZE // 2
        while mask >= THREAD_GROUP_SIZE:
            qk_max = max(qk_max, cuda.shfl_xor_sync(ALL_LANES, qk_max, mask))
            mask //= 2
        if lane == 0:
            red_smem[warp_idx] = qk_max
        cuda.syncthreads()
        # The maximum over the warps: every warp finds it, in its first NUM_WARPS lanes.
        qk_max = red_smem[lane] if lane < NUM_WARPS else float32(-FLT_MAX)
        mask = NUM_WARPS // 2
        while mask >= 1:
            qk_max = max(qk_max, cuda.shfl_xor_sync(ALL_LANES, qk_max, mask))
            mask //= 2
        qk_max = cuda.shfl_sync(ALL_LANES, qk_max, 0)
        # mark: scores
        # (At a mark the simulator can look at variables: intermediates.py.)

        # exp_sum = sum of exp(qk - qk_max). Thread t takes tokens t, t + NUM_THREADS, ...
        exp_sum = float32(0)
        for i in range(thread_idx, num_tokens, NUM_THREADS):
            val = math.exp(logits[i] - qk_max)
            logits[i] = val
            exp_sum += val
        exp_sum = block_sum(red_smem[NUM_WARPS:], exp_sum)
        # mark: sum

        # weight = exp(qk - qk_max) / exp_sum
        inv_sum = float32(1) / (exp_sum + float32(1e-6))
        for i in range(thread_idx, num_tokens, NUM_THREADS):
            logits[i] *= inv_sum
        cuda.syncthreads()
        # mark: weights

        # v2: what the reduce kernel needs to join the partitions.
        if USE_PARTITIONING and thread_idx == 0:
            row = int64(seq_idx) * num_heads * max_num_partitions + head_idx * max_num_partitions
            max_logits[row + partition_idx] = qk_max
            exp_sums[row + partition_idx] = exp_sum

        # out = sum of weight * V. A lane has V_VEC_SIZE tokens of the rows r, r +
        # NUM_ROWS_PER_ITER, ...; the sums of its rows stay in its registers, in float32.
        accs = cuda.local.array(NUM_ROWS_PER_THREAD, float32)
        for i in range(NUM_ROWS_PER_THREAD):
            accs[i] = float32(0)

        # The same warp takes the same blocks as before.
        for block_idx in range(start_block_idx + warp_idx, end_block_idx, NUM_WARPS):
            physical_block_number = int64(block_table[block_idx])
            physical_block_offset = (lane % NUM_V_VECS_PER_ROW) * V_VEC_SIZE
            token_idx = block_idx * BLOCK_SIZE + physical_block_offset
            logits_vec = cuda.local.array(V_VEC_SIZE, float32)
            load_logits(logits_vec, logits, token_idx - start_token_idx)

            v_ptr = physical_block_number * kv_block_stride + kv_head_idx * kv_head_stride
            # One row a turn: lanes with the same row have different tokens of it.
            for i in range(NUM_ROWS_PER_THREAD):
                row_idx = lane // NUM_V_VECS_PER_ROW + i * NUM_ROWS_PER_ITER
                if row_idx < HEAD_SIZE:
                    v_vec = cuda.local.array(V_VEC_SIZE, float32)
                    load_v(v_vec, v_cache, v_ptr + row_idx * BLOCK_SIZE + physical_block_offset)
                    if IS_QUANTIZED:
                        for j in range(V_VEC_SIZE):
                            v_vec[j] *= scale_of_v
                    # Only the last block has slots without a token. They may hold NaN, and
                    # 0 * NaN is NaN: a weight of 0 does not remove them.
                    if block_idx == num_seq_blocks - 1:
                        for j in range(V_VEC_SIZE):
                            if token_idx + j >= seq_len:
                                v_vec[j] = float32(0)
                    # accs[i] += logits_vec . v_vec
                    dot = float32(0)
                    for j in range(V_VEC_SIZE):
                        dot += logits_vec[j] * v_vec[j]
                    accs[i] += dot

        # The sum over the lanes that share a row.
        for i in range(NUM_ROWS_PER_THREAD):
            acc = accs[i]
            mask = NUM_V_VECS_PER_ROW // 2
            while mask >= 1:
                acc += cuda.shfl_xor_sync(ALL_LANES, acc, mask)
                mask //= 2
            accs[i] = acc
        # mark: rows

        # The memory of logits is used again below: all threads must have read them.
        cuda.syncthreads()

        # The sum over the warps, as a tree: the upper half leaves its rows in shared memory, the
        # lower half adds them; then the same with half as many warps.
        out_smem = shared_mem
        i = NUM_WARPS
        while i > 1:
            mid = i // 2
            if warp_idx >= mid and warp_idx < i:
                dst = (warp_idx - mid) * HEAD_SIZE
                for j in range(NUM_ROWS_PER_THREAD):
                    row_idx = lane // NUM_V_VECS_PER_ROW + j * NUM_ROWS_PER_ITER
                    if row_idx < HEAD_SIZE and lane % NUM_V_VECS_PER_ROW == 0:
                        out_smem[dst + row_idx] = accs[j]
            cuda.syncthreads()
            if warp_idx < mid:
                src = warp_idx * HEAD_SIZE
                for j in range(NUM_ROWS_PER_THREAD):
                    row_idx = lane // NUM_V_VECS_PER_ROW + j * NUM_ROWS_PER_ITER
                    if row_idx < HEAD_SIZE and lane % NUM_V_VECS_PER_ROW == 0:
                        accs[j] += out_smem[src + row_idx]
            cuda.syncthreads()
            i //= 2

        # Warp 0 has the whole sum: of each row, the first of the lanes that share it writes.
        if warp_idx == 0:
            out_ptr = (
                int64(seq_idx) * num_heads * max_num_partitions * HEAD_SIZE
                + head_idx * max_num_partitions * HEAD_SIZE
                + partition_idx * HEAD_SIZE
            )
            for i in range(NUM_ROWS_PER_THREAD):
                row_idx = lane // NUM_V_VECS_PER_ROW + i * NUM_ROWS_PER_ITER
                if row_idx < HEAD_SIZE and lane % NUM_V_VECS_PER_ROW == 0:
                    out[out_ptr + row_idx] = from_float(accs[i])

    return paged_attention_kernel
