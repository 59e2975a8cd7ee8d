"""Kernels that look like the faulty ones, but are right: memory, initialisation and races."""

import numpy as np
from numba import cuda, float32, int32

from .example import example

FULL = 0xFFFFFFFF
LOWER_HALF = 0x0000FFFF
UPPER_HALF = 0xFFFF0000


def source_and_result(source_shape, result_shape=None):
    """Small random integers to read, and zeros to write to (of the same shape if not given)."""

    def draw(rng):
        source = rng.integers(0, 10, source_shape).astype(np.int32)
        return source, np.zeros(result_shape or source_shape, np.int32)

    return draw


# Near faults of the memory check


@example(2, 64, source_and_result(100), lambda a, out: {1: a + np.append(a[1:], 0)})
@cuda.jit
def guards_that_stop_in_time(a, out):
    i = cuda.grid(1)
    if i < a.shape[0]:
        out[i] = a[i]
        if i + 1 < a.shape[0] and a[i + 1] > 0:
            out[i] += a[i + 1]


@example(1, (8, 4), source_and_result((4, 8)), lambda a, out: {1: a[::-1]})
@cuda.jit
def row_views_read_to_the_last_element(a, out):
    row = a[a.shape[0] - 1 - cuda.threadIdx.y]
    result = out[cuda.threadIdx.y]
    first_half, second_half = row[:4], row[4:8]
    if cuda.threadIdx.x < 4:
        result[cuda.threadIdx.x] = first_half[cuda.threadIdx.x]
    else:
        result[cuda.threadIdx.x] = second_half[cuda.threadIdx.x - 4]


# Near faults of the init check


@example(1, 32, source_and_result((32, 4)), lambda a, out: {1: np.cumsum(a, axis=1)})
@cuda.jit
def local_array_zeroed_in_a_loop(a, out):
    sums = cuda.local.array(4, int32)
    i = cuda.threadIdx.x
    for j in range(4):
        sums[j] = 0
    for j in range(4):
        for k in range(j, 4):
            sums[k] += a[i, j]
        out[i, j] = sums[j]


@example(1, 32, source_and_result(32), lambda a, out: {1: np.where(a > 4, a, 9 - a)})
@cuda.jit
def variable_set_in_both_branches(a, out):
    i = cuda.threadIdx.x
    if a[i] > 4:
        start, factor = 0, 1
    else:
        start, factor = 9, -1
    out[i] = start + factor * a[i]


@example(1, 64, source_and_result(50, 1), lambda a, out: {1: np.array([a.sum()])})
@cuda.jit
def only_what_was_written_is_read(a, out):
    tile = cuda.shared.array(64, int32)
    i = cuda.threadIdx.x
    if i < a.shape[0]:
        tile[i] = a[i]
    cuda.syncthreads()
    if i == 0:
        for j in range(a.shape[0]):
            out[0] += tile[j]


# Near faults of the race check


@example(1, 64, source_and_result((3, 64), 64), lambda a, out: {1: a.sum(0)[::-1]})
@cuda.jit
def tile_reused_after_a_second_barrier(a, out):
    tile = cuda.shared.array(64, int32)
    i = cuda.threadIdx.x
    for step in range(3):
        tile[i] = a[step, i]
        cuda.syncthreads()
        out[i] += tile[63 - i]
        cuda.syncthreads()


@example(2, 64, source_and_result(128, 2), lambda a, out: {1: a.reshape(2, 64).sum(1)})
@cuda.jit
def tree_reduction(a, out):
    partial = cuda.shared.array(64, int32)
    i = cuda.threadIdx.x
    partial[i] = a[cuda.grid(1)]
    stride = 32
    while stride > 0:
        cuda.syncthreads()
        if i < stride:
            partial[i] += partial[i + stride]
        stride //= 2
    if i == 0:
        out[cuda.blockIdx.x] = partial[0]


@example(1, 64, source_and_result(64), lambda a, out: {1: np.cumsum(a)})
@cuda.jit
def double_buffer(a, out):
    sums = cuda.shared.array((2, 64), int32)
    i = cuda.threadIdx.x
    sums[0, i] = a[i]
    cuda.syncthreads()
    for step in range(6):
        old, new = sums[step % 2], sums[1 - step % 2]
        new[i] = old[i] + old[i - (1 << step)] if i >= 1 << step else old[i]
        cuda.syncthreads()
    out[i] = sums[0, i]


@example(1, 64, lambda rng: (rng.integers(0, 10, 65),), lambda a: {0: np.append(a[1:], a[64])})
@cuda.jit
def shift_in_place_with_a_barrier(a):
    i = cuda.threadIdx.x
    right = a[i + 1]
    cuda.syncthreads()
    a[i] = right


@example(1, 64, source_and_result(64), lambda a, out: {1: a + a[0] + a.max()})
@cuda.jit
def one_thread_writes_and_all_read(a, out):
    largest = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0:
        largest[0] = a[0]
        for j in range(1, 64):
            largest[0] = max(largest[0], a[j])
    cuda.syncthreads()
    out[i] = a[i] + a[0] + largest[0]


