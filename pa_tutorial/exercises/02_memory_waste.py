"""Exercises of notebook 02: unused slots in blocks, the largest gap."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.drawing import seeded
from pa_tutorial.exercises.exercise import Exercise, require_shape
from pa_tutorial.walk.calls import AnswerError, require_written

NOTEBOOK = "02_memory_waste"


def _require_number(result: Any, expected: int, call: str) -> dict[str, Tensor]:
    """The answer as an array to compare; a message that names the call if it is wrong."""
    if not isinstance(require_written(result), int) or isinstance(result, bool):
        raise AnswerError(f"it returned a {type(result).__name__}; it must return an int")
    if result != expected:
        raise AnswerError(f"for {call} it returned {result:,}; it must return {expected:,}")
    return {"out": torch.tensor([[result]])}


# 1. ---------------------------------------------------------------------------------------------


def unused_slots(seq_lens: Tensor, block_size: int) -> Tensor:
    """Slots of each sequence's blocks that hold no token.

    seq_lens  [num_seqs] int64, tokens of each sequence; a sequence has just enough blocks
    returns   [num_seqs] int64
    """
    # 1. all blocks are full but the last one
    # 2. how many tokens lie in the last block? (none are missing if it is full)
    # 3. the rest of its block_size slots is unused
    ### BEGIN SOLUTION
    num_blocks = (seq_lens + block_size - 1) // block_size
    return num_blocks * block_size - seq_lens
    ### END SOLUTION


UNUSED_CASES = (
    # name, what it isolates, seq_lens, block_size
    ("partly_full", "the last block is not full", (5, 17, 30), 16),
    ("full", "the last block is full", (16, 5, 32), 16),
    ("less_than_a_block", "one block, and it is not full", (1, 3, 7), 8),
    ("blocks_of_one", "nothing can be unused", (1, 2, 9), 1),
    ("other_size", "a block size that is no power of two", (10, 11, 12, 13), 12),
    ("no_token", "no token, no block", (0, 4), 8),
)


def _other_lens(
    seq_lens: tuple[int, ...], block_size: int, rng: np.random.Generator
) -> tuple[int, ...]:
    """More sequences of the same kinds: with a full last block or not, with one block or none."""

    def other(seq_len: int) -> int:
        if seq_len % block_size == 0:
            return block_size * int(rng.integers(1, 9)) if seq_len else 0
        full_blocks = int(rng.integers(1, 5)) if seq_len > block_size else 0
        return full_blocks * block_size + int(rng.integers(1, block_size))

    more = rng.choice(seq_lens, size=rng.integers(1, 4)).tolist()
    return tuple(other(seq_len) for seq_len in (*seq_lens, *more))


def unused_slots_trials(draw: int = 0) -> list[Trial]:
    def run(
        seq_lens: tuple[int, ...], block_size: int, function: Callable | None
    ) -> dict[str, Tensor]:
        answer = unused_slots if function is None else function
        copied = torch.tensor(seq_lens)
        returned = require_shape(answer(copied, block_size), [len(seq_lens)])
        if copied.tolist() != list(seq_lens):
            raise AnswerError("it changed seq_lens, which is not its own")
        return {"out": returned[:, None]}

    def expected(seq_lens: tuple[int, ...], block_size: int) -> dict[str, Tensor]:
        """Take blocks one by one until the tokens fit."""
        unused = []
        for seq_len in seq_lens:
            num_slots = 0
            while num_slots < seq_len:
                num_slots += block_size
            unused.append([num_slots - seq_len])
        return {"out": torch.tensor(unused)}

    rng = seeded(0, draw)
    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning="Only the last block can have unused slots, and from 0 to block_size - 1.",
            run=partial(run, seq_lens, block_size),
            references={"blocks taken one by one": partial(expected, seq_lens, block_size)},
            bounds={"out": 0.0},
            axes=("sequence",),
        )
        for name, isolates, shown_lens, block_size in UNUSED_CASES
        for seq_lens in (_other_lens(shown_lens, block_size, rng) if draw else shown_lens,)
    ]


# 2. ---------------------------------------------------------------------------------------------


def largest_gap(reservations: list[tuple[int, int]], num_slots: int) -> int:
    """The largest reservation that still fits in one piece.

    reservations  (first slot, size) of each, in no special order; they do not overlap
    num_slots     size of the pool: its slots are 0, 1, …, num_slots - 1
    returns       slots in the largest run of free slots; 0 if none is free
    """
    # 1. go through the reservations from the lowest first slot to the highest
    # 2. a gap lies between the end of the last one (at the beginning: slot 0) and the next start
    # 3. one more gap may follow the last reservation
    ### BEGIN SOLUTION
    largest, end = 0, 0
    for start, size in sorted(reservations):
        largest = max(largest, start - end)
        end = start + size
    return max(largest, num_slots - end)
    ### END SOLUTION


GAP_CASES: tuple[tuple, ...] = (
    # name, what it isolates, reservations, num_slots
    ("between", "the largest gap is between two", ((0, 4), (9, 3), (14, 6)), 20),
    ("in_front", "the largest gap is in front of the first", ((7, 3), (12, 8)), 20),
    ("behind", "the largest gap is behind the last", ((0, 2), (4, 5)), 16),
    ("not_sorted", "the reservations come in no order", ((12, 4), (0, 5), (7, 2)), 16),
    ("two_small_gaps", "two gaps do not add up", ((3, 5), (11, 5)), 16),
    ("full", "no slot is free", ((8, 8), (0, 8)), 16),
    ("empty", "nothing is reserved", (), 16),
)


def _other_pool(
    reservations: tuple[tuple[int, int], ...], num_slots: int, rng: np.random.Generator
) -> tuple[tuple[tuple[int, int], ...], int]:
    """The same picture in other sizes: the order of the gaps by size stays; a gap of 0 too."""
    starts = [start for start, _ in sorted(reservations)]
    ends = [start + size for start, size in sorted(reservations)]
    gaps = [start - end for start, end in zip([*starts, num_slots], [0, *ends], strict=True)]
    sizes = sorted(set(gaps) - {0})
    drawn = sorted(17 + rng.permutation(33)[: len(sizes)])  # no gap of the notebook is so large
    other_gap = {0: 0, **dict(zip(sizes, drawn, strict=True))}
    moved, end = {}, 0
    for start, gap in zip(starts, gaps[:-1], strict=True):
        first, size = end + int(other_gap[gap]), int(rng.integers(1, 30))
        moved[start] = first, size
        end = first + size
    return tuple(moved[start] for start, _ in reservations), end + int(other_gap[gaps[-1]])


def largest_gap_trials(draw: int = 0) -> list[Trial]:
    def expected(reservations: tuple[tuple[int, int], ...], num_slots: int) -> int:
        """Mark the slots one by one and look for the longest run of free ones."""
        pool = ["."] * num_slots
        for start, size in reservations:
            pool[start : start + size] = "#" * size
        return max(len(run) for run in "".join(pool).split("#"))

    def run(
        reservations: tuple[tuple[int, int], ...], num_slots: int, function: Callable | None
    ) -> dict[str, Tensor]:
        answer = largest_gap if function is None else function
        copied = list(reservations)
        result = answer(copied, num_slots)
        call = f"reservations {list(reservations)} and {num_slots} slots"
        number = _require_number(result, expected(reservations, num_slots), call)
        if copied != list(reservations):
            raise AnswerError("it changed the list of reservations, which is not its own")
        return number

    rng = seeded(0, draw)
    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning="A gap is a run of free slots without a reservation in it.",
            run=partial(run, reservations, num_slots),
            references={
                "every slot marked": lambda r=reservations, n=num_slots: {
                    "out": torch.tensor([[expected(r, n)]])
                }
            },
            bounds={"out": 0.0},
            axes=("answer",),
        )
        for name, isolates, *shown_pool in GAP_CASES
        for reservations, num_slots in (_other_pool(*shown_pool, rng) if draw else shown_pool,)
    ]


# ------------------------------------------------------------------------------------------------

EXERCISES = (
    Exercise(
        notebook=NOTEBOOK,
        text="> **Your turn.** Two lines: each sequence has just enough blocks. "
        "How many of its slots hold no token?",
        solution=unused_slots,
        trials=unused_slots_trials,
        is_warm_up=True,
    ),
    Exercise(
        notebook=NOTEBOOK,
        text="A contiguous reservation needs free slots in one piece. "
        "Find the size of the largest piece.",
        solution=largest_gap,
        trials=largest_gap_trials,
    ),
)
