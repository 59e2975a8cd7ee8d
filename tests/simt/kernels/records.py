"""Records: fields of each item, arrays inside items, and copies."""

import numpy as np
from numba import cuda

from tests.simt.kernels.example import example, fault

BALL = np.dtype(
    [
        *(("alive", np.uint8), ("x", np.float32), ("hits", np.int32)),
        *(("v", np.float32, (2,)), ("box", [("low", np.float64), ("high", np.int16)])),
    ],
    align=True,
)
PACKED = np.dtype([("kind", np.uint8), ("x", np.float32), ("v", np.float64, (2,))])


def balls(rng: np.random.Generator, count: int) -> np.ndarray:
    found = np.zeros(count, BALL)
    found["alive"], found["hits"] = rng.integers(0, 2, count), rng.integers(-99, 99, count)
    found["x"], found["v"] = rng.random(count), rng.random((count, 2))
    found["box"]["low"], found["box"]["high"] = rng.random(count), rng.integers(-9, 9, count)
    return found


def with_numbers(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return balls(rng, 64), np.zeros(64)


def moved(a: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: np.stack([a["x"] + a["v"][:, 0], a["hits"] - 3, 2 * a["v"][:, 1], 4.0 * a["alive"]])}


@example(2, 32, lambda rng: (balls(rng, 64), np.zeros((4, 64))), moved)
@cuda.jit
def a_record_is_a_reference(a, out):
    i = cuda.grid(1)
    one = a[i]
    one.x += one.v[0]
    a[i]["hits"] -= 3
    a.v[i, 1] *= np.float32(2)
    same = one if i > 40 else a[i]
    same.box.high = 4 * same.alive
    out[0, i], out[1, i], out[2, i], out[3, i] = a[i].x, one.hits, one["v"][1], a.box.high[i]


def mirrored(a: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    there = a.reshape(2, 32)[:, ::-1].ravel()
    return {1: there["x"].astype(float) + there["v"][:, 1] + there["box"]["high"] + 7}


@example(2, 32, with_numbers, mirrored)
@cuda.jit
def records_are_copied_through_shared_and_local_memory(a, out):
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile = cuda.shared.array(32, BALL)
    own = cuda.local.array(2, a.dtype)
    tile[t] = a[i]
    cuda.syncthreads()
    own[0].hits = 7
    own[1] = tile[31 - t]
    out[i] = np.float64(own[1].x) + own[1].v[1] + own[1].box.high + own[0].hits


# Faults --------------------------------------------------------------------------------------


@fault(1, 64, with_numbers, "memory")
@cuda.jit
def record_after_the_last(a, out):
    i = cuda.threadIdx.x
    after = a[i + 1]  # FAULT
    out[i] = after.x


@fault(1, 64, with_numbers, "memory")
@cuda.jit
def array_inside_a_record_is_shorter(a, out):
    i = cuda.threadIdx.x
    out[i] = a[i].v[i % 3]  # FAULT


@fault(1, 32, lambda rng: (np.zeros(64, PACKED), np.zeros(32)), "memory")
@cuda.jit
def atomic_operation_on_a_packed_field(a, out):
    cuda.atomic.add(a.x, cuda.threadIdx.x, 1)  # FAULT


@fault(1, 64, with_numbers, "init")
@cuda.jit
def copy_of_a_half_written_record(a, out):
    i = cuda.threadIdx.x
    own = cuda.local.array(1, BALL)
    own[0].x = out[i]
    a[i] = own[0]  # FAULT
