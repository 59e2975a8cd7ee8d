"""Blanks of notebook 03: a pool that counts references, block tables, fork, copy-on-write."""

from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.running import Trial
from pa_tutorial.exercises.grading import graded, require_shape
from pa_tutorial.exercises.pools_at_work import costs, other_blocks, our_pages, played, pool_after

# Pools --------------------------------------------------------------------------------------------
# name, what it isolates, what its failure means, block_size, sequences, the free list, operations

A = {"a": ("THE CAT S", [1, 2, 3])}
TWO = {"a": ("THE CAT S", [1, 2, 3]), "b": ("THE CAT SAW", [1, 2, 4])}
FORKED = {"a": ("THE CAT S", [1, 2, 3]), "b": ("THE CAT S", [1, 2, 3])}
THREE = FORKED | {"c": ("THE CAT S", [1, 2, 3])}
FULL = {"a": ("THE CAT ", [1, 2]), "b": ("THE CAT ", [1, 2])}
NEW = {"a": ("", [])}
ODD = {"a": ("THE CAT S", [1, 3, 5])}

RELEASE = (
    ("a drops its last block", "one reader", "", 4, TWO, [6, 5], ("drop a",)),
    (
        "a drops its blocks, two of which b reads too",
        "another reader", "", 4, TWO, [6, 5], ("drop a", "drop a", "drop a"),
    ),
    ("a and b drop the same block", "two readers", "", 4, FULL, [3], ("drop a", "drop b")),
    (
        "three sequences drop the same block",
        "three readers", "", 4, THREE, [5, 4], ("drop b", "drop c", "drop a"),
    ),
    ("a drops block 5, and blocks 4 and 2 are free", "order", "", 4, ODD, [4, 2], ("drop a",)),
)  # fmt: skip
APPEND = (
    (
        "a writes SIT DOWN!",
        "a new sequence", "", 4, NEW, [6, 5, 4, 3, 2, 1], ("write a SIT DOWN!",),
    ),
    ("a appends T to 9 tokens", "a block with room", "", 4, A, [5, 4], ("write a T",)),
    ("a appends S to full blocks that b reads too", "full", "", 4, FULL, [4, 3], ("write a S",)),
    ("a writes CAT, in blocks of 2", "blocks of 2", "", 2, NEW, [2, 1], ("write a CAT",)),
    ("a appends S, and no block is free", "a refusal", "", 4, FULL, [], ("write a S",)),
    (
        "a appends T to a block that b reads too",
        "what copy_on_write says", "", 4, FORKED, [5, 4], ("write a T",),
    ),
)  # fmt: skip
FORK = (
    ("b is forked from a", "three blocks", "", 4, A, [6, 5, 4], ("fork a b",)),
    (
        "c is forked from b, which shares blocks with a",
        "blocks that are shared already", "", 4, TWO, [6, 5], ("fork b c",),
    ),
    ("a is forked before its first token", "no block", "", 4, NEW, [2, 1], ("fork a b",)),
    (
        "b is forked from a, then both write",
        "two tables", "", 4, {"a": FULL["a"]}, [6, 5, 4, 3],
        ("fork a b", "write a SAT", "write b SAW"),
    ),
)  # fmt: skip
COPY = (
    (
        "b writes AW, and a writes AT",
        "a tail with two readers", "", 4, FORKED, [6, 5, 4], ("write b AW", "write a AT"),
    ),
    ("a appends A to its own block", "one reader", "", 4, TWO, [6, 5], ("write a A",)),
    (
        "three sequences write into one block",
        "three readers", "", 4, THREE, [6, 5, 4], ("write c A", "write a I", "write b O"),
    ),
    ("a appends A, and no block is free", "a refusal", "", 4, FORKED, [], ("write a A",)),
    (
        "b ends, and a appends A",
        "a tail whose other reader has ended", "", 4, FORKED, [4], ("free b", "write a A"),
    ),
)  # fmt: skip
FREE = (
    ("a ends, and b goes on", "two blocks with another reader", "", 4, TWO, [6, 5], ("free a",)),
    ("a, the only sequence, ends", "three blocks", "", 4, A, [5, 4], ("free a",)),
    ("a and b end", "every block has two readers", "", 4, FORKED, [4], ("free a", "free b")),
    ("a ends before its first token", "no block", "", 4, NEW, [2, 1], ("free a",)),
)


def on_pools(cases: tuple[tuple, ...]) -> Callable[[int], list[Trial]]:
    options = {"drawn": pool_after, "costs": costs}
    return graded(cases, played, our_pages, ("number",), again=other_blocks, **options)


# Slots --------------------------------------------------------------------------------------------
SLOTS: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, block_table, positions, block_size
    ("11 tokens in blocks 5 and 2", "two blocks", "", [5, 2], [*range(11)], 8),
    ("one block", "a prompt inside one block", "", [3], [0, 1, 2, 3], 4),
    ("the newest token", "one token", "", [5, 2], [10], 8),
    ("the middle of a sequence", "three blocks", "", [4, 1, 9], [*range(3, 9)], 4),
    ("tokens in any order", "positions that don't ascend", "", [7, 3, 12], [40, 3, 16, 15], 16),
    ("blocks of 6", "a block size that is no power of two", "", [300, 2, 8, 1, 9], [22, 26], 6),
)


def other_table(
    rng: np.random.Generator, _: str, table: list[int], positions: list[int], size: int
) -> tuple:
    return None, rng.permutation(1200)[: len(table)].tolist(), positions, size


def run_slots(pages: ModuleType, table: list[int], positions: list[int], size: int) -> Tensor:
    found = pages.slot_mapping(torch.tensor(table), torch.tensor(positions), size)
    slots = require_shape(found, [len(positions)])
    if slots.is_floating_point():
        raise AnswerError(f"slots are {slots.dtype}; they must be whole numbers: // and %")
    wanted = by_hand(table, positions, size).tolist()
    for position, slot, right in zip(positions, slots.tolist(), wanted, strict=True):
        if slot != right:
            should, is_now = place_in_words(right, size), place_in_words(slot, size)
            raise AnswerError(f"token {position} should be in {should}; yours is {is_now}")
    return slots


def place_in_words(slot: int, size: int) -> str:
    return f"slot {slot} (block {slot // size}, offset {slot % size})"


def by_hand(table: list[int], positions: list[int], size: int) -> Tensor:
    """From the list of all slots that a sequence has, in its order."""
    slots = [slot for block in table for slot in range(block * size, (block + 1) * size)]
    return torch.tensor([slots[position] for position in positions])


CASES: dict[str, Callable[[int], list[Trial]]] = {
    "release": on_pools(RELEASE),
    "slot_mapping": graded(SLOTS, run_slots, by_hand, ("token",), again=other_table),
    "append_token": on_pools(APPEND),
    "fork": on_pools(FORK),
    "copy_on_write": on_pools(COPY),
    "free": on_pools(FREE),
}
EXERCISES = ()
