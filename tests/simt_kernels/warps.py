"""Values that the lanes of a warp hand to each other, in warps that are full and that are not."""

import numba
import numpy as np
from numba import cuda

from simt_kernels.example import example

ALL = 0xFFFFFFFF


def whole(rng, n, dtype=np.int32):
    return rng.integers(-99, 100, n).astype(dtype)


def groups(a, width):
    return a.reshape(-1, width)


def sums_of_all_widths(a, out):
    rows = [np.repeat(groups(a, width).sum(1), width) for width in (2, 4, 8, 16, 32)]
    return {1: np.stack(rows).astype(a.dtype)}


@example(
    2,
    64,
    lambda rng: (whole(rng, 128, np.float32), np.zeros((5, 128), np.float32)),
    sums_of_all_widths,
)
@cuda.jit
def xor_sums_groups_of_2_4_8_16_and_32(a, out):
    i = cuda.grid(1)
    total = a[i]
    for step in range(5):
        total += cuda.shfl_xor_sync(ALL, total, 1 << step)
        out[step, i] = total


@example(
    2,
    32,
    lambda rng: (whole(rng, 64, np.float64) / 4, np.zeros(2)),
    lambda a, out: {1: groups(a, 32).sum(1)},
)
@cuda.jit
def down_sums_a_warp_of_float64(a, out):
    total = a[cuda.grid(1)]
    delta = 16
    while delta > 0:
        total += cuda.shfl_down_sync(ALL, total, delta)
        delta //= 2
    if cuda.laneid == 0:
        out[cuda.blockIdx.x] = total


@example(
    1,
    64,
    lambda rng: (whole(rng, 64, np.int64) << 33, np.zeros(4, np.int64)),
    lambda a, out: {1: groups(a, 16).sum(1)},
)
@cuda.jit
def down_sums_groups_of_16_int64(a, out):
    i = cuda.threadIdx.x
    total = a[i]
    delta = 8
    while delta:
        # Lanes near the end of a group add what is not theirs; nobody reads their sums.
        total += cuda.shfl_down_sync(ALL, total, delta)
        delta >>= 1
    if i % 16 == 0:
        out[i // 16] = total


@example(
    1,
    64,
    lambda rng: (whole(rng, 64), np.zeros(64, np.int32)),
    lambda a, out: {1: groups(a, 32).cumsum(1, a.dtype).ravel()},
)
@cuda.jit
def up_scans_a_warp(a, out):
    i = cuda.grid(1)
    total = numba.int32(a[i])
    for step in range(5):
        before = cuda.shfl_up_sync(ALL, total, 1 << step)
        if cuda.laneid >= 1 << step:
            total = numba.int32(total + before)
    out[i] = total


@example(
    1,
    64,
    lambda rng: (whole(rng, 64), rng.integers(0, 32, 64), np.zeros((3, 64), np.int32)),
    lambda a, lanes, out: {
        2: np.stack(
            [
                np.repeat(a[5::32], 32),
                np.repeat(a[::8], 8),
                np.take_along_axis(groups(a, 32), groups(lanes, 32), 1).ravel(),
            ]
        )
    },
)
@cuda.jit
def broadcast_and_gather(a, lanes, out):
    i = cuda.threadIdx.x
    out[0, i] = cuda.shfl_sync(ALL, a[i], 5)
    out[1, i] = cuda.shfl_sync(ALL, a[i], i % 32 // 8 * 8)
    out[2, i] = cuda.shfl_sync(ALL, a[i], lanes[i])


@example(
    2,
    128,
    lambda rng: (whole(rng, 256, np.float32), np.zeros(2, np.float32)),
    lambda a, out: {1: groups(a, 128).sum(1)},
)
@cuda.jit
def block_sum_through_warps_and_shared_memory(a, out):
    warp = cuda.threadIdx.x // 32
    lane = cuda.threadIdx.x % 32
    sums = cuda.shared.array(4, numba.float32)
    total = a[cuda.grid(1)]
    for step in range(5):
        total += cuda.shfl_xor_sync(ALL, total, 16 >> step)
    if lane == 0:
        sums[warp] = total
    cuda.syncthreads()
    total = sums[lane % 4]
    total += cuda.shfl_xor_sync(ALL, total, 2)
    total += cuda.shfl_xor_sync(ALL, total, 1)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total


@example(
    1,
    64,
    lambda rng: (whole(rng, 64), np.zeros(64, np.int32)),
    lambda a, out: {
        1: np.where(np.arange(64) % 32 < 8, np.repeat(groups(a, 8).sum(1), 8), -a).astype(np.int32)
    },
)
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


@example(
    1,
    96,
    lambda rng: (whole(rng, 96), np.zeros(96, np.int32)),
    lambda a, out: {1: np.concatenate([a[:32], np.roll(a[32:64], 16), a[64:]]).astype(np.int32)},
)
@cuda.jit
def shuffle_of_one_warp_only(a, out):
    i = cuda.threadIdx.x
    value = a[i]
    if i // 32 == 1:
        value = cuda.shfl_xor_sync(ALL, value, 16)
    out[i] = value


@example(
    2,
    48,
    lambda rng: (whole(rng, 96, np.float32), np.zeros(4, np.float32)),
    lambda a, out: {1: np.add.reduceat(a, [0, 32, 48, 80])},
)
@cuda.jit
def last_warp_of_16_lanes(a, out):
    t = cuda.threadIdx.x
    total = a[cuda.grid(1)]
    mask = ALL if t < 32 else 0xFFFF
    distance = 16 if t < 32 else 8
    while distance:
        total += cuda.shfl_xor_sync(mask, total, distance)
        distance //= 2
    if cuda.laneid == 0:
        out[2 * cuda.blockIdx.x + t // 32] = total