@example(1, 128, source_and_result(128), lambda a, out: {1: np.full(128, a.sum())})
@cuda.jit
def first_lane_of_each_warp_writes_its_slot(a, out):
    red_smem = cuda.shared.array(4, int32)
    i = cuda.threadIdx.x
    total = a[i]
    lane_mask = 16
    while lane_mask > 0:
        total += cuda.shfl_xor_sync(FULL, total, lane_mask)
        lane_mask //= 2
    if cuda.laneid == 0:
        red_smem[i // 32] = total
    cuda.syncthreads()
    out[i] = red_smem[0] + red_smem[1] + red_smem[2] + red_smem[3]


@example(1, 64, source_and_result(64), lambda a, out: {1: a.reshape(-1, 2)[:, ::-1].reshape(64)})
@cuda.jit
def neighbour_lanes_after_syncwarp(a, out):
    pairs = cuda.shared.array(64, int32)
    i = cuda.threadIdx.x
    pairs[i] = a[i]
    cuda.syncwarp()
    out[i] = pairs[i ^ 1]


@example(1, 32, source_and_result(32), lambda a, out: {1: a.reshape(2, 16)[:, ::-1].reshape(32)})
@cuda.jit
def half_warps_talk_only_within_their_half(a, out):
    tile = cuda.shared.array(32, int32)
    lane = cuda.laneid
    tile[lane] = a[lane]
    if lane < 16:
        cuda.syncwarp(LOWER_HALF)
        out[lane] = tile[15 - lane]
    else:
        cuda.syncwarp(UPPER_HALF)
        out[lane] = tile[47 - lane]


@example(1, 64, source_and_result(64), lambda a, out: {1: 2 * a[::-1]}, shared_bytes=64 * 4)
@cuda.jit
def dynamic_shared_used_twice_with_a_barrier(a, out):
    logits = cuda.shared.array(0, float32)
    tokens = cuda.shared.array(0, int32)
    i = cuda.threadIdx.x
    logits[i] = a[i]
    cuda.syncthreads()
    mirrored = int(logits[63 - i])
    cuda.syncthreads()
    tokens[i] = a[i]
    cuda.syncthreads()
    out[i] = mirrored + tokens[63 - i]


@example(1, 32, source_and_result(32), lambda a, out: {1: a[::-1] + 31}, shared_bytes=32 * 8)
@cuda.jit
def dynamic_shared_split_by_an_offset(a, out):
    logits = cuda.shared.array(0, float32)[:32]
    tokens = cuda.shared.array(0, int32)[32:]
    i = cuda.threadIdx.x
    logits[i] = a[i]
    tokens[i] = i
    cuda.syncthreads()
    out[i] = int(logits[31 - i]) + tokens[31 - i] + i


@example(
    2,
    64,
    lambda rng: (rng.integers(0, 8, 128).astype(np.int32), np.zeros(8, np.int32), np.zeros(1, int)),
    lambda values, bins, total: {1: np.bincount(values, minlength=8), 2: np.array([values.max()])},
)
@cuda.jit
def histogram_with_atomics(values, bins, largest):
    counts = cuda.shared.array(8, int32)
    i = cuda.threadIdx.x
    if i < 8:
        counts[i] = 0
    cuda.syncthreads()
    cuda.atomic.add(counts, values[cuda.grid(1)], 1)
    cuda.atomic.max(largest, 0, values[cuda.grid(1)])
    cuda.syncthreads()
    if i < 8:
        cuda.atomic.add(bins, i, counts[i])


@example(
    1,
    64,
    lambda rng: (np.full(1, -1, np.int32), np.zeros(1, np.int32)),
    lambda owner, winners: {1: np.array([1])},
)
@cuda.jit
def compare_and_swap_has_one_winner(owner, winners):
    if cuda.atomic.cas(owner, 0, -1, cuda.threadIdx.x) == -1:
        winners[0] += 1


@example(3, 32, source_and_result(96), lambda a, out: {1: a.reshape(3, 32).T.reshape(96)})
@cuda.jit
def blocks_write_interleaved_elements(a, out):
    out[cuda.threadIdx.x * cuda.gridDim.x + cuda.blockIdx.x] = a[cuda.grid(1)]


@example(2, 32, lambda rng: (np.zeros(64, np.int8),), lambda out: {0: np.arange(64) * 2})
@cuda.jit
def neighbouring_bytes_written_twice_by_their_owner(out):
    i = cuda.grid(1)
    out[i] = i
    out[i] += i


def overlapping_views(rng):
    whole = rng.integers(0, 10, 96)
    return whole[:64], whole[32:]


@example(1, 32, overlapping_views, lambda low, high: {1: np.append(high[:32], low[:32])})
@cuda.jit
def overlapping_views_touched_apart(low, high):
    # high[32 + i] is the 64 + i th number of the whole, and nobody else's.
    i = cuda.threadIdx.x
    high[32 + i] = low[i]
