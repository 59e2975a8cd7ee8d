"""Shuffles, votes and barriers of a warp, whole or in part; votes of a block; atomics."""

import numba
import numpy as np
from numba import cuda

from tests.simt_kernels.example import example, from_text, one_and_result

ALL = 0xFFFFFFFF
LOWER_HALF = 0x0000FFFF
UPPER_HALF = 0xFFFF0000


def whole(rng, n, dtype=np.int32):
    return rng.integers(-99, 100, n).astype(dtype)


def whole_and_result(n, *result, dtype=np.int32):
    return lambda rng: (whole(rng, n, dtype), np.zeros(result or n, dtype))


def groups(a, width):
    return a.reshape(-1, width)


def sums_of_all_widths(a, out):
    rows = [np.repeat(groups(a, width).sum(1), width) for width in (2, 4, 8, 16, 32)]
    return {1: np.stack(rows).astype(a.dtype)}


for dtype in (np.int32, np.int64, np.float32, np.float64):
    example(2, 64, whole_and_result(128, 5, 128, dtype=dtype), sums_of_all_widths)(
        from_text(
            f"xor_sums_groups_of_2_to_32_{dtype.__name__}",
            "a, out",
            """
            i = cuda.grid(1)
            total = a[i]
            for step in range(5):
                total += cuda.shfl_xor_sync(ALL, total, 1 << step)
                out[step, i] = total
            """,
            globals(),
        )
    )


def sums_of_first_lanes(a, out):
    return {1: np.where(np.arange(64) % 32 < 8, np.repeat(groups(a, 8).sum(1), 8), -a)}


@example(1, 64, whole_and_result(64), sums_of_first_lanes)
@cuda.jit
def shuffle_in_a_branch_of_8_lanes(a, out):
    i = cuda.threadIdx.x
    if cuda.laneid < 8:
        total = a[i]
        for step in range(3):
            total = numba.int32(total + cuda.shfl_xor_sync(0xFF, total, 1 << step))
        out[i] = total
    else:
        out[i] = -a[i]


def of_warps_of_32_and_16(a, out):
    starts = np.array([0, 32, 48, 80])
    sums, negative = np.add.reduceat(a, starts), np.add.reduceat(a < 0, starts, dtype=np.int64)
    return {1: np.stack([sums, negative, np.tile([ALL, LOWER_HALF], 2)], 1)}


@example(
    2, 48, lambda rng: (whole(rng, 96, np.int64), np.zeros((4, 3), np.int64)), of_warps_of_32_and_16
)
@cuda.jit
def last_warp_of_16_lanes(a, out):
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    total = a[i]
    mask = ALL if t < 32 else LOWER_HALF
    negative = cuda.ballot_sync(mask, a[i] < 0)
    active = cuda.activemask()
    distance = 16 if t < 32 else 8
    while distance:
        total += cuda.shfl_xor_sync(mask, total, distance)
        distance //= 2
    if cuda.laneid == 0:
        warp = 2 * cuda.blockIdx.x + t // 32
        out[warp, 0] = total
        out[warp, 1] = cuda.popc(negative)
        out[warp, 2] = active


@example(1, 32, one_and_result(32), lambda a, out: {1: np.repeat([a[:16].sum(), 0], 16)})
@cuda.jit
def full_mask_shuffle_after_the_others_returned(a, out):
    lane = cuda.laneid
    if lane >= 16:
        return
    total = a[lane]
    for exponent in range(4):
        total += cuda.shfl_xor_sync(ALL, total, 1 << exponent)
    out[lane] = total


@example(1, 64, one_and_result(64), lambda a, out: {1: np.where(a > 4, 7, 0)})
@cuda.jit
def shuffle_with_the_mask_of_a_ballot(a, out):
    i = cuda.threadIdx.x
    mask = cuda.ballot_sync(ALL, a[i] > 4)
    if a[i] > 4:
        source = 0
        while mask >> source & 1 == 0:
            source += 1
        out[i] = 7 + source - cuda.shfl_sync(mask, cuda.laneid, source)


