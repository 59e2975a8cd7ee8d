"""Shared memory: static and dynamic; and barriers between its writes and reads.

Many look like a kernel of faults.py, but are right.
"""

import numba
import numpy as np
from numba import cuda

from tests.simt.kernels.example import example, one_and_result


@example(
    2,
    64,
    lambda rng: (rng.standard_normal(128, np.float32), np.zeros(256, np.int16)),
    lambda a, out: {1: a.view(np.int16).reshape(2, 128)[:, ::-1].ravel()},
    shared_bytes=64 * 4 + 2,
)
@cuda.jit
def dynamic_shared_arrays_are_the_same_bytes(a, out):
    t = cuda.threadIdx.x
    floats = cuda.shared.array(0, np.float32)
    shorts = cuda.shared.array(0, np.int16)
    floats[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    for i in range(t, 128, 64):
        out[128 * cuda.blockIdx.x + i] = shorts[127 - i]
    cuda.syncthreads()
    shorts[2 * t] = t


@example(1, 32, one_and_result(32), lambda a, out: {1: a[::-1] + 31}, shared_bytes=32 * 8)
@cuda.jit
def dynamic_shared_split_by_an_offset(a, out):
    logits = cuda.shared.array(0, numba.float32)[:32]
    tokens = cuda.shared.array(0, numba.int32)[32:]
    i = cuda.threadIdx.x
    logits[i] = a[i]
    tokens[i] = i
    cuda.syncthreads()
    out[i] = int(logits[31 - i]) + tokens[31 - i] + i


# What a barrier orders -----------------------------------------------------------------------


@example(2, 64, one_and_result(128, 2), lambda a, out: {1: a.reshape(2, 64).sum(1)})
@cuda.jit
def tree_reduction(a, out):
    LANES = 64
    partial = cuda.shared.array(LANES, dtype="int32")
    i = cuda.threadIdx.x
    partial[i] = a[cuda.grid(1)]
    stride = LANES // 2
    while stride > 0:
        cuda.syncthreads()
        if i < stride:
            partial[i] += partial[i + stride]
        stride //= 2
    if i == 0:
        out[cuda.blockIdx.x] = partial[0]


@example(3, 64, one_and_result((2, 64), 128), lambda a, out: {1: a[:, ::-1].ravel()})
@cuda.jit
def whole_blocks_return_or_take_a_branch(a, out):
    tile = cuda.shared.array(64, numba.int32)
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 2:
        return
    tile[i] = a[cuda.blockIdx.x, i]
    if cuda.blockIdx.x == 0:
        cuda.syncthreads()
    else:
        cuda.syncthreads()
    out[cuda.grid(1)] = tile[63 - i]
