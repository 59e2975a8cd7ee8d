"""Kernels that read what nobody has written, and kernels that leave an array."""

import math
from functools import partial

import numpy as np
from numba import cuda, float32, int32, int64

from simt_kernels.example import fault, one_and_result

source_and_result = partial(one_and_result, dtype=np.float32)

# init: what nobody has written ---------------------------------------------------------------


@fault("init", 1, 32, source_and_result((32, 4)))
@cuda.jit
def accumulator_never_zeroed(a, out):
    sums = cuda.local.array(4, float32)
    i = cuda.threadIdx.x
    for j in range(4):
        sums[j] += a[i, j]  # FAULT
        out[i, j] = sums[j]


@fault("init", 1, 64, source_and_result(64))
@cuda.jit
def only_one_warp_fills_the_tile(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i < 32:
        tile[i] = a[i]
    cuda.syncthreads()
    out[i] = tile[63 - i]  # FAULT


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


# memory: outside of an array -----------------------------------------------------------------


@fault("memory", 1, 64, source_and_result(64))
@cuda.jit
def difference_reads_before_the_start(a, out):
    i = cuda.threadIdx.x
    out[i] = a[i] - a[i - 1]  # FAULT


@fault("memory", 2, 64, lambda rng: (np.zeros(100, np.int32),))
@cuda.jit
def missing_tail_guard_on_a_write(squares):
    i = cuda.grid(1)
    squares[i] = i * i  # FAULT


@fault("memory", 1, (16, 8), source_and_result((8, 16)))
@cuda.jit
def swapped_indices(image, out):
    x, y = cuda.grid(2)
    out[y, x] = image[x, y]  # FAULT


def block_table_and_cache(rng):
    return np.array([2, 1, -1], np.int32), rng.random((4, 16), np.float32), np.zeros(48, np.float32)


@fault("memory", 1, 48, block_table_and_cache)
@cuda.jit
def unused_entry_of_the_block_table(block_table, key_cache, out):
    i = cuda.threadIdx.x
    block = key_cache[block_table[i // 16]]  # FAULT
    out[i] = block[i % 16]


@fault("memory", 1, 32, source_and_result((32, 5), 32))
@cuda.jit
def local_array_one_short(a, out):
    kept = cuda.local.array(4, float32)
    i = cuda.threadIdx.x
    for j in range(a.shape[1]):
        kept[j] = a[i, j]  # FAULT
    out[i] = kept[0]


@fault("memory", 1, 32, source_and_result(64))
@cuda.jit
def slice_read_past_its_end(a, out):
    i = cuda.threadIdx.x
    window = a[4:35]
    out[i] = window[i]  # FAULT


@fault("memory", 1, 64, source_and_result(64), shared_bytes=63 * 4)
@cuda.jit
def dynamic_shared_one_element_short(a, out):
    tile = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    tile[i] = a[i]  # FAULT
    out[i] = tile[i]


@fault("memory", 1, 64, lambda rng: (np.arange(64, dtype=np.int32), np.zeros(63, np.int32)))
@cuda.jit
def histogram_without_a_bin_for_the_largest(values, bins):
    i = cuda.threadIdx.x
    cuda.atomic.add(bins, values[i], 1)  # FAULT
