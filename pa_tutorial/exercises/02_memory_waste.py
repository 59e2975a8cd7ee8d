"""Exercises of notebook 02: unused slots in blocks, the largest gap, how many blocks fit."""

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
    # 2. how many tokens stand in the last block? (none are missing if it is full)
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
    # 3. one more gap may lie behind the last reservation
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


# 3. ---------------------------------------------------------------------------------------------


def num_blocks_that_fit(
    gpu_bytes: int,
    percent: int,
    bytes_in_use: int,
    block_size: int,
    num_layers: int,
    num_kv_heads: int,
    head_size: int,
    itemsize: int,
) -> int:
    """Blocks that fit on a GPU beside the model; 0 if none does.

    gpu_bytes     memory of the GPU
    percent       how much of it may be used, from 1 to 100, the model included
    bytes_in_use  what the model needs at its peak
    itemsize      bytes of one number in the cache
    """
    # 1. one token has a k and a v in every layer, for every KV head
    # 2. a block has block_size of them
    # 3. of the memory that may be used, take away what the model needs
    # 4. only whole blocks count, and there are never fewer than 0
    ### BEGIN SOLUTION
    block_bytes = 2 * num_layers * num_kv_heads * head_size * itemsize * block_size
    left = gpu_bytes * percent // 100 - bytes_in_use
    return max(left // block_bytes, 0)
    ### END SOLUTION


FIT_CASES = (  # worked out by hand; a block of OPT-13B has 13,107,200 bytes, 14e9 hold 1068.1
    # name, what it isolates, arguments, bytes of a block, blocks that fit
    ("one_byte_each", "a block of 2 bytes", (100, 100, 0, 1, 1, 1, 1, 1), 2, 50),
    ("every_factor", "a block of 2·3·5·7·2·4 bytes", (16_800, 100, 0, 4, 3, 5, 7, 2), 1680, 10),
    ("beside_the_model", "the model is there already", (16_800, 100, 8_400, 4, 3, 5, 7, 2),
     1680, 5),
    ("a_part_of_it", "90 % may be used, the model included", (1000, 90, 500, 1, 5, 1, 1, 1),
     10, 40),
    ("whole_blocks", "a rest that is smaller than a block", (1679, 100, 0, 4, 3, 5, 7, 2), 1680, 0),
    ("model_too_large", "the model alone is too large", (1000, 90, 950, 1, 5, 1, 1, 1), 10, 0),
    ("opt_13b", "OPT-13B on {gigabytes} GB, blocks of 16",
     (40_000_000_000, 100, 26_000_000_000, 16, 40, 40, 128, 2), 13_107_200, 1068),
)  # fmt: skip


def _other_memory(
    numbers: tuple[int, ...], block_bytes: int, fit: int, rng: np.random.Generator
) -> tuple[tuple[int, ...], int]:
    """Blocks of the same size in other memory: it is made around a number of blocks.

    A rest stays a rest, and a model that is too large takes even more.
    """
    gpu_bytes, percent, bytes_in_use, *sizes = numbers
    rest = gpu_bytes * percent // 100 - bytes_in_use - fit * block_bytes
    if rest < 0:
        return (gpu_bytes, percent, bytes_in_use + int(rng.integers(1, gpu_bytes)), *sizes), 0
    fit += int(rng.integers(1, 1000))
    bytes_in_use += int(rng.integers(bytes_in_use + 1))
    usable = bytes_in_use + fit * block_bytes + (int(rng.integers(1, block_bytes)) if rest else 0)
    return (-(-usable * 100 // percent), percent, bytes_in_use, *sizes), fit


def num_blocks_that_fit_trials(draw: int = 0) -> list[Trial]:
    def run(arguments: dict[str, int], fit: int, function: Callable | None) -> dict[str, Tensor]:
        answer = num_blocks_that_fit if function is None else function
        call = ", ".join(f"{name}={value:_}" for name, value in arguments.items())
        return _require_number(answer(**arguments), fit, call)

    names = ("gpu_bytes", "percent", "bytes_in_use", "block_size")
    names += ("num_layers", "num_kv_heads", "head_size", "itemsize")
    rng = seeded(0, draw)
    return [
        Trial(
            name=name,
            isolates=isolates.format(gigabytes=round(numbers[0] / 1e9)),
            meaning="A factor is missing, or memory is counted that may not be used.",
            run=partial(run, dict(zip(names, numbers, strict=True)), fit),
            references={"numbers by hand": lambda fit=fit: {"out": torch.tensor([[fit]])}},
            bounds={"out": 0.0},
            axes=("answer",),
        )
        for name, isolates, shown_memory, block_bytes, by_hand in FIT_CASES
        for numbers, fit in (
            _other_memory(shown_memory, block_bytes, by_hand, rng)
            if draw
            else (shown_memory, by_hand),
        )
    ]


# ------------------------------------------------------------------------------------------------

EXERCISES = (
    Exercise(
        notebook=NOTEBOOK,
        text="Sequences live in blocks of `block_size` slots, and each has just enough blocks. "
        "How many slots of its blocks hold no token?",
        solution=unused_slots,
        trials=unused_slots_trials,
    ),
    Exercise(
        notebook=NOTEBOOK,
        text="A contiguous reservation needs free slots in one piece. "
        "Find the size of the largest piece.",
        solution=largest_gap,
        trials=largest_gap_trials,
    ),
    Exercise(
        notebook=NOTEBOOK,
        text="Write what vLLM's `determine_num_available_blocks` computes: "
        "how many blocks fit into a GPU's memory beside the model. "
        "A block holds `block_size` tokens, for all KV heads, and here for all layers together.",
        solution=num_blocks_that_fit,
        trials=num_blocks_that_fit_trials,
    ),
)
