"""Kernels in which nothing says who comes first, or in which not all come who must.

FIRST and FAULT stand in the order in which the lines run when all threads go line by line together.
"""

from functools import partial

import numpy as np
from numba import cuda, float32, float64, int32

from simt_kernels.example import fault, one_and_result

FULL = 0xFFFFFFFF
LOWER_HALF = 0x0000FFFF

source_and_result = partial(one_and_result, dtype=np.float32)

# race: two threads meet at one address -------------------------------------------------------


def counters(count):
    return lambda rng: (np.zeros(count, np.int32),)


@fault("race", 1, 64, source_and_result(64))
@cuda.jit
def missing_barrier_after_the_load(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = a[i]  # FIRST
    out[i] = tile[63 - i]  # FAULT


@fault("race", 1, 64, source_and_result((2, 64), 64))
@cuda.jit
def next_round_overwrites_what_others_still_read(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    total = float32(0)
    for step in range(2):
        tile[i] = a[step, i]  # FAULT
        cuda.syncthreads()
        total += tile[63 - i]  # FIRST
    out[i] = total


@fault("race", 1, 64, counters(1))
@cuda.jit
def all_threads_write_one_address(last):
    last[0] = cuda.threadIdx.x  # FAULT


@fault("race", 1, 32, source_and_result(32))
@cuda.jit
def shuffle_taken_for_a_memory_barrier(a, out):
    pairs = cuda.shared.array(32, float32)
    lane = cuda.laneid
    pairs[lane] = a[lane]  # FIRST
    neighbour = cuda.shfl_xor_sync(FULL, a[lane], 1)
    out[lane] = neighbour - pairs[lane ^ 1]  # FAULT


@fault("race", 1, 32, source_and_result(32))
@cuda.jit
def half_warps_synchronise_apart(a, out):
    tile = cuda.shared.array(32, float32)
    lane = cuda.laneid
    tile[lane] = a[lane]  # FIRST
    if lane < 16:
        cuda.syncwarp(0x0000FFFF)
    else:
        cuda.syncwarp(0xFFFF0000)
    out[lane] = tile[31 - lane]  # FAULT


@fault("race", 1, 32, source_and_result(32), shared_bytes=32 * 8)
@cuda.jit
def two_dynamic_arrays_at_the_same_offset(a, out):
    weights = cuda.shared.array(0, float64)
    tokens = cuda.shared.array(0, int32)
    i = cuda.threadIdx.x
    weights[i] = a[i]  # FIRST
    tokens[i] = i  # FAULT
    cuda.syncthreads()
    out[i] = tokens[i]


@fault("race", 2, 64, source_and_result(128, 64))
@cuda.jit
def blocks_write_the_same_slots(a, out):
    out[cuda.threadIdx.x] = a[cuda.grid(1)]  # FAULT


@fault("race", 3, 32, source_and_result(96, 1))
@cuda.jit
def blocks_add_to_one_sum_without_atomic(a, total):
    if cuda.threadIdx.x == 0:
        total[0] += a[cuda.grid(1)]  # FAULT


@fault("race", 2, 32, lambda rng: (rng.random(65, dtype=np.float32),))
@cuda.jit
def barrier_taken_for_one_of_the_whole_grid(a):
    i = cuda.grid(1)
    right = a[i + 1]  # FIRST
    cuda.syncthreads()
    a[i] = right  # FAULT


@fault("race", 1, 64, lambda rng: (rng.integers(0, 9, 64), np.zeros(1, int), np.zeros(64, int)))
@cuda.jit
def atomic_sum_read_without_barrier(a, total, out):
    i = cuda.threadIdx.x
    cuda.atomic.add(total, 0, a[i])  # FIRST
    out[i] = total[0]  # FAULT


@fault("race", 1, 64, counters(64))
@cuda.jit
def counter_reset_while_others_count(out):
    counter = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0:
        counter[0] = 0  # FIRST
    out[i] = cuda.atomic.add(counter, 0, 1)  # FAULT


@fault("race", 1, 64, lambda rng: (rng.random(65, dtype=np.float32),))
@cuda.jit
def stencil_in_place(a):
    i = cuda.threadIdx.x
    smooth = float32(0.5) * (a[i] + a[i + 1])  # FIRST
    a[i] = smooth  # FAULT


def one_number_each(rng):
    return rng.integers(0, 9, 64).astype(np.int32), np.zeros(128, np.int32)


@fault("race", 1, 64, one_number_each)
@cuda.jit
def syncwarp_taken_for_syncthreads(a, out):
    tile = cuda.shared.array(16, int32)
    t = cuda.threadIdx.x
    if t < 16:
        tile[t] = a[t]
    cuda.syncthreads()
    out[t] = tile[t % 16]  # FIRST
    cuda.syncwarp()
    if 32 <= t < 48:
        tile[t - 32] = a[t]  # FAULT


@fault("race", 2, 64, one_number_each)
@cuda.jit
def read_by_one_block_and_written_by_the_next(a, out):
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        if t == 0:
            out[0] = a[0]  # FIRST
    else:
        out[t + 1] = a[0]
        cuda.syncthreads()
        if t == 0:
            a[0] = 1  # FAULT


# sync: a barrier, a shuffle or a vote waits for threads that do not come ----------------------


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


# In the next three, the lanes that are missing wait at the last barrier.


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
