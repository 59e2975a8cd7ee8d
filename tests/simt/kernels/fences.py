"""Fences: what thread blocks and warps hand over with a fence and an atomic operation.

Every kernel is there as the CUDA C++ Programming Guide has it, and with each of its fences missing
or too weak. FIRST and FAULT mark the two accesses that race then.
"""

import numpy as np
from numba import int32

from tests.simt.kernels.example import example, fault, from_text

NUM_THREADS = 64
FENCE, WEAK, MISSING = "cuda.threadfence()", "cuda.threadfence_block()", "pass"
# What each thread block does with its 64 numbers; the last one to end adds up what all have found.
LAST_BLOCK = """
    tile = cuda.shared.array(64, int32)
    last = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    tile[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    if t == 0:
        total = 0
        for k in range(64):
            total += tile[k]
        partials[cuda.blockIdx.x] = total  # FIRST
        RELEASE
        last[0] = cuda.atomic.inc(count, 0, 99) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0] and t == 0:
        total = 0
        for k in range(cuda.gridDim.x):
            total += partials[k]  # FAULT
        out[0] = total
        count[0] = 0
"""
FLAG = """
    if cuda.threadIdx.x % 32 == 0:
        if cuda.atomic.add(count, 0, 1) == 0:  # whoever comes first has the news
            partials[0] = 7  # FIRST
            RELEASE
            EARLY
            cuda.atomic.exch(count, 1, 1)
        else:
            while cuda.atomic.add(count, 1, 0) == 0:
                pass
            ACQUIRE
            out[0] = partials[0]  # FAULT
"""


def arguments(rng: np.random.Generator) -> tuple:
    a = rng.integers(0, 10, 3 * NUM_THREADS, np.int32)
    return a, np.zeros_like(a), np.zeros(2, np.uint32), np.zeros(1, np.int32)


def kernel(name: str, text: str, fences: dict[str, str]) -> object:
    for place, fence in fences.items():
        text = text.replace(place, fence)
    return from_text(name, "a, partials, count, out", text, {"int32": int32})


def wrong(text: str, num_blocks: int, kernels: dict[str, dict[str, str]]) -> None:
    for name, fences in kernels.items():
        fault(num_blocks, NUM_THREADS, arguments, "race")(kernel(name, text, fences))


example(3, NUM_THREADS, arguments, lambda a, *_: {3: [a.sum()]})(
    kernel("last_block_sums_the_partials", LAST_BLOCK, {"RELEASE": FENCE})
)
wrong(
    LAST_BLOCK,
    3,
    {
        "last_block_without_a_fence": {"RELEASE": MISSING},
        "last_block_with_a_fence_of_the_block": {"RELEASE": WEAK},
    },
)
RIGHT = {"RELEASE": WEAK, "ACQUIRE": WEAK, "EARLY": "pass"}
example(1, NUM_THREADS, arguments, lambda *_: {3: [7]})(kernel("flag_between_warps", FLAG, RIGHT))
wrong(
    FLAG,
    1,
    {
        "flag_without_a_fence": RIGHT | {"RELEASE": MISSING},
        "flag_read_without_a_fence": RIGHT | {"ACQUIRE": MISSING},
        "news_changed_after_the_fence": RIGHT | {"EARLY": "partials[0] = 8  # FIRST"},
    },
)
