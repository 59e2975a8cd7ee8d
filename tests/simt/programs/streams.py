"""A sum on two streams: a tree in each thread block's shared memory, then cuda.reduce."""

import numpy as np
from numba import cuda, float32


@cuda.jit
def block_sums(out, a):
    s = cuda.shared.array(128, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    s[t] = a[i] if i < a.size else 0
    half = 64
    while half > 0:
        cuda.syncthreads()
        if t < half:
            s[t] += s[t + half]
        half //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


total = cuda.reduce(lambda a, b: a + b)
start, end, sums = cuda.event(), cuda.event(), []
start.record()
for part in np.arange(2000, dtype=np.float32).reshape(2, 1000):
    stream = cuda.stream()
    with cuda.pinned(part), stream.auto_synchronize():
        there = cuda.to_device(part, stream=stream)
        out = cuda.device_array(8, np.float32, stream=stream)
        block_sums[8, 128, stream](out, there)
    sums.append(total(out))
end.record()
end.synchronize()
assert cuda.event_elapsed_time(start, end) >= 0
assert sums == [499_500, 1_499_500]
