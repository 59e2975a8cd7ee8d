"""The positive numbers, in their order: places in a warp by a vote, those of warps by a sum."""

import numpy as np
from numba import cuda, int32

WARPS = 4


@cuda.jit
def compact(out, size, a):
    kept = cuda.shared.array(WARPS, int32)
    t = cuda.threadIdx.x
    warp, lane = t // 32, t % 32
    keep = t < a.size and a[t] > 0
    votes = cuda.ballot_sync(0xFFFFFFFF, keep)
    if lane == 0:
        kept[warp] = cuda.popc(votes)
    cuda.syncthreads()
    place = cuda.popc(votes & ((1 << lane) - 1))
    for k in range(warp):
        place += kept[k]
    if keep:
        out[place] = a[t]
    if t == cuda.blockDim.x - 1:
        size[0] = place + keep


a = np.random.default_rng(0).normal(size=110).astype(np.float32)
out, size = np.zeros_like(a), np.zeros(1, np.int32)
compact[1, 32 * WARPS](out, size, a)
assert np.array_equal(out[: size[0]], a[a > 0])
