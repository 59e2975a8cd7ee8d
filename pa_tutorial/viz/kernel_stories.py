"""Small kernels that show one thing each, and the figures that are drawn from their traces."""

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure
from numba import cuda, float32

from pa_tutorial.simt import Trace, global_traffic, launch, shared_traffic
from pa_tutorial.simt.races import WARP_SIZE
from pa_tutorial.simt.traffic import SECTOR
from pa_tutorial.viz.traces import draw_thread_map, draw_walk
from pa_tutorial.viz.warps import draw_banks, draw_reduction

BLOCK_SIZE = 8  # tokens of a block
HEAD_SIZE = 32
X = 16 // 4  # float32 numbers in 16 bytes, as in vLLM's layout of K
THREAD_GROUP_SIZE = WARP_SIZE // BLOCK_SIZE
ALL = 0xFFFFFFFF


# Coalesced or not ----------------------------------------------------------------------------


@cuda.jit
def copy_by_tokens(out, k):
    """A thread copies one token. k, out [num_tokens, head_size]"""
    token = cuda.threadIdx.x
    for element in range(k.shape[1]):
        out[token, element] = k[token, element]


@cuda.jit
def copy_by_elements(out, k):
    """Neighbouring threads copy neighbouring elements. k, out [num_tokens, head_size]"""
    t = cuda.threadIdx.x
    head_size = k.shape[1]
    for i in range(t, k.size, cuda.blockDim.x):
        out[i // head_size, i % head_size] = k[i // head_size, i % head_size]


def copy_trace(kernel: Callable, head_size: int = 8) -> Trace:
    k = np.zeros((WARP_SIZE, head_size), np.float32)
    return launch(kernel, 1, WARP_SIZE, np.zeros_like(k), k, trace=0).trace


def draw_two_copies() -> Figure:
    traces = {
        "a token each": copy_trace(copy_by_tokens).only(array="k"),
        "neighbours": copy_trace(copy_by_elements).only(array="k"),
    }
    slow, fast = (global_traffic(trace).total("sectors") for trace in traces.values())
    times = slow // fast
    return draw_walk(traces, f"Threads that take a token each move {times} times the sectors")


# Thread groups -------------------------------------------------------------------------------


def scores_kernel(group: int, head_size: int, block_size: int, x: int) -> Callable:
    """q . k for the tokens of one block, by one warp; `group` lanes share a token.

    group  1, 2, 4, 8, 16 or 32
    x      elements that stand together in K: 4 as in vLLM's layout, head_size in the plain layout
    """
    THREAD_GROUP_SIZE, HEAD_SIZE, BLOCK_SIZE, X = group, head_size, block_size, x
    NUM_THREAD_GROUPS = WARP_SIZE // THREAD_GROUP_SIZE

    @cuda.jit
    def scores(out, q, k):  # q [HEAD_SIZE], k [HEAD_SIZE // X, BLOCK_SIZE, X], out [BLOCK_SIZE]
        lane = cuda.threadIdx.x
        thread_group_idx, offset = lane // THREAD_GROUP_SIZE, lane % THREAD_GROUP_SIZE
        for first in range(0, BLOCK_SIZE, NUM_THREAD_GROUPS):
            token = first + thread_group_idx
            qk = float32(0)
            if token < BLOCK_SIZE:
                for e in range(offset, HEAD_SIZE, THREAD_GROUP_SIZE):
                    qk += q[e] * k[e // X, token, e % X]
            mask = THREAD_GROUP_SIZE // 2
            while mask >= 1:
                qk += cuda.shfl_xor_sync(ALL, qk, mask)
                mask //= 2
            if token < BLOCK_SIZE and offset == 0:
                out[token] = qk

    return scores


def scores_trace(
    group: int, head_size: int = HEAD_SIZE, block_size: int = BLOCK_SIZE, x: int = X
) -> Trace:
    """Runs it with every check; the answer is right, or it raises.

    Raises ValueError for a group that shuffles cannot sum.
    """
    if group < 1 or WARP_SIZE % group:
        raise ValueError(f"group is {group}; it must be a power of 2, at most {WARP_SIZE}")
    rng = np.random.default_rng(0)
    q = rng.standard_normal(head_size, dtype=np.float32)
    k = rng.standard_normal((head_size // x, block_size, x), dtype=np.float32)
    out = np.full(block_size, np.nan, np.float32)
    kernel = scores_kernel(group, head_size, block_size, x)
    report = launch(kernel, 1, WARP_SIZE, out, q, k, trace=0)
    keys = k.transpose(1, 0, 2).reshape(block_size, head_size)
    np.testing.assert_allclose(out, keys @ q, rtol=1e-4, atol=1e-5)
    return report.trace


def draw_three_ways() -> Figure:
    """What the first request of a warp reads of a block of K."""
    traces, title = {}, ""
    for group in (1, THREAD_GROUP_SIZE, WARP_SIZE):
        trace = scores_trace(group).only(array="k")
        first = trace.only(instruction=int(trace.records.instruction.min()))
        table = global_traffic(first)
        sectors, lanes = table.total("sectors"), len(first)
        used = int(100 * first.records.num_bytes.sum() / (sectors * SECTOR))
        who = "one lane" if group == 1 else f"{group} lanes"
        traces[f"{who} a token: {lanes} lanes at work, {used} % of {sectors} sectors used"] = trace
        if group == THREAD_GROUP_SIZE:
            title = f"{who} a token: the first request puts {lanes} lanes to work and "
            title += f"uses {used} % of its {sectors} sectors"
    return draw_thread_map(
        traces,
        title,
        group=THREAD_GROUP_SIZE,
        only_first=True,
        sectors=True,
        row_name="piece",
        run_name="token",
    )


def draw_group_reduction() -> Figure:
    return draw_reduction(scores_trace(THREAD_GROUP_SIZE))


# Banks ---------------------------------------------------------------------------------------


def transpose_kernel(padding: int, size: int) -> Callable:
    """out = a.T through a tile in shared memory; `padding` unused words at the end of a row."""
    SIZE, SHAPE = size, (size, size + padding)

    @cuda.jit
    def transpose(out, a):  # both [SIZE, SIZE]
        t = cuda.threadIdx.x
        tile = cuda.shared.array(SHAPE, float32)
        for row in range(SIZE):
            tile[row, t] = a[row, t]
        cuda.syncthreads()
        for row in range(SIZE):
            out[row, t] = tile[t, row]

    return transpose


def transpose_trace(padding: int, size: int = WARP_SIZE) -> Trace:
    a = np.arange(size * size, dtype=np.float32).reshape(size, size)
    out = np.full_like(a, np.nan)
    report = launch(transpose_kernel(padding, size), 1, size, out, a, trace=0)
    np.testing.assert_array_equal(out, a.T)
    return report.trace


def draw_column_of_tile() -> Figure:
    traces = {}
    for padding in (0, 1):
        reads = transpose_trace(padding).only(array="tile", kind="read")
        first = reads.only(instruction=int(reads.records.instruction.min()))
        traces[f"rows of {reads.the_array().shape[1]} words"] = first
    worst = max(shared_traffic(trace).total("wavefronts") for trace in traces.values())
    title = f"Reading a column: {worst} words of one bank, until each row is one word longer"
    return draw_banks(traces, title)
