"""Kernels that read or write outside of an array."""

import numpy as np
from numba import cuda, float32

from .example import fault


def source_and_result(source_shape, result_shape=None):
    """Random float32 numbers to read, and zeros to write to (of the same shape if not given)."""

    def draw(rng):
        source = rng.random(source_shape, dtype=np.float32)
        return source, np.zeros(result_shape or source_shape, np.float32)

    return draw


@fault("memory", 1, 64, source_and_result(64))
@cuda.jit
def difference_reads_one_past_the_end(a, out):
    i = cuda.threadIdx.x
    out[i] = a[i + 1] - a[i]  # FAULT


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


@fault("memory", 2, 64, source_and_result(100, 128))
@cuda.jit
def missing_tail_guard_on_a_read(a, padded):
    i = cuda.grid(1)
    padded[i] = a[i]  # FAULT


@fault("memory", 3, 32, lambda rng: (np.zeros(90, np.float32), 90))
@cuda.jit
def tail_guard_admits_one_too_many(out, n):
    i = cuda.grid(1)
    if i <= n:
        out[i] = i  # FAULT


@fault("memory", 1, 64, lambda rng: (rng.random(50, dtype=np.float32), np.zeros(50), 50))
@cuda.jit
def guard_comes_after_the_access(a, out, n):
    i = cuda.threadIdx.x
    if a[i] > 0.5 and i < n:  # FAULT
        out[i] = 1


@fault("memory", (2, 2), (8, 8), source_and_result((12, 16)))
@cuda.jit
def guard_on_one_axis_only(image, out):
    x, y = cuda.grid(2)
    if x < image.shape[1]:
        out[y, x] = 2  # FAULT


@fault("memory", 1, (32, 8), source_and_result(8 * 32, (8, 32)))
@cuda.jit
def stride_of_the_padded_layout(flat, out):
    row, column = cuda.threadIdx.y, cuda.threadIdx.x
    # The rows of flat lie 32 numbers apart, not 33.
    out[row, column] = flat[row * 33 + column]  # FAULT


@fault("memory", 1, (16, 8), source_and_result((8, 16)))
@cuda.jit
def swapped_indices(image, out):
    x, y = cuda.grid(2)
    out[y, x] = image[x, y]  # FAULT


def block_table_and_cache(block_table):
    def draw(rng):
        cache = rng.random((4, 16), dtype=np.float32)
        return np.array(block_table, np.int32), cache, np.zeros(16 * len(block_table), np.float32)

    return draw


@fault("memory", 1, 48, block_table_and_cache([2, 4, 0]))
@cuda.jit
def block_number_past_the_cache(block_table, key_cache, out):
    i = cuda.threadIdx.x
    physical_block_number = block_table[i // 16]
    out[i] = key_cache[physical_block_number, i % 16]  # FAULT


@fault("memory", 1, 48, block_table_and_cache([2, 1, -1]))
@cuda.jit
def unused_entry_of_the_block_table(block_table, key_cache, out):
    i = cuda.threadIdx.x
    block = key_cache[block_table[i // 16]]  # FAULT
    out[i] = block[i % 16]


@fault("memory", 1, 64, source_and_result(64))
@cuda.jit
def no_room_for_the_halo_in_shared(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i + 1] = a[i]  # FAULT
    out[i] = tile[i + 1]


@fault("memory", 1, 64, source_and_result(64))
@cuda.jit
def stencil_reads_past_the_shared_tile(a, out):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = a[i]
    cuda.syncthreads()
    right = tile[i + 1]  # FAULT
    out[i] = tile[i] + right


@fault("memory", 1, 32, source_and_result((32, 5), 32))
@cuda.jit
def local_array_one_short(a, out):
    kept = cuda.local.array(4, float32)
    i = cuda.threadIdx.x
    for j in range(a.shape[1]):
        kept[j] = a[i, j]  # FAULT
    out[i] = kept[0]


@fault("memory", 1, 32, source_and_result((32, 4), 32))
@cuda.jit
def row_view_read_into_the_next_row(a, out):
    i = cuda.threadIdx.x
    row = a[i]
    total = float32(0)
    for j in range(5):
        total += row[j]  # FAULT
    out[i] = total


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


@fault("memory", 1, 128, source_and_result(128, 4), shared_bytes=(64 + 2) * 4)
@cuda.jit
def scratch_for_two_warps_but_four_run(a, out):
    smem = cuda.shared.array(0, float32)
    red_smem = smem[64:]
    warp = cuda.threadIdx.x // 32
    if cuda.laneid == 0:
        red_smem[warp] = a[cuda.threadIdx.x]  # FAULT
        out[warp] = red_smem[warp]


def one_long_sequence(rng):
    lengths = rng.integers(1, 5, 32).astype(np.int32)
    lengths[13] = 5
    return rng.random((32, 4), dtype=np.float32), lengths, np.zeros(32, np.float32)


@fault("memory", 1, 32, one_long_sequence)
@cuda.jit
def one_lane_loops_too_far(a, lengths, out):
    i = cuda.threadIdx.x
    total = float32(0)
    for j in range(lengths[i]):
        total += a[i, j]  # FAULT
    out[i] = total


@fault("memory", 1, 64, lambda rng: (np.arange(64, dtype=np.int32), np.zeros(63, np.int32)))
@cuda.jit
def histogram_without_a_bin_for_the_largest(values, bins):
    i = cuda.threadIdx.x
    cuda.atomic.add(bins, values[i], 1)  # FAULT


@fault("memory", 1, 32, lambda rng: (np.arange(1, 33), np.zeros(32, np.int64)))
@cuda.jit
def search_to_the_left_never_stops(a, out):
    i = cuda.threadIdx.x
    j = i
    while a[j] != 0:  # FAULT
        j -= 1
    out[i] = j
