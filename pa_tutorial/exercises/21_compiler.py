"""The exercise of What the compiler made of it: how many thread blocks fit."""

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.calls import Function
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import axes_of_calls, graded, results_of
from simt.gpus import H100


# 1. ---------------------------------------------------------------------------------------------
def blocks_that_fit(num_threads: int, registers: int, shared_bytes: int) -> int:
    """Thread blocks on one multiprocessor of an H100 at a time.

    num_threads   of a thread block
    registers     of a thread
    shared_bytes  of a thread block, without CUDA's own
    """
    # how many does each resource have room for? What runs out first decides
    ### BEGIN SOLUTION
    per_thread = -(-registers // 8) * 8
    per_block = -(-shared_bytes // 128) * 128 + 1_024
    by_registers = 65_536 // (per_thread * num_threads)
    by_shared = 233_472 // per_block
    return min(2_048 // num_threads, by_registers, by_shared, 32)
    ### END SOLUTION


_UNITS = "A thread's registers are rounded up to a multiple of 8, then times the threads."
_OWN = "Shared memory comes in units of 128 bytes, and each thread block needs 1,024 for CUDA."
FIT_CASES = (
    # name, what it isolates, what its failure means, threads, registers, shared bytes
    ("registers", "registers run out first", _UNITS, (128,), (100, 256), (1_024, 4_096)),
    ("shared_memory", "shared memory runs out first", _OWN, (128,), (32, 64), (30_000, 232_000)),
    ("register_units", "registers in units of 8", _UNITS, (128,), (89, 103), (0, 4_096)),
    ("shared_units", "shared memory in units of 128 bytes", _OWN, (64,), (16, 32),
     (6_300, 8_000)),
    ("threads", "threads run out first", "2,048 threads fit.", (256, 384, 512, 1_024), (16, 32),
     (0, 8_192)),
    ("thread_blocks", "small thread blocks", "At most 32 fit.", (32, 64), (16, 32), (0, 12_000)),
)  # fmt: skip
NUM_LAUNCHES = 12


def launches(
    num_threads: tuple[int, ...], registers: tuple[int, int], shared: tuple[int, int], draw: int
) -> list[tuple[int, int, int]]:
    rng = np.random.default_rng((draw, *num_threads, *registers))
    threads = rng.choice(num_threads, NUM_LAUNCHES).tolist()
    bytes_ = (rng.integers(*shared, NUM_LAUNCHES) // 4 * 4).tolist()
    return [*zip(threads, rng.integers(*registers, NUM_LAUNCHES).tolist(), bytes_, strict=True)]


def fit_run(answer: Function, *drawn_from: object) -> Tensor:
    return results_of(answer, launches(*drawn_from))


def fit_axes(*drawn_from: object) -> tuple[str]:
    return axes_of_calls("blocks_that_fit", launches(*drawn_from))


def the_documented_limits(*drawn_from: object) -> Tensor:
    fits = (H100.resident_blocks(*launch) for launch in launches(*drawn_from))
    return torch.tensor([min(fit.values()) for fit in fits])


FIT = Exercise(
    solution=blocks_that_fit,
    cases=graded(FIT_CASES, fit_run, the_documented_limits, fit_axes),
    is_warm_up=True,
)


EXERCISES = (FIT,)
