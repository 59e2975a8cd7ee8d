"""Kernels in which a barrier, a shuffle or a vote waits for threads that do not come."""

from functools import partial

import numpy as np
from numba import cuda, float32, int32

from simt_kernels.example import fault, one_and_result

FULL = 0xFFFFFFFF
LOWER_HALF = 0x0000FFFF

source_and_result = partial(one_and_result, dtype=np.float32)


@fault("sync", 1, 64, source_and_result(64))
@cuda.jit
def barrier_for_even_threads_only(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = a[i]
    if i % 2 == 0:
        cuda.syncthreads()  # FAULT
        out[i] = tile[i + 1]


@fault("sync", 1, 64, source_and_result(64))
@cuda.jit
def barrier_for_one_warp_only(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = a[i]
    if i // 32 == 0:
        cuda.syncthreads()  # FAULT
        out[i] = tile[63 - i]


@fault("sync", 1, 64, source_and_result(64))
@cuda.jit
def one_barrier_in_each_branch(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < 32:
        tile[i] = a[i]
        cuda.syncthreads()  # FAULT
    else:
        tile[i] = -a[i]
        cuda.syncthreads()
    out[i] = tile[63 - i]


@fault("sync", 1, 64, source_and_result(50))
@cuda.jit
def barrier_after_an_early_return(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i >= a.shape[0]:
        return
    tile[i] = a[i]
    cuda.syncthreads()  # FAULT
    out[i] = tile[49 - i]


def one_short_sequence(rng):
    lengths = np.full(64, 3, np.int32)
    lengths[40] = 2
    return rng.random((3, 64), dtype=np.float32), lengths, np.zeros(64, np.float32)


@fault("sync", 1, 64, one_short_sequence)
@cuda.jit
def barrier_in_a_loop_of_unequal_length(a, lengths, out):
    tile = cuda.shared.array((3, 64), float32)
    i = cuda.threadIdx.x
    for step in range(lengths[i]):
        tile[step, i] = a[step, i]
        cuda.syncthreads()  # FAULT
        out[i] += tile[step, 63 - i]


@fault("sync", 1, 64, source_and_result(64))
@cuda.jit
def counting_barrier_in_a_branch(a, out):
    i = cuda.threadIdx.x
    if i < 40:
        count = cuda.syncthreads_count(1 if a[i] > 0.5 else 0)  # FAULT
        out[i] = count


@cuda.jit(device=True)
def read_after_barrier(tile, i):
    cuda.syncthreads()  # FAULT
    return tile[i]


@fault("sync", 1, 64, source_and_result(64))
@cuda.jit
def device_function_with_a_barrier_in_a_branch(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = a[i]
    if i < 48:
        out[i] = read_after_barrier(tile, 63 - i)


# In the next four, the lanes that are missing wait at the last barrier.


@fault("sync", 1, 32, source_and_result(32))
@cuda.jit
def full_mask_shuffle_in_a_branch(a, out):
    tile = cuda.shared.array(32, float32)
    lane = cuda.laneid
    tile[lane] = a[lane]
    if lane < 16:
        tile[lane] += cuda.shfl_xor_sync(FULL, a[lane], 8)  # FAULT
    cuda.syncthreads()
    out[lane] = tile[31 - lane]


@fault("sync", 1, 32, source_and_result(32))
@cuda.jit
def full_mask_ballot_in_a_branch(a, out):
    ballots = cuda.shared.array(32, int32)
    lane = cuda.laneid
    ballots[lane] = 0
    if a[lane] > 0.5:
        ballots[lane] = int32(cuda.ballot_sync(FULL, a[lane] > 0.75))  # FAULT
    cuda.syncthreads()
    out[lane] = ballots[31 - lane]


@fault("sync", 1, 32, source_and_result(32))
@cuda.jit
def full_mask_syncwarp_in_a_branch(a, out):
    tile = cuda.shared.array(32, float32)
    lane = cuda.laneid
    tile[lane] = a[lane]
    if lane < 16:
        cuda.syncwarp()  # FAULT
        out[lane] = tile[15 - lane]
    cuda.syncthreads()
    out[lane] += tile[31 - lane]


@fault("sync", 1, 32, source_and_result(32))
@cuda.jit
def vote_behind_a_short_circuit(a, out):
    tile = cuda.shared.array(32, float32)
    lane = cuda.laneid
    tile[lane] = a[lane]
    if lane < 16 and cuda.any_sync(FULL, a[lane] > 0.5):  # FAULT
        tile[lane] = 1
    cuda.syncthreads()
    out[lane] = tile[31 - lane]


@fault("sync", 1, 32, source_and_result(32))
@cuda.jit
def shuffle_mask_without_the_caller(a, out):
    lane = cuda.laneid
    out[lane] = cuda.shfl_xor_sync(LOWER_HALF, a[lane], 1)  # FAULT


@fault("sync", 1, 32, source_and_result(32))
@cuda.jit
def shuffle_from_a_lane_that_has_returned(a, out):
    lane = cuda.laneid
    if lane >= 24:
        return
    out[lane] = a[lane] + cuda.shfl_down_sync(FULL, a[lane], 8)  # FAULT


@fault("sync", 1, 32, lambda rng: (np.arange(32), np.zeros(32, np.int64)))
@cuda.jit
def half_warps_shuffle_across_their_border(a, out):
    t = cuda.threadIdx.x
    mask = 0xFFFF if t < 16 else 0xFFFF0000
    out[t] = cuda.shfl_down_sync(mask, a[t], 1)  # FAULT
