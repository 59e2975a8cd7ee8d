"""v2's second kernel: the partitions of a sequence become one output.

Source: vLLM, csrc/attention/attention_kernels.cuh, paged_attention_v2_reduce_kernel.
"""

import math
from collections.abc import Callable

from numba import cuda, float32, int32, int64, uint32

from pa_tutorial.kernels.dtypes import SCALAR_TYPES
from pa_tutorial.kernels.geometry import FLT_MAX, Geometry, made_once
from pa_tutorial.kernels.warp import ALL_LANES, make_block_sum
from simt.gpus import WARP_SIZE


@made_once
def reduce(geometry: Geometry) -> Callable:
    """The reduce kernel for one geometry, made once.

    grid (num_heads, num_seqs), NUM_THREADS threads, shared memory for two float32 per partition

    geometry  of the kernel that made the partitions; PARTITION_SIZE > 0

    Raises ValueError for a geometry without partitions.
    """
    if geometry.PARTITION_SIZE == 0:
        raise ValueError("geometry.partition_size is 0; it must be more: v1 has nothing to reduce")
    HEAD_SIZE, NUM_THREADS = geometry.HEAD_SIZE, geometry.NUM_THREADS
    PARTITION_SIZE, NUM_WARPS = geometry.PARTITION_SIZE, geometry.NUM_WARPS
    RED_SMEM_SIZE = 2 * NUM_WARPS
    _, to_float, from_float = SCALAR_TYPES[geometry.dtype]
    block_sum = make_block_sum(geometry)

    @cuda.jit(fastmath=True)
    def paged_attention_reduce_kernel(
        out,  # [num_seqs, num_heads, HEAD_SIZE]
        exp_sums,  # [num_seqs, num_heads, max_num_partitions]
        max_logits,  # the same
        tmp_out,  # [num_seqs, num_heads, max_num_partitions, HEAD_SIZE]
        seq_lens,  # [num_seqs]
        max_num_partitions,
    ):
        """out, exp_sums, max_logits and tmp_out are flat."""
        num_heads = cuda.gridDim.x
        head_idx, seq_idx = cuda.blockIdx.x, cuda.blockIdx.y
        thread_idx = uint32(cuda.threadIdx.x)
        warp_idx = int32(thread_idx // WARP_SIZE)
        lane = int32(thread_idx % WARP_SIZE)
        seq_len = seq_lens[seq_idx]
        num_partitions = (seq_len + PARTITION_SIZE - 1) // PARTITION_SIZE
        row = int64(seq_idx) * num_heads + head_idx
        out_ptr = row * HEAD_SIZE
        partitions_ptr = row * max_num_partitions
        tmp_out_ptr = partitions_ptr * HEAD_SIZE

        # One partition is the whole sequence: its output is the output.
        if num_partitions == 1:
            for i in range(thread_idx, HEAD_SIZE, NUM_THREADS):
                out[out_ptr + i] = tmp_out[tmp_out_ptr + i]
            return  # all threads of the block: none is left to wait at a barrier

        # Two numbers a partition: its maximum, then its sum below the common maximum.
        shared_max_logits = cuda.shared.array(0, float32)
        shared_exp_sums = shared_max_logits[num_partitions:]
        red_smem = cuda.shared.array(RED_SMEM_SIZE, float32)

        # M = the largest maximum of all partitions
        max_logit = float32(-FLT_MAX)
        for i in range(thread_idx, num_partitions, NUM_THREADS):
            value = max_logits[partitions_ptr + i]
            shared_max_logits[i] = value
            max_logit = max(max_logit, value)
        mask = WARP_SIZE // 2
        while mask >= 1:
            max_logit = max(max_logit, cuda.shfl_xor_sync(ALL_LANES, max_logit, mask))
            mask //= 2
        if lane == 0:
            red_smem[warp_idx] = max_logit
        cuda.syncthreads()
        max_logit = red_smem[lane] if lane < NUM_WARPS else float32(-FLT_MAX)
        mask = NUM_WARPS // 2
        while mask >= 1:
            max_logit = max(max_logit, cuda.shfl_xor_sync(ALL_LANES, max_logit, mask))
            mask //= 2
        max_logit = cuda.shfl_sync(ALL_LANES, max_logit, 0)

        # r_j = exp_sum_j * exp(m_j - M): the partition's sum, as if its maximum had been M
        global_exp_sum = float32(0)
        for i in range(thread_idx, num_partitions, NUM_THREADS):
            rescaled = exp_sums[partitions_ptr + i] * math.exp(shared_max_logits[i] - max_logit)
            shared_exp_sums[i] = rescaled
            global_exp_sum += rescaled
        # The barrier in block_sum also shows every thread what the others left in shared memory.
        global_exp_sum = block_sum(red_smem[NUM_WARPS:], global_exp_sum)
        # mark: rescaled

        inv_sum = float32(1) / (global_exp_sum + float32(1e-6))

        # out = sum of tmp_out_j * r_j / sum of r; each tmp_out_j is divided by its own sum already.
        for i in range(thread_idx, HEAD_SIZE, NUM_THREADS):
            acc = float32(0)
            for j in range(num_partitions):
                weight = shared_exp_sums[j] * inv_sum
                acc += to_float(tmp_out[tmp_out_ptr + j * HEAD_SIZE + i]) * weight
            out[out_ptr + i] = from_float(acc)

    return paged_attention_reduce_kernel
