"""Kernels with one fault each: they read what nobody wrote, leave an array, race, or wait in vain.

FIRST and FAULT stand in the order in which the lines run when all threads go line by line together.
"""

from textwrap import dedent

import numpy as np
from numba import cuda, float32, float64, int32

from tests.simt.kernels.example import fault, from_text

ALL = 0xFFFFFFFF
LOWER_HALF = 0x0000FFFF
NAMES = {"float32": float32, "float64": float64, "int32": int32}
NAMES |= {"ALL": ALL, "LOWER_HALF": LOWER_HALF}
NUM_THREADS = 64
START = """
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
"""


def faulty(check: str, bodies: dict[str, str], num_blocks: int = 1) -> None:
    """Registers kernels: i is the thread, and tile holds a float32 for each of the thread block.

    a has a number between 0 and 1 for each thread of the grid, and one more; out has zeros.
    Dynamic shared memory has 8 bytes for each thread.
    bodies  name of the kernel -> what follows START
    """

    def arguments(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        size = num_blocks * NUM_THREADS
        return rng.random(size + 1, np.float32), np.zeros(size, np.float32)

    for name, body in bodies.items():
        kernel = from_text(name, "a, out", dedent(START) + dedent(body), NAMES)
        size = {"shared_bytes": 8 * NUM_THREADS}
        fault(num_blocks, NUM_THREADS, arguments, check, **size)(kernel)


# init: what nobody has written ---------------------------------------------------------------

faulty(
    "init",
    {
        "variable_set_in_one_branch_only": """
            if a[i] > 0.5:
                scale = float32(2)
            out[i] = scale * a[i]  # FAULT""",
        "local_array_of_the_turn_before_taken_for_this_one": """
            for turn in range(2):
                partial = cuda.local.array(1, float32)
                if turn == 0:
                    partial[0] = a[i]
                out[i] += partial[0]  # FAULT""",
        "only_one_warp_fills_the_tile": """
            if i < 32:
                tile[i] = a[i]
            cuda.syncthreads()
            out[i] = tile[63 - i]  # FAULT""",
    },
)
faulty(
    "init",
    {
        "shared_expected_from_the_block_before": """
            if cuda.blockIdx.x == 0:
                tile[i] = a[i]
            cuda.syncthreads()
            out[cuda.grid(1)] = tile[63 - i]  # FAULT""",
    },
    num_blocks=2,
)

# memory: outside of an array -----------------------------------------------------------------

faulty(
    "memory",
    {
        "difference_reads_before_the_start": "out[i] = a[i] - a[i - 1]  # FAULT",
        "missing_tail_guard_on_a_write": "out[i + 8] = i * i  # FAULT",
        "histogram_without_a_bin": "cuda.atomic.add(out, i + 1, 1)  # FAULT",
        "slice_read_past_its_end": """
            window = a[1:64]
            out[i] = window[i]  # FAULT""",
    },
)


def block_table_and_cache(rng):
    return np.array([2, 1, -1], np.int32), rng.random((4, 16), np.float32), np.zeros(48, np.float32)


@fault(1, 48, block_table_and_cache, "memory")
@cuda.jit
def unused_entry_of_the_block_table(block_table, key_cache, out):
    i = cuda.threadIdx.x
    block = key_cache[block_table[i // 16]]  # FAULT
    out[i] = block[i % 16]


# race: two threads at one address, one of them writing -----------------------------------------

faulty(
    "race",
    {
        "next_round_overwrites_what_others_still_read": """
            for step in range(2):
                tile[i] = a[i] * step  # FAULT
                cuda.syncthreads()
                out[i] += tile[63 - i]  # FIRST""",
        "stencil_in_place": """
            smooth = float32(0.5) * (a[i + 1] + a[i])  # FIRST
            a[i] = smooth  # FAULT""",
        "two_dynamic_arrays_at_the_same_offset": """
            weights = cuda.shared.array(0, float64)
            tokens = cuda.shared.array(0, int32)
            weights[i] = a[i]  # FIRST
            tokens[i] = i  # FAULT""",
        "shuffle_taken_for_a_memory_barrier": """
            tile[i] = a[i]  # FIRST
            neighbour = cuda.shfl_xor_sync(ALL, a[i], 1)
            out[i] = neighbour - tile[i ^ 1]  # FAULT""",
    },
)
faulty(
    "race",
    {
        "blocks_write_the_same_slots": "out[i] = a[cuda.grid(1)]  # FAULT",
        "barrier_taken_for_one_of_the_whole_grid": """
            right = a[cuda.grid(1) + 1]  # FIRST
            cuda.syncthreads()
            a[cuda.grid(1)] = right  # FAULT""",
    },
    num_blocks=2,
)

# sync: a barrier, a shuffle or a vote that not all reach who must -------------------------------

faulty(
    "sync",
    {
        "barrier_for_even_threads_only": """
            tile[i] = a[i]
            if i % 2 == 0:
                cuda.syncthreads()  # FAULT
                out[i] = tile[i + 1]""",
        "barrier_for_one_warp_only": """
            tile[i] = a[i]
            if i // 32 == 0:
                cuda.syncthreads()  # FAULT
                out[i] = tile[63 - i]""",
        "one_barrier_in_each_branch": """
            tile[i] = a[i]
            if i < 32:
                cuda.syncthreads()  # FAULT
            else:
                cuda.syncthreads()
            out[i] = tile[63 - i]""",
        "barrier_after_an_early_return": """
            if i >= 50:
                return
            tile[i] = a[i]
            cuda.syncthreads()  # FAULT
            out[i] = tile[49 - i]""",
        "full_mask_shuffle_in_a_branch": """
            if i < 16:
                tile[i] = cuda.shfl_xor_sync(ALL, a[i], 8)  # FAULT
            cuda.syncthreads()""",
        "full_mask_syncwarp_in_a_branch": """
            tile[i] = a[i]
            if i < 16:
                cuda.syncwarp()  # FAULT
                out[i] = tile[15 - i]
            cuda.syncthreads()""",
        "vote_behind_a_short_circuit": """
            if i < 16 and cuda.any_sync(ALL, a[i] > 0.5):  # FAULT
                tile[i] = 1
            cuda.syncthreads()""",
        "shuffle_mask_without_the_caller": """
            out[i] = cuda.shfl_xor_sync(LOWER_HALF, a[i], 1)  # FAULT""",
    },
)
