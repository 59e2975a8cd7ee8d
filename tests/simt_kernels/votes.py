"""Votes and barriers of a warp or of a part of it, the numbers of lanes, votes of a block."""

import numba
import numpy as np
from numba import cuda

from simt_kernels.example import example
from simt_kernels.warps import ALL, groups, whole

LOWER_HALF = 0x0000FFFF
UPPER_HALF = 0xFFFF0000


@example(
    1,
    64,
    lambda rng: (whole(rng, 64), np.zeros(64, np.int32)),
    lambda a, out: {1: (groups(a > 0, 32).cumsum(1) - groups(a > 0, 32)).astype(np.int32).ravel()},
)
@cuda.jit
def rank_by_ballot_and_popc(a, out):
    i = cuda.threadIdx.x
    positive = cuda.ballot_sync(ALL, a[i] > 0)
    out[i] = cuda.popc(positive & ((1 << cuda.laneid) - 1))


def each_answer(a, out):
    """Two warps: of -9 to 22 and of 1 to 32. Bit 31 makes the int32 of a ballot negative."""
    rows = a.reshape(2, 32).astype(np.int64)
    lane, yes = np.arange(32), rows > 0
    shuffled = [rows[:, lane * 0 + 5], rows[:, np.where(lane < 3, lane, lane - 3)]]
    shuffled += [rows[:, np.where(lane > 28, lane, lane + 3)], rows[:, lane ^ 3]]
    bits = (yes << lane).sum(1).astype(np.uint32).view(np.int32)[:, None]
    votes = [rows.all(1), (rows > 31).any(1), yes.all(1) | ~yes.any(1)]
    every = [*shuffled, *(vote[:, None] for vote in votes), bits, np.uint32(ALL), rows[:, ::-1]]
    return {1: np.stack([np.broadcast_to(row, (2, 32)).ravel() for row in every])}


@example(
    1,
    64,
    lambda rng: (
        np.append(np.arange(32) - 9, np.arange(1, 33)).astype(np.int32),
        np.zeros((10, 64), np.int64),
    ),
    each_answer,
)
@cuda.jit
def each_warp_function(a, out):
    """Numbers of lanes over 31: the hardware takes their low 5 bits."""
    i = cuda.threadIdx.x
    warp = cuda.shared.array(64, numba.int32)
    out[0, i] = cuda.shfl_sync(ALL, a[i], 32 + 5)
    out[1, i] = cuda.shfl_up_sync(ALL, a[i], 32 + 3)
    out[2, i] = cuda.shfl_down_sync(ALL, a[i], 32 + 3)
    out[3, i] = cuda.shfl_xor_sync(ALL, a[i], 32 + 3)
    out[4, i] = cuda.all_sync(ALL, a[i])
    out[5, i] = cuda.any_sync(ALL, a[i] > 31)
    out[6, i] = cuda.eq_sync(ALL, a[i] > 0)
    out[7, i] = cuda.ballot_sync(ALL, a[i] > 0)
    out[8, i] = cuda.activemask()
    warp[i] = a[i]
    cuda.syncwarp()
    out[9, i] = warp[i ^ 31]


@example(
    1,
    (16, 4),
    lambda rng: (np.zeros((4, 16), np.int32),),
    lambda out: {0: np.arange(64, dtype=np.int32).reshape(4, 16) % 32 + 3200},
)
@cuda.jit
def lanes_of_a_block_of_two_dimensions(out):
    out[cuda.threadIdx.y, cuda.threadIdx.x] = cuda.laneid + 100 * cuda.warpsize


@example(
    1,
    64,
    lambda rng: (whole(rng, 64), np.zeros(64, np.int32)),
    lambda a, out: {1: groups(a, 32)[:, ::-1].ravel()},
)
@cuda.jit
def syncwarp_orders_a_warp(a, out):
    i = cuda.threadIdx.x
    block = cuda.shared.array(64, numba.int32)
    block[i] = a[i]
    cuda.syncwarp()
    out[i] = block[i ^ 31]


@example(
    1,
    32,
    lambda rng: (whole(rng, 32), np.zeros(32, np.int32)),
    lambda a, out: {1: np.append(a[:16][::-1], 2 * np.roll(a[16:], -1))},
)
@cuda.jit
def syncwarp_orders_half_a_warp(a, out):
    i = cuda.threadIdx.x
    block = cuda.shared.array(32, numba.int32)
    block[i] = a[i]
    if i < 16:
        cuda.syncwarp(LOWER_HALF)
        out[i] = block[15 - i]
    else:
        cuda.syncwarp(UPPER_HALF)
        out[i] = 2 * block[16 + (i + 1) % 16]


@example(
    1,
    100,
    lambda rng: (whole(rng, 100), np.zeros(4, np.int64)),
    lambda a, out: {1: np.add.reduceat(a < 0, [0, 32, 64, 96], dtype=np.int64)},
)
@cuda.jit
def last_warp_of_4_lanes(a, out):
    t = cuda.threadIdx.x
    mask = ALL if t < 96 else 0xF
    negative = cuda.ballot_sync(mask, a[t] < 0)
    if t % 32 == 0:
        out[t // 32] = cuda.popc(negative & mask)


@example(
    1,
    48,
    lambda rng: (np.zeros(48, np.uint32),),
    lambda out: {0: np.repeat([0xFFFFFFFF, 0xFFFF], [32, 16]).astype(np.uint32)},
)
@cuda.jit
def active_lanes_before_any_branch(out):
    out[cuda.threadIdx.x] = cuda.activemask()


def block_votes(a, out):
    positive = groups(a, 48) > 0
    votes = [positive.sum(1), positive.all(1), positive.any(1), ~positive.any(1)]
    return {1: np.repeat(np.array(votes), 48, axis=1).astype(np.int32)}


@example(
    3,
    48,
    lambda rng: (np.repeat([1, 0, -1], 48) * (np.arange(144) != 7), np.zeros((4, 144), np.int32)),
    block_votes,
)
@cuda.jit
def syncthreads_count_and_or(a, out):
    i = cuda.grid(1)
    positive = int(a[i] > 0)
    out[0, i] = cuda.syncthreads_count(positive)
    out[1, i] = 1 if cuda.syncthreads_and(positive) else 0
    out[2, i] = 1 if cuda.syncthreads_or(positive) else 0
    out[3, i] = 1 if cuda.syncthreads_and(1 - positive) else 0


def positives(a):
    return (groups(a, 64) > 0).sum(1, np.int32)


@example(
    2,
    64,
    lambda rng: (whole(rng, 128), np.zeros(128, np.int32)),
    lambda a, out: {1: groups(a, 64)[:, ::-1].ravel() * np.repeat(positives(a), 64)},
)
@cuda.jit
def syncthreads_count_is_a_barrier(a, out):
    t = cuda.threadIdx.x
    block = cuda.shared.array(64, numba.int32)
    block[t] = a[cuda.grid(1)]
    positive = cuda.syncthreads_count(1 if block[t] > 0 else 0)
    out[cuda.grid(1)] = positive * block[63 - t]
