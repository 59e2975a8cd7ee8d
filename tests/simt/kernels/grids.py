"""Grids whose thread blocks wait for one another, at cuda.cg.this_grid().sync()."""

import numpy as np
from numba import cuda, int32

from tests.simt.kernels.example import example, fault

ROWS, COLUMNS = 9, 128


def first_row(rng):
    a = np.zeros((ROWS, COLUMNS), np.int32)
    a[0] = rng.permutation(COLUMNS)
    return (a,)


def turned_around(a):
    return {0: [(a[0] if row % 2 == 0 else a[0][::-1]) + row for row in range(ROWS)]}


@example(4, 32, first_row, turned_around)
@cuda.jit
def each_row_after_the_one_above(a):
    column = cuda.grid(1)
    grid = cuda.cg.this_grid()
    for row in range(1, a.shape[0]):
        a[row, column] = a[row - 1, a.shape[1] - 1 - column] + 1
        grid.sync()


def numbers_and_sums(rng):
    return rng.integers(0, 10, 256, np.int32), np.zeros(4, np.int32), np.zeros(256, np.int32)


def normalized(a, sums, out):
    sums = a.reshape(4, 64).sum(axis=1)
    own = np.repeat(sums, 64)
    return {1: sums, 2: a + sums.sum() - own + sums[::-1].repeat(64)}


@cuda.jit(device=True)
def of_all_other_blocks(grid, sums, own):
    grid.sync()
    total = 0
    for block in range(sums.size):
        total += sums[block]
    return total - own


@example(4, 64, numbers_and_sums, normalized)
@cuda.jit
def shared_memory_outlives_the_wait(a, sums, out):
    own = cuda.shared.array(1, int32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t == 0:
        own[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(own, 0, a[i])
    cuda.syncthreads()
    if t == 0:
        sums[cuda.blockIdx.x] = own[0]
    others = of_all_other_blocks(cuda.cg.this_grid(), sums, own[0])
    out[i] = a[i] + others + sums[3 - cuda.blockIdx.x]


@fault(4, 32, first_row, "race")
@cuda.jit
def reads_what_comes_after_the_wait(a):
    i = cuda.grid(1)
    cuda.cg.this_grid().sync()
    a[1, i] = 2  # FAULT # FIRST
    cuda.syncthreads()
    a[2, i] = a[1, a.shape[1] - 1 - i]  # FAULT # FIRST


@fault(4, 32, first_row, "sync")
@cuda.jit
def one_thread_block_never_waits(a):
    if cuda.blockIdx.x != 2:
        cuda.cg.this_grid().sync()  # FAULT
