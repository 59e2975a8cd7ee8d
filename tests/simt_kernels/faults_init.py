"""Kernels that read what nobody has written."""

import math

import numpy as np
from numba import cuda, float32, int32, int64

from .example import fault


def source_and_result(source_shape, result_shape=None):
    """Random float32 numbers to read, and zeros to write to (of the same shape if not given)."""

    def draw(rng):
        source = rng.random(source_shape, dtype=np.float32)
        return source, np.zeros(result_shape or source_shape, np.float32)

    return draw


@fault("init", 1, 32, source_and_result((32, 4)))
@cuda.jit
def accumulator_never_zeroed(a, out):
    sums = cuda.local.array(4, float32)
    i = cuda.threadIdx.x
    for j in range(4):
        sums[j] += a[i, j]  # FAULT
        out[i, j] = sums[j]


@fault("init", 1, 32, source_and_result((32, 4)))
@cuda.jit
def zeroing_loop_starts_at_one(a, out):
    sums = cuda.local.array(4, float32)
    i = cuda.threadIdx.x
    for j in range(1, 4):
        sums[j] = 0
    for j in range(4):
        out[i, j] = a[i, j] + sums[j]  # FAULT


@fault("init", 1, 64, source_and_result(64))
@cuda.jit
def shared_read_before_written(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    out[i] = tile[i]  # FAULT
    tile[i] = a[i]


@fault("init", 1, 64, source_and_result(64))
@cuda.jit
def only_one_warp_fills_the_tile(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < 32:
        tile[i] = a[i]
    cuda.syncthreads()
    out[i] = tile[63 - i]  # FAULT


@fault("init", 2, 64, source_and_result(100, 2))
@cuda.jit
def tail_of_the_last_tile_not_zeroed(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.grid(1)
    if i < a.shape[0]:
        tile[cuda.threadIdx.x] = a[i]
    cuda.syncthreads()
    if cuda.threadIdx.x < 32:
        pair = tile[cuda.threadIdx.x] + tile[cuda.threadIdx.x + 32]  # FAULT
        cuda.atomic.add(out, cuda.blockIdx.x, pair)


@fault("init", 1, 64, lambda rng: (rng.random(64, dtype=np.float32), np.zeros(1), 50))
@cuda.jit
def masked_scores_enter_the_sum(scores, out, seq_len):
    logits = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < seq_len:
        logits[i] = math.exp(scores[i])
    cuda.syncthreads()
    if i == 0:
        exp_sum = float32(0)
        for token in range(64):
            exp_sum += logits[token]  # FAULT
        out[0] = exp_sum


@fault("init", 1, 32, source_and_result(32))
@cuda.jit
def variable_set_in_one_branch_only(a, out):
    i = cuda.threadIdx.x
    if a[i] > 0.5:
        scale = float32(2)
    out[i] = scale * a[i]  # FAULT


@fault("init", 1, 32, lambda rng: (np.arange(32), np.zeros(32, np.int64)))
@cuda.jit
def variable_set_in_a_loop_that_may_not_run(lengths, out):
    i = cuda.threadIdx.x
    for j in range(lengths[i]):
        last = j
    out[i] = last  # FAULT


@fault("init", 1, 64, source_and_result(64, 1))
@cuda.jit
def scratch_read_for_warps_that_do_not_run(a, out):
    red_smem = cuda.shared.array(4, float32)
    i = cuda.threadIdx.x
    if cuda.laneid == 0:
        red_smem[i // 32] = a[i]
    cuda.syncthreads()
    # The block has two warps, so two of the four slots stay empty.
    if i == 0:
        largest = red_smem[0]
        for warp in range(1, 4):
            largest = max(largest, red_smem[warp])  # FAULT
        out[0] = largest


@fault("init", 1, 64, source_and_result((2, 64)))
@cuda.jit
def double_buffer_starts_at_the_empty_half(a, out):
    buffers = cuda.shared.array((2, 64), float32)
    i = cuda.threadIdx.x
    buffers[0, i] = a[0, i]
    for step in range(2):
        out[step, i] = buffers[1 - step, i]  # FAULT
        buffers[1 - step, i] = a[step, i]


@fault("init", 1, 32, source_and_result(32, (8, 5)))
@cuda.jit
def padding_column_copied_out(a, out):
    tile = cuda.shared.array((8, 5), float32)
    i = cuda.threadIdx.x
    tile[i // 4, i % 4] = a[i]
    cuda.syncthreads()
    for index in range(i, 40, 32):
        out[index // 5, index % 5] = tile[index // 5, index % 5]  # FAULT


@fault("init", 1, 64, source_and_result(64))
@cuda.jit
def shared_counter_never_zeroed(a, out):
    counter = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if a[i] > 0.5:
        slot = cuda.atomic.add(counter, 0, 1)  # FAULT
        out[slot] = a[i]


@fault("init", 2, 64, source_and_result(64, 128))
@cuda.jit
def shared_expected_from_the_block_before(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        tile[i] = a[i]
    cuda.syncthreads()
    out[cuda.grid(1)] = tile[63 - i]  # FAULT


def words_and_longs(rng):
    return rng.integers(0, 9, 32).astype(np.int32), np.zeros(32, np.int64)


@fault("init", 1, 32, words_and_longs, shared_bytes=32 * 8)
@cuda.jit
def stale_bytes_behind_a_smaller_dtype(a, out):
    words = cuda.shared.array(0, int32)
    longs = cuda.shared.array(0, int64)
    i = cuda.threadIdx.x
    words[i] = a[i]
    cuda.syncthreads()
    # 32 words fill only 16 longs.
    out[i] = longs[i]  # FAULT


@fault("init", 1, 32, words_and_longs, shared_bytes=32 * 8)
@cuda.jit
def only_the_lower_half_of_a_long_written(a, out):
    words = cuda.shared.array(0, int32)
    longs = cuda.shared.array(0, int64)
    i = cuda.threadIdx.x
    words[2 * i] = a[i]
    out[i] = longs[i]  # FAULT


@fault("init", 1, 32, words_and_longs)
@cuda.jit
def local_array_of_the_turn_before_taken_for_this_one(a, out):
    i = cuda.threadIdx.x
    total = 0
    for turn in range(2):
        partial = cuda.local.array(1, int64)
        if turn == 0:
            partial[0] = a[i]
        total += partial[0]  # FAULT
    out[i] = total
