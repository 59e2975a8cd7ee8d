"""Fences: what warps hand over with a fence and an atomic operation.

The flag is there as the CUDA C++ Programming Guide has it, and with each of its fences missing.
FIRST and FAULT mark the two accesses that race then. (programs/ has more between thread blocks.)
"""

import numpy as np
from numba import int32

from tests.simt.kernels.example import example, fault, from_text

FLAG = """
    if cuda.threadIdx.x % 32 == 0:
        if cuda.atomic.add(flags, 0, 1) == 0:  # whoever comes first has the news
            news[0] = 7  # FIRST
            RELEASE
            EARLY
            cuda.atomic.exch(flags, 1, 1)
        else:
            while cuda.atomic.add(flags, 1, 0) == 0:
                pass
            ACQUIRE
            out[0] = news[0]  # FAULT
"""
FENCE = "cuda.threadfence_block()"
RIGHT = {"RELEASE": FENCE, "ACQUIRE": FENCE, "EARLY": "pass"}


def arguments(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return np.zeros(1, np.int32), np.zeros(2, np.uint32), np.zeros(1, np.int32)


def kernel(name: str, **changed: str) -> object:
    text = FLAG
    for place, line in (RIGHT | changed).items():
        text = text.replace(place, line)
    return from_text(name, "news, flags, out", text, {})


example(1, 64, arguments, lambda *_: {2: [7]})(kernel("flag_between_warps"))
for wrong in (
    kernel("flag_without_a_fence", RELEASE="pass"),
    kernel("flag_read_without_a_fence", ACQUIRE="pass"),
    kernel("news_changed_after_the_fence", EARLY="news[0] = 8  # FIRST"),
):
    fault(1, 64, arguments, "race")(wrong)

EACH_THREAD = """
    last = cuda.shared.array(1, int32)
    partials[cuda.grid(1)] = 2 * a[cuda.grid(1)]  # FIRST
    FENCE
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        last[0] = cuda.atomic.inc(count, 0, 99) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0]:
        for k in range(cuda.threadIdx.x, partials.size, 64):
            cuda.atomic.add(out, 0, partials[k])  # FAULT
"""


def partials(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    numbers = rng.integers(9, size=256).astype(np.int32)
    return numbers, np.zeros_like(numbers), np.zeros(1, np.uint32), np.zeros(1, np.int32)


def of_each_thread(name: str, fence: str) -> object:
    return from_text(
        name, "a, partials, count, out", EACH_THREAD.replace("FENCE", fence), {"int32": int32}
    )


fences = of_each_thread("every_thread_fences_before_the_barrier", "cuda.threadfence()")
example(4, 64, partials, lambda a, *_: {3: [2 * a.sum()]})(fences)
fault(4, 64, partials, "race")(of_each_thread("barrier_taken_for_a_fence", "pass"))
