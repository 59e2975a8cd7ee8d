"""Exercises of notebook 03: slots, and copy-on-write."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import index

import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.blocks_grading import append_cases, slot_cases
from pa_tutorial.exercises.exercise import Exercise
from pa_tutorial.paging.errors import OutOfBlocks
from pa_tutorial.walk.calls import AnswerError, require_written

NOTEBOOK = "03_blocks_and_block_tables"


def _as_row(numbers: Sequence[int], width: int, what: str) -> list[int]:
    """Whole numbers, filled up with -1; AnswerError if they are something else."""
    try:
        row = [index(number) for number in numbers]
    except (TypeError, ValueError) as error:
        raise AnswerError(f"{what} is {numbers!r}; it must be a list of whole numbers") from error
    if len(row) > width:
        raise AnswerError(f"{what} holds {len(row)} numbers; at most {width} make sense here")
    return [*row, *[-1] * (width - len(row))]


# 1. ---------------------------------------------------------------------------------------------


def find_slots(block_table: list[int], first: int, last: int, block_size: int) -> list[int]:
    """The slots of the tokens at positions p = first, first + 1, …, last - 1."""
    # p // block_size is the logical block of position p, p % block_size its offset
    ### BEGIN SOLUTION
    return [block_table[p // block_size] * block_size + p % block_size for p in range(first, last)]
    ### END SOLUTION


def find_slots_trials(draw: int = 0) -> list[Trial]:
    def run(case: tuple, function: Callable | None) -> dict[str, Tensor]:
        answer = find_slots if function is None else function
        table, first, last, block_size, _ = case
        copied = list(table)
        slots = require_written(answer(copied, first, last, block_size))
        if copied != table:
            raise AnswerError("it changed block_table; it must only read it")
        return {"out": torch.tensor([_as_row(slots, 16, "the result")])}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning="Use the block table, and the block size that you are given.",
            run=partial(run, case),
            references={"the slots, by hand": partial(_expected_row, case[-1])},
            bounds={"out": 0.0},
            axes=("call", "token"),
        )
        for name, isolates, *case in slot_cases(draw)
    ]


def _expected_row(numbers: list[int]) -> dict[str, Tensor]:
    return {"out": torch.tensor([_as_row(numbers, 16, "the result")])}


# 2. ---------------------------------------------------------------------------------------------


def append_token(
    table: list[int], num_tokens: int, ref_counts: list[int], free: list[int], block_size: int
) -> list[tuple[int, int]]:
    """Make room for one more token of a sequence; change table, ref_counts and free in place.

    table       physical block numbers of the sequence
    num_tokens  tokens in it so far
    ref_counts  for each block of the pool, how many tables name it
    free        the free blocks; take the last one, with free.pop()
    returns     the (source, destination) block to copy, if there is one: [] or [(4, 7)]

    Raises OutOfBlocks("no block is free") if one is needed; then nothing may have changed.
    """
    # 1. is the last block full (or is there none)? then a new block goes to the end of table
    # 2. is it shared? then a new block takes its place, and its tokens must be copied
    # 3. else there is room: nothing changes
    # a new block has one reference; a block that leaves the table has one less
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


def append_token_trials(draw: int = 0) -> list[Trial]:
    def run(
        block_size: int, before: tuple, refused: bool, function: Callable | None
    ) -> dict[str, Tensor]:
        answer = append_token if function is None else function
        table, num_tokens, ref_counts, free = before
        state = list(table), list(ref_counts), list(free)
        try:
            copies = require_written(answer(state[0], num_tokens, state[1], state[2], block_size))
        except OutOfBlocks as error:
            if not refused:
                raise
            if state != (table, ref_counts, free):
                raise AnswerError(
                    "it raised OutOfBlocks, but it had changed table, ref_counts or free before"
                ) from error
            copies = []
        except Exception as error:
            if refused:
                raise AnswerError(
                    f"no block is free, and it raised {type(error).__name__}; "
                    "it must raise OutOfBlocks"
                ) from error
            raise
        else:
            if refused:
                raise AnswerError("no block is free, but it did not raise OutOfBlocks")
        return {"out": _state_rows(*state, copies)}

    def expected(before: tuple, after: tuple | None) -> dict[str, Tensor]:
        unchanged = (before[0], before[2], before[3], [])
        return {"out": _state_rows(*(after or unchanged))}

    return [
        Trial(
            name=name,
            isolates=isolates,
            meaning="Go through the three cases of the plan; -1 stands for nothing.",
            run=partial(run, block_size, before, after is None),
            references={"the state, by hand": partial(expected, before, after)},
            bounds={"out": 0.0},
            axes=("table|ref_counts|free|copies", "place"),
        )
        for name, isolates, block_size, before, after in append_cases(draw)
    ]


def _state_rows(
    table: list[int], ref_counts: list[int], free: list[int], copies: Sequence[tuple[int, int]]
) -> Tensor:
    """[4, 6]"""
    if not isinstance(copies, list) or any(
        not isinstance(pair, tuple) or len(pair) != 2 for pair in copies
    ):
        raise AnswerError(f"it returned {copies!r}; it must return [] or [(source, destination)]")
    flat = [block for pair in copies for block in pair]
    named = {"table": table, "ref_counts": ref_counts, "free": free, "the result": flat}
    return torch.tensor([_as_row(row, 6, name) for name, row in named.items()])


# ------------------------------------------------------------------------------------------------

EXERCISES = (
    Exercise(
        notebook=NOTEBOOK,
        text="> **Your turn.** Where is token 9? And all the others? One line.",
        solution=find_slots,
        trials=find_slots_trials,
        is_warm_up=True,
    ),
    Exercise(
        notebook=NOTEBOOK,
        text="The heart of the block table, over plain lists that you change in place: section 4's "
        "`append`, and now for a pool that may be empty. A refused append leaves no trace.",
        solution=append_token,
        trials=append_token_trials,
    ),
)
