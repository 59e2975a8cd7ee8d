"""Functions in which threads work together: qk_dot within a thread group, block_sum in a block.

Source: vLLM, csrc/attention/attention_utils.cuh (qk_dot_) and attention_kernels.cuh (block_sum).
"""

from collections.abc import Callable

from numba import cuda, float32, int32, uint32

from pa_tutorial.kernels.geometry import Geometry
from simt.gpus import ALL_LANES, WARP_SIZE


def make_qk_dot(geometry: Geometry, load_q_vec: Callable) -> Callable:
    """qk_dot(q_vecs, k_vecs): the product of q and one key, in every thread of the group.

    q_vecs      [NUM_VECS_PER_THREAD, VEC_SIZE]  shared memory, in the dtype of q
    k_vecs      [NUM_VECS_PER_THREAD, VEC_SIZE]  this thread's registers, float32
    load_q_vec  how one vec of q_vecs is read; see Loads

    All 32 lanes of a warp must call it together.
    """
    NUM_VECS_PER_THREAD, VEC_SIZE = geometry.NUM_VECS_PER_THREAD, geometry.VEC_SIZE
    THREAD_GROUP_SIZE = geometry.THREAD_GROUP_SIZE

    @cuda.jit(device=True, fastmath=True)
    def qk_dot(q_vecs, k_vecs):
        # The thread's part of the product. (The original keeps VEC_SIZE sums side by side and
        # adds them up in the end.)
        qk = float32(0)
        for ii in range(NUM_VECS_PER_THREAD):
            q_vec = cuda.local.array(VEC_SIZE, float32)
            load_q_vec(q_vec, q_vecs, ii)
            for e in range(VEC_SIZE):
                qk += q_vec[e] * k_vecs[ii, e]
        # The sum over the threads of the group; every one of them gets it.
        mask = THREAD_GROUP_SIZE // 2
        while mask >= 1:
            qk += cuda.shfl_xor_sync(ALL_LANES, qk, mask)
            mask //= 2
        return qk

    return qk_dot


def make_block_sum(geometry: Geometry) -> Callable:
    """block_sum(red_smem, sum): the sum over all threads of the block, in every thread.

    red_smem  [NUM_WARPS]  shared memory that nothing else uses meanwhile

    All threads must call it together, because it has a barrier.
    """
    NUM_WARPS = geometry.NUM_WARPS

    @cuda.jit(device=True, fastmath=True)
    def block_sum(red_smem, sum):
        thread_idx = uint32(cuda.threadIdx.x)
        warp = int32(thread_idx // WARP_SIZE)
        lane = int32(thread_idx % WARP_SIZE)
        # Each warp sums its 32 values; lane 0 leaves the result in shared memory.
        mask = WARP_SIZE // 2
        while mask >= 1:
            sum += cuda.shfl_xor_sync(ALL_LANES, sum, mask)
            mask //= 2
        if lane == 0:
            red_smem[warp] = sum
        cuda.syncthreads()
        # Every warp sums what the warps have left, in its first NUM_WARPS lanes.
        if lane < NUM_WARPS:
            sum = red_smem[lane]
        mask = NUM_WARPS // 2
        while mask >= 1:
            sum += cuda.shfl_xor_sync(ALL_LANES, sum, mask)
            mask //= 2
        # Only these lanes have it: lane 0 tells the others.
        return cuda.shfl_sync(ALL_LANES, sum, 0)

    return block_sum
