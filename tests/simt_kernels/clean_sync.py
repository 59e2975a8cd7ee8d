"""Kernels that look like the faulty ones, but are right: barriers, shuffles and votes."""

import numpy as np
from numba import cuda, int32

from .example import example

FULL = 0xFFFFFFFF
LOWER_HALF = 0x0000FFFF


def source_and_result(source_shape, result_shape=None):
    """Small random integers to read, and zeros to write to (of the same shape if not given)."""

    def draw(rng):
        source = rng.integers(0, 10, source_shape).astype(np.int32)
        return source, np.zeros(result_shape or source_shape, np.int32)

    return draw


def reversed_in_blocks(a, out):
    """Each run of 64 numbers from back to front."""
    return {1: a.reshape(-1, 64)[:, ::-1].reshape(a.shape)}


@example(3, 64, source_and_result(192), reversed_in_blocks)
@cuda.jit
def barrier_in_a_branch_of_the_whole_block(a, out):
    tile = cuda.shared.array(64, int32)
    i = cuda.threadIdx.x
    tile[i] = a[cuda.grid(1)]
    if cuda.blockIdx.x % 2 == 0:
        cuda.syncthreads()
    else:
        cuda.syncthreads()
    out[cuda.grid(1)] = tile[63 - i]


@example(3, 64, source_and_result(128), reversed_in_blocks)
@cuda.jit
def early_return_of_a_whole_block(a, out):
    tile = cuda.shared.array(64, int32)
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 2:
        return
    tile[i] = a[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = tile[63 - i]


@example(1, 64, source_and_result(50), lambda a, out: {1: a[::-1] + a.sum()})
@cuda.jit
def early_return_after_the_last_barrier(a, out):
    total = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 63:
        total[0] = 0
    cuda.syncthreads()
    if i < 50:
        cuda.atomic.add(total, 0, a[i])
    cuda.syncthreads()
    if i >= 50:
        return
    out[i] = a[49 - i] + total[0]


@example(2, 32, source_and_result(2), lambda a, out: {1: np.array([62, 31])})
@cuda.jit
def barrier_in_a_loop_of_each_blocks_own_length(a, out):
    tile = cuda.shared.array(32, int32)
    for _ in range(2 - cuda.blockIdx.x):
        tile[cuda.threadIdx.x] = cuda.threadIdx.x
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            out[cuda.blockIdx.x] += tile[31]
        cuda.syncthreads()


@cuda.jit(device=True)
def read_after_barrier(tile, i):
    cuda.syncthreads()
    return tile[i]


@example(1, 64, source_and_result(64), reversed_in_blocks)
@cuda.jit
def device_function_with_a_barrier_called_by_all(a, out):
    tile = cuda.shared.array(64, int32)
    i = cuda.threadIdx.x
    tile[i] = a[i]
    mirrored = read_after_barrier(tile, 63 - i)
    if i < 64:
        out[i] = mirrored


@example(1, 64, source_and_result(64), lambda a, out: {1: np.full(64, a.max())})
@cuda.jit
def loop_until_all_threads_agree(a, out):
    i = cuda.threadIdx.x
    rounds = 0
    while cuda.syncthreads_or(int32(a[i] > rounds)):
        rounds += 1
    out[i] = rounds


@example(
    1,
    64,
    source_and_result(64),
    lambda a, out: {1: np.full(64, 4 * (a > 4).sum() + 2 * (a >= 0).all() + (a > 8).any())},
)
@cuda.jit
def votes_of_the_whole_block(a, out):
    i = cuda.threadIdx.x
    count = cuda.syncthreads_count(int32(a[i] > 4))
    everyone = cuda.syncthreads_and(int32(a[i] >= 0))
    anyone = cuda.syncthreads_or(int32(a[i] > 8))
    out[i] = 4 * count + (2 if everyone else 0) + (1 if anyone else 0)


def half_sums(a, out):
    halves = a.reshape(2, 16).sum(1)
    return {1: np.repeat([halves[0], 0], 16)}


@example(1, 32, source_and_result(32), half_sums)
@cuda.jit
def shuffle_in_a_branch_with_its_own_mask(a, out):
    lane = cuda.laneid
    if lane < 16:
        total = a[lane]
        for exponent in range(4):
            total += cuda.shfl_xor_sync(LOWER_HALF, total, 1 << exponent)
        out[lane] = total


@example(1, 32, source_and_result(32), half_sums)
@cuda.jit
def full_mask_shuffle_after_the_others_returned(a, out):
    lane = cuda.laneid
    if lane >= 16:
        return
    total = a[lane]
    for exponent in range(4):
        total += cuda.shfl_xor_sync(FULL, total, 1 << exponent)
    out[lane] = total


@example(1, 32, source_and_result(32), lambda a, out: {1: a + np.append(a[8:], a[24:])})
@cuda.jit
def shuffle_down_past_the_last_lane(a, out):
    lane = cuda.laneid
    # A lane whose source would lie past lane 31 gets its own number back.
    out[lane] = a[lane] + cuda.shfl_down_sync(FULL, a[lane], 8)


@example(1, 64, source_and_result(64), lambda a, out: {1: np.where(a > 4, 7, 0)})
@cuda.jit
def shuffle_with_the_mask_of_a_ballot(a, out):
    i = cuda.threadIdx.x
    mask = cuda.ballot_sync(FULL, a[i] > 4)
    if a[i] > 4:
        source = 0
        while mask >> source & 1 == 0:
            source += 1
        out[i] = 7 + source - cuda.shfl_sync(mask, cuda.laneid, source)


@example(1, 32, source_and_result(32), lambda a, out: {1: np.where(a > 4, 1, 0)})
@cuda.jit
def short_circuit_behind_the_vote(a, out):
    i = cuda.threadIdx.x
    if cuda.any_sync(FULL, a[i] < 5) and a[i] > 4:
        out[i] = 1


@example(1, 32, lambda rng: (np.arange(5, 8), np.zeros(1, np.int64)), lambda a, out: {1: a[2:]})
@cuda.jit
def syncwarps_pass_the_word_from_lane_to_lane(a, out):
    tile = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 2:
        tile[0] = a[t]
    if 1 <= t < 3:
        cuda.syncwarp(0b110)
    if t < 2:
        cuda.syncwarp(0b011)
    if t == 0:
        out[0] = tile[0]
