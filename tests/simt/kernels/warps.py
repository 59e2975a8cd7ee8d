"""Shuffles and votes of a warp, votes of a block; atomics."""

import numba
import numpy as np
from numba import cuda

from tests.simt.kernels.example import example

ALL = 0xFFFFFFFF
NAN = np.float32(np.nan)


def two_warps(rng):
    return np.append(np.arange(32) - 9, np.arange(1, 33)).astype(np.int32), np.zeros((11, 64), int)


def each_answer(a, out):
    """Of -9 to 22 and of 1 to 32."""
    i = np.arange(64)
    lane = i % 32
    shuffled = i // 32 * 32 + i // 8, i - 3 * (lane > 2), i + 3 * (lane < 29), i ^ 3, i ^ 31
    of_warps = [False, True], [False, True], [False, True]
    votes = *of_warps, [22 + 32] * 2, [False] * 2, [True] * 2
    return {1: np.stack([*(a[lanes] for lanes in shuffled), *np.repeat(votes, 32, 1)])}


@example(1, 64, two_warps, each_answer)
@cuda.jit
def each_warp_function(a, out):
    """Numbers of lanes over 31: the hardware takes their low 5 bits."""
    i = cuda.threadIdx.x
    warp = cuda.shared.array(64, numba.int32)
    out[0, i] = cuda.shfl_sync(ALL, a[i], 32 + i // 8)
    out[1, i] = cuda.shfl_up_sync(ALL, a[i], 32 + 3)
    out[2, i] = cuda.shfl_down_sync(ALL, a[i], 32 + 3)
    out[3, i] = cuda.shfl_xor_sync(ALL, a[i], 32 + 3)
    warp[i] = a[i]
    cuda.syncwarp()
    out[4, i] = warp[i ^ 31]
    out[5, i] = cuda.all_sync(ALL, a[i])
    out[6, i] = cuda.any_sync(ALL, a[i] > 31)
    out[7, i] = cuda.eq_sync(ALL, a[i] > 0)
    out[8, i] = cuda.syncthreads_count(int(a[i] > 0))
    out[9, i] = cuda.syncthreads_and(int(a[i] > 0))
    out[10, i] = cuda.syncthreads_or(int(a[i] > 0))


# Atomics -------------------------------------------------------------------------------------


def items_and_bins(rng):
    return rng.integers(0, 8, 300), np.zeros(8, np.int32)


@example(4, 32, items_and_bins, lambda a, counts: {1: np.bincount(a, minlength=8)})
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


def items_and_ends(rng):
    a = rng.integers(-99, 100, 128).astype(np.int32)
    return a, np.array([-1000, 1000, NAN, 7], np.float32)


@example(2, 64, items_and_ends, lambda a, ends: {1: [a.max(), a.min(), NAN, 7]})
@cuda.jit
def atomic_max_and_min(a, ends):
    i = cuda.grid(1)
    cuda.atomic.max(ends, 0, a[i])
    cuda.atomic.min(ends, 1, a[i])
    cuda.atomic.max(ends, 2, a[i])
    cuda.atomic.min(ends, 3, NAN)
