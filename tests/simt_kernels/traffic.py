"""Accesses whose cost can be worked out by hand: sectors, lines, bank conflicts, vectors.

Arrays begin at a multiple of 256 bytes. A sector has 32 bytes, a line 128, a bank 4.
"""

from collections.abc import Callable

import numpy as np
from numba import cuda, float32

from pa_tutorial.kernels.vectors import vector_access
from simt_kernels.example import example, from_text, traffic

WARP = 32


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def nothing(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def moved(
    requests: int, lanes: int, sectors: tuple[int, int], lines: tuple[int, int]
) -> dict[str, int]:
    """Global accesses: (found, ideal) sectors and lines; lanes: at work, the mean of requests."""
    counts = {"requests": requests, "lanes": lanes}
    for unit, (found, ideal) in (("sectors", sectors), ("lines", lines)):
        counts |= {unit: found, f"ideal {unit}": ideal}
    return counts


def whole(requests: int, num_bytes: int) -> dict[str, int]:
    """At their best: all lanes at work on neighbours, from the start of a line."""
    sectors, lines = num_bytes // 32, num_bytes // 128
    return moved(requests, WARP, (sectors, sectors), (lines, lines))


def clashing(requests: int, wavefronts: int, ideal: int) -> dict[str, int]:
    """Shared accesses of a word a lane."""
    degree = wavefronts // ideal
    return {"requests": requests, "wavefronts": wavefronts, "ideal": ideal, "degree": degree}


def gathers(name: str, index: str, reads: dict[str, int], warps: int = 1) -> None:
    """Registers a kernel: out[t] = a[index]."""
    num_threads = warps * WARP
    size = max(num_threads, 1 + eval(index, {"t": num_threads - 1}))
    kernel = from_text(name, "a, out", f"t = cuda.threadIdx.x\nout[t] = a[{index}]", globals())
    items = np.array([eval(index, {"t": t}) for t in range(num_threads)])
    counts = {(f"a[{index}]", "read"): reads, ("out[t]", "write"): whole(warps, 128 * warps)}
    arguments = lambda rng: (floats(rng, size), nothing(num_threads))  # noqa: E731
    example(1, num_threads, arguments, lambda a, out: {1: a[items]})(traffic(counts)(kernel))


gathers("stride_1", "t", whole(1, 128))
# Lane 31 reads byte 31 * 8 to 31 * 8 + 3: 252 bytes in 8 sectors, half of them wanted.
gathers("stride_2", "2 * t", moved(1, 32, sectors=(8, 4), lines=(2, 1)))
# A sector and a line for each lane.
gathers("stride_32", "32 * t", moved(1, 32, sectors=(32, 4), lines=(32, 1)))
# One sector for all lanes, in each of the two warps.
gathers("broadcast", "9", moved(2, 32, sectors=(2, 2), lines=(2, 2)), warps=2)
# 128 bytes from byte 4: five sectors, two lines.
gathers("start_4_bytes_late", "t + 1", moved(1, 32, sectors=(5, 4), lines=(2, 1)))


# Lanes 0 to 9 of the second warp only: 40 bytes. A store of 2 bytes a lane: 20 bytes.
@traffic(
    {
        ("a[t]", "read"): moved(1, 10, sectors=(2, 2), lines=(1, 1)),
        ("out[t]", "write"): moved(1, 10, sectors=(1, 1), lines=(1, 1)),
    }
)
@example(
    1,
    2 * WARP,
    lambda rng: (floats(rng, 64), np.zeros(64, np.float16)),
    lambda a, out: {1: np.where((np.arange(64) >= 32) & (np.arange(64) < 42), a, 0).astype("f2")},
)
@cuda.jit
def some_lanes_of_one_warp(a, out):
    t = cuda.threadIdx.x
    if t >= 32 and t < 42:
        out[t] = a[t]


# Turn i of the outer loop: lane % 4 turns of the inner one for i = 0, 3 - lane % 4 for i = 1.
# Three requests each, by 24, 16 and 8 lanes; every quarter of a row of 32 floats is touched.
# (Who counts "the n-th time a lane is here" finds 3 requests: each lane is there 3 times.)
@traffic(
    {
        ("a[i, j, t]", "read"): moved(6, 16, sectors=(24, 12), lines=(6, 6)),
        ("out[t]", "write"): whole(1, 128),
    }
)
@example(
    1,
    WARP,
    lambda rng: (floats(rng, 2, 3, WARP), nothing(WARP)),
    lambda a, out: {
        1: np.array(
            [a[0, : t % 4, t].sum() + a[1, : 3 - t % 4, t].sum() for t in range(WARP)], np.float32
        )
    },
    rtol=1e-5,
)
@cuda.jit
def nested_loops_of_other_lengths(a, out):
    t = cuda.threadIdx.x
    total = float32(0)
    for i in range(2):
        turns = t % 4 if i == 0 else 3 - t % 4
        for j in range(turns):
            total += a[i, j, t]
    out[t] = total


# One warp for each row: if one warp looped over the rows, the compiler would join the loads of
# four neighbours in a row to one of 16 bytes.
def transposes(name: str, row_length: int, wavefronts: int) -> None:
    """Registers a transpose through shared memory. Writing along a row meets all banks."""
    counts = {
        ("a[row, t]", "read"): whole(32, 4096),
        ("tile[row, t]", "write"): clashing(32, 32, 32),
        ("tile[t, row]", "read"): clashing(32, wavefronts, 32),
        ("out[row, t]", "write"): whole(32, 4096),
    }
    body = f"""
        t = cuda.threadIdx.x
        row = cuda.threadIdx.y
        tile = cuda.shared.array((WARP, {row_length}), float32)
        tile[row, t] = a[row, t]
        cuda.syncthreads()
        out[row, t] = tile[t, row]
    """
    kernel = traffic(counts)(from_text(name, "a, out", body, globals()))
    tiles = lambda rng: (floats(rng, WARP, WARP), nothing(WARP, WARP))  # noqa: E731
    example(1, (WARP, WARP), tiles, lambda a, out: {1: a.T})(kernel)


# Reading down a column: 32 words of one bank. With rows of 33 words, a column meets all banks too.
transposes("transpose_without_padding", WARP, wavefronts=1024)
transposes("transpose_with_padding", WARP + 1, wavefronts=32)


# Every lane reads word 5: one wavefront. Two lanes each read one word: 16 banks, one wavefront.
@traffic(
    {
        ("a[t]", "read"): whole(1, 128),
        ("s[t]", "write"): clashing(1, 1, 1),
        ("s[5]", "read"): clashing(1, 1, 1),
        ("s[t // 2]", "read"): clashing(1, 1, 1),
        ("out[t]", "write"): whole(1, 128),
    }
)
@example(
    1,
    WARP,
    lambda rng: (floats(rng, WARP), nothing(WARP)),
    lambda a, out: {1: a[5] + a[np.arange(WARP) // 2]},
)
@cuda.jit
def one_word_for_many_lanes(a, out):
    t = cuda.threadIdx.x
    s = cuda.shared.array(WARP, float32)
    s[t] = a[t]
    cuda.syncthreads()
    out[t] = s[5] + s[t // 2]


# Two halves in one word: 16 words of 16 banks. 8 bytes a lane from 8 bytes on: 9 sectors.
@traffic(
    {
        ("a[t + 1]", "read"): moved(1, 32, sectors=(9, 8), lines=(3, 2)),
        ("s[t]", "write"): clashing(1, 1, 1),
        ("s[31 - t]", "read"): clashing(1, 1, 1),
        ("out[t]", "write"): moved(1, 32, sectors=(2, 2), lines=(1, 1)),
    }
)
@example(
    1,
    WARP,
    lambda rng: (rng.standard_normal(33), np.zeros(WARP, np.float16)),
    lambda a, out: {1: a[1:].astype(np.float16)[::-1]},
)
@cuda.jit
def halves_in_and_doubles_out_of_step(a, out):
    t = cuda.threadIdx.x
    s = cuda.shared.array(WARP, np.float16)
    s[t] = a[t + 1]
    cuda.syncthreads()
    out[t] = s[31 - t]


# Vectors -------------------------------------------------------------------------------------

# Every kernel uses all numbers of its vectors. Where it uses only one, PTX still loads the vector,
# but the GPU's code made of that PTX loads the one number.


def sums(a: np.ndarray, count: int) -> np.ndarray:
    """Of `count` neighbours each."""
    return a.reshape(-1, count).sum(axis=1)


def two_rules(requests: int, at_once: tuple[int, int], in_parts: tuple[int, int]) -> dict[str, int]:
    """Shared accesses wider than a word: (wavefronts, ideal) by each rule."""
    counts = {"requests": requests}
    for rule, (wavefronts, ideal) in (("", at_once), (" in parts", in_parts)):
        counts[f"wavefronts{rule}"], counts[f"ideal{rule}"] = wavefronts, ideal
        counts[f"degree{rule}"] = wavefronts // ideal
    return counts


load1, load2, load4 = (vector_access(count).load for count in (1, 2, 4))


@traffic(
    {
        ("load1(a, t)", "read"): whole(1, 128),
        ("load2(a, 2 * t)", "read"): whole(1, 256),
        ("load4(a, 4 * t)", "read"): whole(1, 512),
        ("out[t]", "write"): whole(1, 128),
    }
)
@example(
    1,
    WARP,
    lambda rng: (floats(rng, 128), nothing(WARP)),
    lambda a, out: {1: a[:32] + sums(a[:64], 2) + sums(a, 4)},
    rtol=1e-5,
)
@cuda.jit
def vectors_of_4_8_and_16_bytes(a, out):
    t = cuda.threadIdx.x
    (total,) = load1(a, t)
    x, y = load2(a, 2 * t)
    total += x + y
    x, y, z, w = load4(a, 4 * t)
    out[t] = total + x + y + z + w


# 16 of every 32 bytes: half of each sector. 8 of every 16: half of them as well.
@traffic(
    {
        ("load4(a, 8 * t)", "read"): moved(1, 32, sectors=(32, 16), lines=(8, 4)),
        ("load2(a, 4 * t + 2)", "read"): moved(1, 32, sectors=(16, 8), lines=(4, 2)),
        ("out[t]", "write"): whole(1, 128),
    }
)
@example(
    1,
    WARP,
    lambda rng: (floats(rng, 256), nothing(WARP)),
    lambda a, out: {1: sums(a, 4)[::2] + sums(a[:128], 2)[1::2]},
    rtol=1e-5,
)
@cuda.jit
def vectors_with_gaps(a, out):
    t = cuda.threadIdx.x
    x, y, z, w = load4(a, 8 * t)
    total = x + y + z + w
    x, y = load2(a, 4 * t + 2)
    out[t] = total + x + y


def from_shared(name: str, loads: str, answer: Callable, reads: dict[str, dict]) -> None:
    """Registers a kernel that copies 128 floats to s, a word a lane, four times; then it loads."""
    counts = {
        ("a[t + 32 * i]", "read"): whole(4, 512),
        ("s[t + 32 * i]", "write"): two_rules(4, (4, 4), (4, 4)),
        ("out[t]", "write"): whole(1, 128),
    }
    body = f"""t = cuda.threadIdx.x
s = cuda.shared.array(128, float32, alignment=16)
for i in range(4):
    s[t + 32 * i] = a[t + 32 * i]
cuda.syncthreads()
{loads}"""
    counts |= {(load, "read"): cost for load, cost in reads.items()}
    kernel = traffic(counts)(from_text(name, "a, out", body, globals()))
    words = lambda rng: (floats(rng, 128), nothing(WARP))  # noqa: E731
    example(1, WARP, words, lambda a, out: {1: answer(a)}, rtol=1e-5)(kernel)


# All words differ: 2 or 4 in each bank, in 2 or 4 wavefronts by either rule.
from_shared(
    "shared_vectors_of_neighbours",
    "x, y = load2(s, 2 * t)\np, q, r, w = load4(s, 4 * t)\nout[t] = x + y + p + q + r + w",
    lambda a: sums(a[:64], 2) + sums(a, 4),
    {
        "load2(s, 2 * t)": two_rules(1, (2, 2), (2, 2)),
        "load4(s, 4 * t)": two_rules(1, (4, 4), (4, 4)),
    },
)
# Two rows of 128 bytes, read by even and by odd lanes (the q_vecs of vLLM's kernel): 2 vectors in
# the same two banks. At once: 4 words, 2 wavefronts where 1 would do; in halves twice that.
from_shared(
    "shared_vectors_of_two_rows",
    "x, y = load2(s, t % 2 * 32)\nout[t] = x + y",
    lambda a: sums(a, 2)[np.arange(WARP) % 2 * 16],
    {"load2(s, t % 2 * 32)": two_rules(1, (2, 1), (4, 2))},
)
# Four lanes for each vector: 8 vectors of 16 bytes are 32 words, one wavefront at once. A quarter
# of the warp reads 8 words, so 4 quarters take 4.
from_shared(
    "shared_vectors_for_four_lanes",
    "x, y, z, w = load4(s, t // 4 * 4)\nout[t] = x + y + z + w",
    lambda a: sums(a, 4)[np.arange(WARP) // 4],
    {"load4(s, t // 4 * 4)": two_rules(1, (1, 1), (4, 4))},
)
