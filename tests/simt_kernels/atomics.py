"""Atomic add, max, min and compare-and-swap on global and on shared arrays."""

import numba
import numpy as np
from numba import cuda

from simt_kernels.example import example


def whole(rng, n, dtype=np.int32):
    return rng.integers(-99, 100, n).astype(dtype)


@example(
    3,
    48,
    lambda rng: (whole(rng, 100), np.array([5, 6], np.int32)),
    lambda a, total: {1: np.array([5 + a.sum(), 6], np.int32)},
)
@cuda.jit
def atomic_add_of_all_blocks(a, total):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.add(total, 0, a[i])


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
    lambda rng: (whole(rng, 100), np.array([-1000, 1000, 500, -500], np.int32)),
    lambda a, ends: {1: np.array([a.max(), a.min(), 500, -500], np.int32)},
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
    2,
    64,
    lambda rng: (rng.standard_normal(128, np.float32), np.full((2, 2), np.inf, np.float32)),
    lambda a, ends: {1: np.stack([a.reshape(2, 64).max(1), a.reshape(2, 64).min(1)], 1)},
)
@cuda.jit
def atomic_max_and_min_of_float32_in_shared_memory(a, ends):
    block = cuda.shared.array(2, numba.float32)
    t = cuda.threadIdx.x
    if t == 0:
        block[0] = -numba.float32(1e30)
        block[1] = numba.float32(1e30)
    cuda.syncthreads()
    cuda.atomic.max(block, 0, a[cuda.grid(1)])
    cuda.atomic.min(block, 1, a[cuda.grid(1)])
    cuda.syncthreads()
    if t < 2:
        ends[cuda.blockIdx.x, t] = block[t]


def sums_of_cells(rows, columns, a, out):
    sums = out.copy()
    np.add.at(sums, (rows, columns), a)
    return {3: sums}


def cells(rng):
    rows, columns = rng.integers(0, 3, 128), rng.integers(0, 5, 128)
    return rows, columns, whole(rng, 128, np.float32), np.full((3, 5), 2, np.float32)


@example(2, 64, cells, sums_of_cells)
@cuda.jit
def atomic_add_at_two_indices(rows, columns, a, out):
    i = cuda.grid(1)
    cuda.atomic.add(out, (rows[i], columns[i]), a[i])


@example(
    1,
    64,
    lambda rng: (whole(rng, 64), np.zeros(64, np.int32), np.zeros(1, np.int32)),
    lambda a, positive, count: {
        1: (a > 0).astype(np.int32),
        2: np.array([(a > 0).sum()], np.int32),
    },
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
    64,
    lambda rng: (rng.integers(0, 6, 128), np.full(6, -1, np.int32), np.zeros(6, np.int32)),
    lambda a, owner, winners: {2: np.ones(6, np.int32)},
)
@cuda.jit
def one_swap_of_each_cell_wins(a, owner, winners):
    i = cuda.grid(1)
    if cuda.atomic.cas(owner, a[i], -1, i) == -1:
        winners[a[i]] += 1


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
