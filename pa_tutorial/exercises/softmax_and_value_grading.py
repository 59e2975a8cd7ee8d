"""How answers of notebook 10 are graded: block_max, the accs of each lane, what a tree may cost."""

from collections.abc import Callable

import numpy as np
from numba import cuda, float32

from pa_tutorial.exercises import kernels
from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.simt import Trace
from pa_tutorial.simt.races import WARP_SIZE


def kernel_around(num_warps: int, answer: Callable) -> Callable:
    """kernel(out, scores): both [NUM_WARPS, 32], one element a thread."""
    block_max = kernels.require_device_function(answer)
    NUM_WARPS = num_warps

    @cuda.jit
    def thread_block(out, scores):
        red_smem = cuda.shared.array(NUM_WARPS, float32)
        warp_idx, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        out[warp_idx, lane] = block_max(red_smem, scores[warp_idx, lane])

    return thread_block


def require_block_max(num_warps: int, trace: Trace) -> None:
    """One number a warp goes through shared memory; each warp may read all of them in turn."""
    kernels.require_atomics(trace, num_warps, "the lanes of a warp go one after the other")
    kernels.require_shared_requests(trace, "write", num_warps)
    kernels.require_shared_requests(trace, "read", num_warps * num_warps)


def rows_of_lanes(geometry: Geometry, weights: np.ndarray, blocks: np.ndarray) -> np.ndarray:
    """[NUM_WARPS, 32, NUM_ROWS_PER_THREAD]; blocks [num_blocks, HEAD_SIZE, BLOCK_SIZE] in order."""
    products = blocks * weights.astype(float).reshape(len(blocks), 1, -1)
    accs = np.zeros((geometry.NUM_WARPS, WARP_SIZE, geometry.NUM_ROWS_PER_THREAD))
    for warp, lane in np.ndindex(*accs.shape[:2]):
        tokens, rows = list(geometry.value_tokens(lane)), list(geometry.value_rows(lane))
        of_warp = products[warp :: geometry.NUM_WARPS].sum(axis=0)
        accs[warp, lane, : len(rows)] = of_warp[np.ix_(rows, tokens)].sum(axis=1)
    return accs


def require_tree(geometry: Geometry, trace: Trace) -> None:
    """Every warp but one leaves its rows, once; two barriers a level."""
    requests = (geometry.NUM_WARPS - 1) * geometry.NUM_ROWS_PER_THREAD
    kernels.require_atomics(trace, 0, "the order of the sum would change from run to run")
    kernels.require_barriers(trace, 2 * (geometry.NUM_WARPS.bit_length() - 1))
    for kind in ("write", "read"):
        kernels.require_shared_requests(trace, kind, requests)