# Votes, and barriers of a warp ---------------------------------------------------------------


def each_answer(a, out):
    """Two warps: of -9 to 22 and of 1 to 32. Bit 31 makes the int32 of a ballot negative."""
    rows = a.reshape(2, 32).astype(np.int64)
    lane, yes = np.arange(32), rows > 0
    shuffled = [
        rows[[[0], [1]], groups(np.arange(64) // 8, 32)],
        rows[:, np.where(lane < 3, lane, lane - 3)],
    ]
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
    out[0, i] = cuda.shfl_sync(ALL, a[i], 32 + i // 8)
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
    32,
    whole_and_result(32),
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


@example(1, 32, lambda rng: (np.arange(5, 8), np.zeros(1, np.int64)), lambda a, out: {1: a[2:]})
@cuda.jit
def syncwarps_pass_the_word_from_lane_to_lane(a, out):
    tile = cuda.shared.array(1, numba.int32)
    t = cuda.threadIdx.x
    if t == 2:
        tile[0] = a[t]
    if 1 <= t < 3:
        cuda.syncwarp(0b110)
    if t < 2:
        cuda.syncwarp(0b011)
    if t == 0:
        out[0] = tile[0]


# Votes of a block ----------------------------------------------------------------------------


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


@example(1, 64, one_and_result(64), lambda a, out: {1: np.full(64, a.max())})
@cuda.jit
def loop_until_all_threads_agree(a, out):
    i = cuda.threadIdx.x
    rounds = 0
    while cuda.syncthreads_or(numba.int32(a[i] > rounds)):
        rounds += 1
    out[i] = rounds


# Atomics -------------------------------------------------------------------------------------


@example(
    4,
    32,
    lambda rng: (rng.integers(0, 8, 300), np.zeros(8, np.int32)),
    lambda a, counts: {1: np.bincount(a, minlength=8).astype(np.int32)},
)
@cuda.jit
def histogram_of_each_block_then_of_all(a, counts):
    t = cuda.threadIdx.x
    block = cuda.shared.array(8, numba.int32)
    if t < 8:
        block[t] = 0
    cuda.syncthreads()
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        cuda.atomic.add(block, a[i], 1)
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(counts, t, block[t])


@example(
    2,
    64,
    lambda rng: (whole(rng, 100), np.array([-1000, 1000, 500, -500], np.float32)),
    lambda a, ends: {1: np.array([a.max(), a.min(), 500, -500], np.float32)},
)
@cuda.jit
def atomic_max_and_min(a, ends):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.max(ends, 0, a[i])
        cuda.atomic.min(ends, 1, a[i])
        cuda.atomic.max(ends, 2, a[i])
        cuda.atomic.min(ends, 3, a[i])


@example(
    1,
    64,
    lambda rng: (whole(rng, 64), np.zeros(64, np.int32), np.zeros(1, np.int32)),
    lambda a, positive, count: {1: (a > 0).astype(np.int32), 2: np.array([(a > 0).sum()])},
)
@cuda.jit
def old_value_is_a_slot(a, positive, count):
    t = cuda.threadIdx.x
    chosen = cuda.shared.array(64, numba.int32)
    if a[t] > 0:
        slot = cuda.atomic.add(count, 0, 1)
        chosen[slot] = t
    cuda.syncthreads()
    if t < count[0]:
        positive[chosen[t]] = 1


@example(
    2,
    32,
    lambda rng: (whole(rng, 64) % 3 * 2 + 1, np.ones(1, np.int32)),
    lambda a, product: {1: np.array([a.astype(np.int64).prod()]).astype(np.int32)},
)
@cuda.jit
def swap_until_it_succeeds(a, product):
    assumed = 1
    seen = 0
    while seen != assumed:
        seen = assumed
        assumed = cuda.atomic.cas(product, 0, seen, numba.int32(seen * a[cuda.grid(1)]))
