"""Grids whose thread blocks wait for one another, at cuda.cg.this_grid().sync()."""

import numpy as np
from numba import cuda, int32

from tests.simt.kernels.example import example, fault, one_and_result

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


@cuda.jit(device=True)
def wait():
    cuda.cg.this_grid().sync()


@example(4, 32, one_and_result(128), lambda a, out: {1: a.reshape(4, 32)[:, ::-1].ravel()})
@cuda.jit
def shared_memory_outlives_the_wait(a, out):
    own = cuda.shared.array(32, int32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    own[t] = a[i]
    wait()
    out[i] = own[31 - t]


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
