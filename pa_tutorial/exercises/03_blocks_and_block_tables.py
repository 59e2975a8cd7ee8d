"""Exercises of notebook 03: slots, and copy-on-write."""

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError, Function, require_written
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.exercises.grading import called, graded, whole_numbers
from pa_tutorial.paging.errors import OutOfBlocks
from pa_tutorial.paging.layouts import slot_mapping


# 1. ---------------------------------------------------------------------------------------------
def find_slots(block_table: list[int], first: int, last: int, block_size: int) -> list[int]:
    """The slots of the tokens at positions p = first, first + 1, …, last - 1."""
    # p // block_size is the logical block of position p, p % block_size its offset
    ### BEGIN SOLUTION
    return [block_table[p // block_size] * block_size + p % block_size for p in range(first, last)]
    ### END SOLUTION


_TABLE = "Use the block table, and the block size that you are given."
SLOT_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, block_table, first, last, block_size
    ("first_block", "a prompt inside one block", _TABLE, [3], 0, 4, 4),
    ("worked_example", "11 tokens in two blocks", _TABLE, [5, 2], 0, 11, 8),
    ("decode_step", "one new token", _TABLE, [5, 2], 10, 11, 8),
    ("chunk", "tokens in the middle of a sequence", _TABLE, [4, 1, 9], 3, 9, 4),
    ("other_block_size", "blocks of 16 tokens", _TABLE, [7, 3], 15, 18, 16),
    ("blocks_of_6", "a block size that is no power of two", _TABLE, [300, 2, 8, 1, 9], 22, 27, 6),
)


def other_table(rng: np.random.Generator, _: str, table: list[int], *sizes: int) -> tuple:
    return None, rng.permutation(1200)[: len(table)].tolist(), *sizes


def slots_run(answer: Function, table: list[int], first: int, last: int, size: int) -> Tensor:
    slots = called(answer, table, first, last, size)
    return torch.tensor([whole_numbers(slots, last - first, "slots")])


def slots_of_the_package(table: list[int], first: int, last: int, block_size: int) -> Tensor:
    return slot_mapping(table, range(first, last), block_size)[None]


# 2. ---------------------------------------------------------------------------------------------
def append_token(
    table: list[int], num_tokens: int, ref_counts: list[int], free: list[int], block_size: int
) -> list[tuple[int, int]]:
    """Make room for one more token of a sequence; change table, ref_counts and free in place.

    table       physical block numbers of the sequence
    num_tokens  tokens in it so far
    ref_counts  for each block of the pool, how many tables point to it
    free        the free blocks; take the last one, with free.pop()
    returns     the (source, destination) block to copy, if there is one: [] or [(4, 7)]

    Raises OutOfBlocks("no block is free") if one is needed; then nothing may have changed.
    """
    # 1. is the last block full (or is there none)? then a new block goes to the end of table
    # 2. is it shared? then a new block takes its place, and its tokens must be copied
    # 3. else there is room: nothing changes
    # a new block has one reference; a block that leaves the table loses one
    ### BEGIN SOLUTION
    full = num_tokens % block_size == 0
    shared = not full and ref_counts[table[-1]] > 1
    if not full and not shared:
        return []
    if not free:
        raise OutOfBlocks("no block is free")
    new = free.pop()
    ref_counts[new] = 1
    if full:
        table.append(new)
        return []
    old, table[-1] = table[-1], new
    ref_counts[old] -= 1
    return [(old, new)]
    ### END SOLUTION


_PLAN = "Go through the three cases of the plan; -1 means nothing."
APPEND_CASES = (
    # name, what it isolates, what its failure means, block_size, num_tokens,
    # (table, ref_counts, free), and afterwards, with copies; None: OutOfBlocks
    ("room", "the last block has room", _PLAN, 4, 3, ([1], [0, 1, 0, 0], [3, 2]),
     ([1], [0, 1, 0, 0], [3, 2], [])),
    ("room_and_none_free", "no block is free, and none is needed", _PLAN, 4, 3, ([1], [0, 1], []),
     ([1], [0, 1], [], [])),
    ("full_block", "the last block is full", _PLAN, 4, 4, ([1], [0, 1, 0, 0], [3, 2]),
     ([1, 2], [0, 1, 1, 0], [3], [])),
    ("first_token", "a sequence without a block", _PLAN, 4, 0, ([], [0, 0, 0, 0], [3, 2, 1]),
     ([1], [0, 1, 0, 0], [3, 2], [])),
    ("blocks_of_3", "blocks of 3 tokens", _PLAN, 3, 4, ([2, 1], [0, 1, 1, 0], [3]),
     ([2, 1], [0, 1, 1, 0], [3], [])),
    ("copy_on_write", "the last block is shared and not full", _PLAN, 4, 6,
     ([1, 2], [0, 2, 2, 0], [3]), ([1, 3], [0, 2, 1, 1], [], [(2, 3)])),
    ("three_references", "three sequences share the last block", _PLAN, 4, 1,
     ([2], [0, 0, 3, 0], [1, 3]), ([3], [0, 0, 2, 1], [1], [(2, 3)])),
    ("shared_and_full", "the last block is shared and full", _PLAN, 4, 8,
     ([1, 2], [0, 2, 2, 0], [3]), ([1, 2, 3], [0, 2, 2, 1], [], [])),
    ("shared_before", "only an earlier block is shared", _PLAN, 4, 5, ([1, 2], [0, 2, 1, 0], [3]),
     ([1, 2], [0, 2, 1, 0], [3], [])),
    ("none_free", "no block for the next token", _PLAN, 4, 8, ([1, 2], [0, 1, 1, 0], []), None),
    ("none_free_for_the_copy", "no block for the copy", _PLAN, 4, 7, ([1, 2], [0, 2, 2, 0], []),
     None),
)  # fmt: skip
STATE = "table|ref_counts|free|copies", "place"
POOL = 6  # blocks of the pool in other draws, more than in any case by hand


def other_pool(
    rng: np.random.Generator, _: str, size: int, num_tokens: int, before: tuple, after: tuple | None
) -> tuple:
    """The same story in a larger pool: its blocks have other numbers, and others use the rest."""
    names, in_use = rng.permutation(POOL).tolist(), rng.integers(1, 10, size=POOL).tolist()

    def renamed(table: list[int], ref_counts: list[int], free: list[int], *copies: list) -> tuple:
        counts = dict(enumerate(in_use)) | dict(zip(names, ref_counts, strict=False))
        pairs = ([(names[old], names[new]) for old, new in some] for some in copies)
        blocks = ([names[block] for block in some] for some in (table, free))
        return next(blocks), list(counts.values()), next(blocks), *pairs

    return None, size, num_tokens, renamed(*before), after and renamed(*after)


def append_run(
    answer: Function, size: int, num_tokens: int, before: tuple, after: tuple | None
) -> Tensor:
    table, ref_counts, free = own = deepcopy(before)
    try:
        copies = require_written(answer(table, num_tokens, ref_counts, free, size))
    except OutOfBlocks as error:
        if after is None and own != before:
            raise AnswerError(
                "it raised OutOfBlocks, but it had changed table, ref_counts or free before"
            ) from error
        if after is not None:
            raise
        copies = []
    else:
        if after is None:
            raise AnswerError("no block is free, but it did not raise OutOfBlocks")
    if not isinstance(copies, list) or any(
        not isinstance(pair, tuple) or len(pair) != 2 for pair in copies
    ):
        raise AnswerError(f"it returned {copies!r}; it must return [] or [(source, destination)]")
    return state_rows(*own, copies)


def state_rows(table: list, ref_counts: list, free: list, copies: Sequence[tuple]) -> Tensor:
    """[4, 6], filled up with -1"""
    rows = table, ref_counts, free, [block for pair in copies for block in pair]
    if any(len(row) > POOL for row in rows):
        raise AnswerError(f"table, ref_counts, free and copies are {rows}; that is too much")
    return torch.tensor([[*row, *[-1] * (POOL - len(row))] for row in rows])


def state_by_hand(_size: int, _tokens: int, before: tuple, after: tuple | None) -> Tensor:
    return state_rows(*(after or (*before, [])))


EXERCISES = (
    Exercise(
        solution=find_slots,
        cases=graded(SLOT_CASES, slots_run, slots_of_the_package, ("call", "token"), other_table),
        is_warm_up=True,
    ),
    Exercise(
        solution=append_token,
        cases=graded(APPEND_CASES, append_run, state_by_hand, STATE, other_pool),
    ),
)
