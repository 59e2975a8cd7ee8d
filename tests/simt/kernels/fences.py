"""Fences: what thread blocks and warps hand over with a fence and an atomic operation.

Every kernel is there as the CUDA C++ Programming Guide has it, and with each of its fences missing
or too weak. FIRST and FAULT mark the two accesses that race then.
"""

import numpy as np
from numba import int32

from tests.simt.kernels.example import Draw, example, fault, from_text

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
# The same where every thread has a result of its own.
EACH_THREAD = """
    last = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    partials[cuda.grid(1)] = 2 * a[cuda.grid(1)]  # FIRST
    ALL
    cuda.syncthreads()
    if t == 0:
        ONE
        last[0] = cuda.atomic.inc(count, 0, 99) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0]:
        for k in range(t, partials.size, 64):
            cuda.atomic.add(out, 0, partials[k])  # FAULT
"""
ALONE = """
    if cuda.threadIdx.x == 0:
        partials[cuda.blockIdx.x] = a[cuda.grid(1)]  # FIRST
        cuda.threadfence()
        if cuda.atomic.inc(count, 0, 99) == cuda.gridDim.x - 1:
            ACQUIRE
            for k in range(cuda.gridDim.x):
                out[0] += partials[k]  # FAULT
"""
LOCK = """
    if WHO:
        waits = True
        while waits:
            if cuda.atomic.cas(count, 0, 0, 1) == 0:
                ACQUIRE
                out[0] += a[cuda.grid(1)]  # FIRST  # FAULT
                RELEASE
                cuda.atomic.exch(count, 0, 0)
                waits = False
"""
FLAG = """
    if cuda.threadIdx.x % APART == 0:
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


def arguments(num_blocks: int) -> Draw:
    def draw(rng: np.random.Generator) -> tuple:
        a = rng.integers(0, 10, num_blocks * NUM_THREADS, np.int32)
        return a, np.zeros_like(a), np.zeros(2, np.uint32), np.zeros(1, np.int32)

    return draw


def kernel(name: str, text: str, **fences: str) -> object:
    for place, fence in fences.items():
        text = text.replace(place, fence)
    return from_text(name, "a, partials, count, out", text, {"int32": int32})


def right(answer: object, text: str, num_blocks: int = 3, **kernels: dict[str, str]) -> None:
    """answer  what out[0] must be, from a"""
    for name, fences in kernels.items():
        answers = lambda a, partials, count, out: {3: [answer(a)]}  # noqa: E731
        example(num_blocks, NUM_THREADS, arguments(num_blocks), answers)(
            kernel(name, text, **fences)
        )


def wrong(text: str, num_blocks: int = 3, **kernels: dict[str, str]) -> None:
    for name, fences in kernels.items():
        fault(num_blocks, NUM_THREADS, arguments(num_blocks), "race")(kernel(name, text, **fences))


right(np.sum, LAST_BLOCK, last_block_sums_the_partials={"RELEASE": FENCE})
wrong(
    LAST_BLOCK,
    last_block_without_a_fence={"RELEASE": MISSING},
    last_block_with_a_fence_of_the_block={"RELEASE": WEAK},
)
right(
    lambda a: 2 * a.sum(),
    EACH_THREAD,
    every_thread_fences_before_the_barrier={"ALL": FENCE, "ONE": MISSING},
    thread_0_fences_for_its_thread_block={"ALL": MISSING, "ONE": FENCE},
)
wrong(EACH_THREAD, barrier_taken_for_a_fence={"ALL": MISSING, "ONE": MISSING})
right(lambda a: a[::64].sum(), ALONE, last_thread_fences_before_it_reads={"ACQUIRE": FENCE})
wrong(ALONE, last_thread_reads_without_a_fence={"ACQUIRE": MISSING})
BOTH = {"ACQUIRE": FENCE, "RELEASE": FENCE}
ONE_OF_EACH_BLOCK, ALL = {"WHO": "cuda.threadIdx.x == 0"}, {"WHO": "True"}
right(lambda a: a[::64].sum(), LOCK, lock_of_a_thread_of_each_block=BOTH | ONE_OF_EACH_BLOCK)
right(np.sum, LOCK, lock_of_every_thread=BOTH | ALL)
right(np.sum, LOCK, 1, lock_within_a_thread_block={"ACQUIRE": WEAK, "RELEASE": WEAK, "WHO": "True"})
wrong(
    LOCK,
    lock_taken_without_a_fence=BOTH | ONE_OF_EACH_BLOCK | {"ACQUIRE": MISSING},
    lock_given_back_without_a_fence=BOTH | ONE_OF_EACH_BLOCK | {"RELEASE": MISSING},
    lock_of_blocks_with_fences_of_a_block=ONE_OF_EACH_BLOCK | {"ACQUIRE": WEAK, "RELEASE": WEAK},
)
BLOCKS, WARPS = {"APART": "64", "EARLY": "pass"}, {"APART": "32", "EARLY": "pass"}
right(lambda a: 7, FLAG, 2, flag_after_a_fence=BOTH | BLOCKS)
wrong(
    FLAG,
    2,
    flag_without_a_fence=BOTH | BLOCKS | {"RELEASE": MISSING},
    flag_read_without_a_fence=BOTH | BLOCKS | {"ACQUIRE": MISSING},
    news_changed_after_the_fence=BOTH | BLOCKS | {"EARLY": "partials[0] = 8  # FIRST"},
)
right(lambda a: 7, FLAG, 1, flag_between_warps={"ACQUIRE": WEAK, "RELEASE": WEAK} | WARPS)
wrong(
    FLAG,
    1,
    flag_between_warps_without_a_fence=BOTH | WARPS | {"RELEASE": MISSING},
    flag_between_warps_read_without_a_fence=BOTH | WARPS | {"ACQUIRE": MISSING},
)
