"""Words counted warp by warp: the first lane with a word counts for all lanes that have it."""

import numpy as np
from numba import cuda


@cuda.jit
def count(counts, words):
    word = words[cuda.grid(1)]
    same = cuda.match_any_sync(0xFFFFFFFF, word)
    if cuda.ffs(same) - 1 == cuda.laneid:
        cuda.atomic.add(counts, word, cuda.popc(same))


words = np.random.default_rng(0).zipf(1.5, 256) % 50
counts = np.zeros(50, np.int64)
count[2, 128](counts, words)
assert np.array_equal(counts, np.bincount(words, minlength=50))
