"""Language that others' kernels use: loops over arrays, constants, half precision, all atomics."""

import operator

import numpy as np
from numba import cuda, int32, uint32

from tests.simt.kernels.example import example, fault, one_and_result

WEIGHTS = np.array([[3, 1, 4], [1, 5, 9]], np.int32)


@example(1, 32, one_and_result(8, 4), lambda a, out: {1: _loops(a)})
@cuda.jit
def loops_over_arrays(a, out):
    if cuda.threadIdx.x == 0:
        for x in a:
            out[0] += x
        for i, (x, row) in enumerate(zip(a[1::2], WEIGHTS), 5):  # noqa: B905
            for weight in row:
                out[1] += i * x * weight
        for x in a[::-3]:
            if x in (10, 11):
                break
        else:
            out[2] = 7
        out[3] = a[0] if out is not None else 1


def _loops(a):
    weighted = sum(i * a[2 * i - 9] * WEIGHTS[i - 5].sum() for i in (5, 6))
    return [a.sum(), weighted, 7, a[0]]


@cuda.jit(device=True)
def changed_by(change, counts, number, value, size):
    before = cuda.shared.array(size, int32)
    before[cuda.threadIdx.x] = number
    change(counts, 0, value)
    return before[cuda.threadIdx.x]


def sums(rng):
    return np.full(1, 1000, np.int32), np.full(1, 0xFF00, np.uint32), np.zeros(32, np.int32)


@example(2, 32, sums, lambda *args: {0: [1000 - 2 * 496], 1: [0xFFFF], 2: 2 * np.arange(32)})
@cuda.jit
def atomics_as_arguments(difference, bits, out):
    t = cuda.threadIdx.x
    kept = changed_by(cuda.atomic.sub, difference, t, t, 32)
    changed_by(cuda.atomic.or_, bits, t, uint32(t), 32)
    cuda.atomic.or_(bits, 0, uint32(0xE0))
    cuda.threadfence()
    if cuda.blockIdx.x == 0:
        out[t] = operator.add(kept, t)


def halves(rng):
    return rng.standard_normal(32).astype(np.float16), np.zeros((3, 32), np.float16)


@example(1, 32, halves, lambda x, out: {1: [x * x, x + x * x, np.maximum(x, -x)]})
@cuda.jit
def half_precision(x, out):
    t = cuda.threadIdx.x
    y = x[t]
    out[0, t] = cuda.fp16.hmul(y, y)
    out[1, t] = cuda.fp16.hadd(y, cuda.fp16.hmul(y, y))
    out[2, t] = y if cuda.fp16.hge(y, -y) else -y


if hasattr(cuda, "ldca"):  # numba-cuda has cache hints, Numba itself doesn't

    @example(1, 32, one_and_result(32), lambda a, out: {1: a})
    @cuda.jit
    def cache_hints(a, out):
        t = cuda.threadIdx.x
        cuda.stcg(out, t, cuda.ldca(a, t))


def matched(a, out):
    return {1: [sum(1 << i for i, y in enumerate(a) if y == x) % 2**31 for x in a]}


@example(1, 32, one_and_result(32), matched)
@cuda.jit
def lanes_with_the_same_value(a, out):
    t = cuda.threadIdx.x
    out[t] = cuda.match_any_sync(0xFFFFFFFF, a[t]) & 0x7FFFFFFF


@fault(1, 32, one_and_result(32), "init")
@cuda.jit
def loop_over_an_unwritten_array(a, out):
    tile = cuda.shared.array(32, int32)
    if cuda.threadIdx.x == 0:
        tile[0] = a[0]
    cuda.syncthreads()
    total = 0
    for x in tile:  # FAULT
        total += x
    out[cuda.threadIdx.x] = total


@fault(1, 64, one_and_result(64), "race")
@cuda.jit
def difference_read_without_barrier(a, out):
    t = cuda.threadIdx.x
    cuda.atomic.sub(a, 0, 1)  # FIRST
    out[t] = a[0]  # FAULT


@fault(1, 32, one_and_result(32), "memory")
@cuda.jit
def index_outside_of_a_constant(a, out):
    constant = cuda.const.array_like(WEIGHTS)
    out[cuda.threadIdx.x] = constant[1, cuda.threadIdx.x]  # FAULT
