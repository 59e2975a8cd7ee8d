"""Exercises of notebook 02: unused slots in blocks, the largest gap."""

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.calls import Function
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import called, graded, require_shape, whole_numbers


# 1. ---------------------------------------------------------------------------------------------
def unused_slots(seq_lens: Tensor, block_size: int) -> Tensor:
    """Slots of each sequence's blocks that hold no token.

    seq_lens  [num_seqs] int64, tokens of each sequence; a sequence has just enough blocks
    returns   [num_seqs] int64
    """
    # 1. all blocks are full but the last one
    # 2. how many tokens are in the last block? (if it is full, none is missing)
    # 3. the rest of its block_size slots is unused
    ### BEGIN SOLUTION
    num_blocks = (seq_lens + block_size - 1) // block_size
    return num_blocks * block_size - seq_lens
    ### END SOLUTION


_LAST = "Only the last block can have unused slots, and from 0 to block_size - 1."
UNUSED_CASES = (
    # name, what it isolates, what its failure means, seq_lens, block_size
    ("partly_full", "the last block is not full", _LAST, (5, 17, 30), 16),
    ("full", "the last block is full", _LAST, (16, 5, 32), 16),
    ("less_than_a_block", "one block, and it is not full", _LAST, (1, 3, 7), 8),
    ("blocks_of_one", "no slot can be unused", _LAST, (1, 2, 9), 1),
    ("other_size", "a block size that is no power of two", _LAST, (10, 11, 12, 13), 12),
    ("no_token", "no token, no block", _LAST, (0, 4), 8),
)


def other_lens(
    rng: np.random.Generator, _: str, seq_lens: tuple[int, ...], block_size: int
) -> tuple[None, tuple[int, ...], int]:
    """More sequences, some full blocks longer; one of less than a block, or of no token, stays so.

    The unused slots are in another order, and there are more of them.
    """
    more = rng.choice(seq_lens, size=rng.integers(1, 4)).tolist()
    blocks = rng.integers(1, 5, size=len(seq_lens) + len(more)).tolist()
    lens = zip((*seq_lens, *more), blocks, strict=True)
    return None, tuple(n + (n >= block_size) * m * block_size for n, m in lens), block_size


def unused_run(answer: Function, seq_lens: tuple[int, ...], block_size: int) -> Tensor:
    returned = called(answer, torch.tensor(seq_lens), block_size)
    return require_shape(returned, [len(seq_lens)])[:, None]


def blocks_one_by_one(seq_lens: tuple[int, ...], block_size: int) -> Tensor:
    """Take blocks until the tokens fit."""
    ends = [next(end for end in range(0, n + block_size, block_size) if end >= n) for n in seq_lens]
    return torch.tensor([[end - n] for end, n in zip(ends, seq_lens, strict=True)])


# 2. ---------------------------------------------------------------------------------------------
def largest_gap(reservations: list[tuple[int, int]], num_slots: int) -> int:
    """The largest reservation that still fits in one piece.

    reservations  (first slot, size) of each, in no special order; they do not overlap
    num_slots     size of the pool: its slots are 0, 1, …, num_slots - 1
    returns       slots in the largest run of free slots; 0 if none is free
    """
    # 1. go through the reservations from the lowest first slot to the highest
    # 2. a gap is between the end of the previous one (at first: slot 0) and the next start
    # 3. one more gap may follow the last reservation
    ### BEGIN SOLUTION
    largest, end = 0, 0
    for start, size in sorted(reservations):
        largest = max(largest, start - end)
        end = start + size
    return max(largest, num_slots - end)
    ### END SOLUTION


_RUN = "A gap is a run of free slots without a reservation in it."
GAP_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, reservations, num_slots
    ("between", "the largest gap is between two", _RUN, [(0, 4), (9, 3), (14, 6)], 20),
    ("in_front", "the largest gap is before the first", _RUN, [(7, 3), (12, 8)], 20),
    ("behind", "the largest gap is after the last", _RUN, [(0, 2), (4, 5)], 16),
    ("not_sorted", "the reservations are in no order", _RUN, [(12, 4), (0, 5), (7, 2)], 16),
    ("two_small_gaps", "two gaps do not add up", _RUN, [(3, 5), (11, 5)], 16),
    ("full", "no slot is free", _RUN, [(8, 8), (0, 8)], 16),
    ("empty", "nothing is reserved", _RUN, [], 16),
)


def other_pool(
    rng: np.random.Generator, _: str, reservations: list[tuple[int, int]], num_slots: int
) -> tuple[None, list[tuple[int, int]], int]:
    """Everything several times as large: the largest gap stays where it is."""
    times = int(rng.integers(2, 100))
    return None, [(times * start, times * n) for start, n in reservations], times * num_slots


def gap_run(answer: Function, reservations: list[tuple[int, int]], num_slots: int) -> Tensor:
    return torch.tensor([whole_numbers([called(answer, reservations, num_slots)], 1)])


def slots_marked(reservations: list[tuple[int, int]], num_slots: int) -> Tensor:
    """Mark the slots one by one and look for the longest run of free ones."""
    pool = ["."] * num_slots
    for start, size in reservations:
        pool[start : start + size] = "#" * size
    return torch.tensor([[max(len(run) for run in "".join(pool).split("#"))]])


EXERCISES = (
    Exercise(
        solution=unused_slots,
        cases=graded(UNUSED_CASES, unused_run, blocks_one_by_one, ("sequence",), other_lens),
        is_warm_up=True,
    ),
    Exercise(
        solution=largest_gap,
        cases=graded(GAP_CASES, gap_run, slots_marked, ("answer",), other_pool),
    ),
)
