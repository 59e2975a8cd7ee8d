"""Accesses whose cost can be worked out by hand: sectors, lines, bank conflicts, vectors.

Arrays begin at a multiple of 256 bytes. A sector has 32 bytes, a line 128, a bank 4.
"""

from collections.abc import Callable
from textwrap import dedent

import numpy as np

from tests.simt.kernels.example import Arguments, Size, example, from_text, traffic
from tests.simt.kernels.vectors import vector_load

WARP = 32
Counts = dict[str, int]  # column of a table -> count


def moved(
    transactions: int, lanes: int, sectors: tuple[int, int], lines: tuple[int, int]
) -> Counts:
    """Global accesses: (found, ideal) sectors and lines; lanes: at work on average."""
    counts = {"transactions": transactions, "lanes": lanes}
    for unit, (found, ideal) in (("sectors", sectors), ("lines", lines)):
        counts |= {unit: found, f"ideal {unit}": ideal}
    return counts


def whole(transactions: int, num_bytes: int) -> Counts:
    """At their best: all lanes at work on neighbours, from the start of a line."""
    sectors, lines = num_bytes // 32, num_bytes // 128
    return moved(transactions, WARP, (sectors, sectors), (lines, lines))


def clashing(transactions: int, wavefronts: int, ideal: int, rule: str = "") -> Counts:
    """Shared accesses of a word a lane; a rule is named where there are two."""
    counts = {"wavefronts": wavefronts, "ideal": ideal, "degree": wavefronts // ideal}
    return {
        "transactions": transactions,
        **{column + rule: count for column, count in counts.items()},
    }


def costs(
    name: str,
    body: str,
    reads: dict[str, Counts],
    writes: dict[str, Counts],
    size: Size,
    answer: Callable[[np.ndarray], np.ndarray],
    block: Size = WARP,
    dtypes: tuple[type, type] = (np.float32, np.float32),
    rtol: float = 0.0,
) -> None:
    """Registers a kernel of a and out, in one thread block; t is the thread.

    size    of a; out has an item for each thread, NaN before
    answer  what out holds of a
    """

    def draw(rng: np.random.Generator) -> Arguments:
        return rng.standard_normal(size, dtypes[0]), np.full(block, np.nan, dtypes[1])

    counts = {(text, "read"): cost for text, cost in reads.items()}
    counts |= {(text, "write"): cost for text, cost in writes.items()}
    text = "t = cuda.threadIdx.x\n" + dedent(body)
    kernel = traffic(counts)(from_text(name, "a, out", text, globals()))
    example(1, block, draw, lambda a, out: {1: answer(a)}, rtol=rtol)(kernel)


# Lane 31 reads byte 31 * 8 to 31 * 8 + 3: 252 bytes in 8 sectors, half of them wanted.
costs(
    "stride_2",
    "out[t] = a[2 * t]",
    {"a[2 * t]": moved(1, 32, sectors=(8, 4), lines=(2, 1))},
    {"out[t]": whole(1, 128)},
    64,
    lambda a: a[::2],
)
# 128 bytes from byte 4: five sectors, two lines.
costs(
    "start_4_bytes_late",
    "out[t] = a[t + 1]",
    {"a[t + 1]": moved(1, 32, sectors=(5, 4), lines=(2, 1))},
    {"out[t]": whole(1, 128)},
    33,
    lambda a: a[1:],
)
# Turn i of the outer loop: lane % 4 turns of the inner one for i = 0, 3 - lane % 4 for i = 1.
# Three transactions each, by 24, 16 and 8 lanes; every quarter of a row of 32 floats is touched.
# (Who counts "the n-th time a lane is here" finds 3 transactions: each lane is there 3 times.)
costs(
    "nested_loops_of_other_lengths",
    """
    total = np.float32(0)
    for i in range(2):
        turns = t % 4 if i == 0 else 3 - t % 4
        for j in range(turns):
            total += a[i, j, t]
    out[t] = total
    """,
    {"a[i, j, t]": moved(6, 16, sectors=(24, 12), lines=(6, 6))},
    {"out[t]": whole(1, 128)},
    (2, 3, WARP),
    lambda a: np.array([a[0, : t % 4, t].sum() + a[1, : 3 - t % 4, t].sum() for t in range(WARP)]),
    rtol=1e-5,
)


AT_ONCE, EACH_ROW = clashing(1, 1, 1), clashing(32, 32, 32)
# One warp for each row: if one warp looped over the rows, the compiler would join the loads of
# four neighbours in a row to one of 16 bytes. With rows of 33 words, a column of the tile meets all
# banks, as a row does.
costs(
    "transpose_with_padding",
    """
    row = cuda.threadIdx.y
    tile = cuda.shared.array((WARP, 33), np.float32)
    tile[row, t] = a[row, t]
    cuda.syncthreads()
    out[row, t] = tile[t, row]
    """,
    {"a[row, t]": whole(32, 4096), "tile[t, row]": EACH_ROW},
    {"tile[row, t]": EACH_ROW, "out[row, t]": whole(32, 4096)},
    (WARP, WARP),
    np.transpose,
    block=(WARP, WARP),
)
# Every lane reads word 5: one wavefront. Two lanes each read one word: 16 banks, one wavefront.
costs(
    "one_word_for_many_lanes",
    """
    s = cuda.shared.array(WARP, np.float32)
    s[t] = a[t]
    cuda.syncthreads()
    out[t] = s[5] + s[t // 2]
    """,
    {"a[t]": whole(1, 128), "s[5]": AT_ONCE, "s[t // 2]": AT_ONCE},
    {"s[t]": AT_ONCE, "out[t]": whole(1, 128)},
    WARP,
    lambda a: a[5] + a[np.arange(WARP) // 2],
)
# Two halves in one word: 16 words of 16 banks. 8 bytes a lane from 8 bytes on: 9 sectors.
costs(
    "halves_in_and_doubles_out_of_step",
    """
    s = cuda.shared.array(WARP, np.float16)
    s[t] = a[t + 1]
    cuda.syncthreads()
    out[t] = s[31 - t]
    """,
    {"a[t + 1]": moved(1, 32, sectors=(9, 8), lines=(3, 2)), "s[31 - t]": AT_ONCE},
    {"s[t]": AT_ONCE, "out[t]": moved(1, 32, sectors=(2, 2), lines=(1, 1))},
    33,
    lambda a: a[1:].astype(np.float16)[::-1],
    dtypes=(np.float64, np.float16),
)

# Vectors -------------------------------------------------------------------------------------

# Every kernel uses all numbers of its vectors. Where it uses only one, PTX still loads the vector,
# but the GPU's code made of that PTX loads the one number.


def sums(a: np.ndarray, count: int) -> np.ndarray:
    """Of `count` neighbours each."""
    return a.reshape(-1, count).sum(axis=1)


def two_rules(transactions: int, at_once: tuple[int, int], in_parts: tuple[int, int]) -> Counts:
    """Shared accesses wider than a word: (wavefronts, ideal) by each rule."""
    return clashing(transactions, *at_once) | clashing(transactions, *in_parts, rule=" in parts")


load2, load4 = map(vector_load, (2, 4))
# The even and the odd lanes read two rows of 128 bytes (the q_vecs of vLLM's kernel): 2 vectors in
# the same two banks. At once: 4 words, 2 wavefronts where 1 would do; in halves twice that.
# Four lanes for each vector: 8 vectors of 16 bytes are 32 words, one wavefront at once. A quarter
# of the warp reads 8 words, so 4 quarters take 4.
costs(
    "shared_vectors_that_several_lanes_read",
    """
    s = cuda.shared.array(128, np.float32, alignment=16)
    for i in range(4):
        s[t + 32 * i] = a[t + 32 * i]
    cuda.syncthreads()
    u, v = load2(s, t % 2 * 32)
    x, y, z, w = load4(s, t // 4 * 4)
    out[t] = u + v + x + y + z + w
    """,
    {
        "a[t + 32 * i]": whole(4, 512),
        "load2(s, t % 2 * 32)": two_rules(1, (2, 1), (4, 2)),
        "load4(s, t // 4 * 4)": two_rules(1, (1, 1), (4, 4)),
    },
    {"s[t + 32 * i]": two_rules(4, (4, 4), (4, 4)), "out[t]": whole(1, 128)},
    128,
    lambda a: sums(a, 2)[np.arange(WARP) % 2 * 16] + sums(a, 4)[np.arange(WARP) // 4],
    rtol=1e-5,
)
