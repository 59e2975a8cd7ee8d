"""The cases of notebook 02: gaps between reservations, what a request wastes, a pool of blocks."""

from collections import Counter, deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.exercises.grading import axes_of_calls, called, graded, results_of, whole_numbers

if TYPE_CHECKING:
    from pa_tutorial.viz.blocks import Frame

EXERCISES = ()

# Gaps ---------------------------------------------------------------------------------------------

_RUN = "A gap is a run of free slots."
GAP_CASES: tuple[tuple, ...] = (
    # name, what it isolates, what its failure means, (first slot, size) each, size, num_slots
    ("two gaps that fit", "the first one is taken", _RUN, [(0, 4), (8, 3), (14, 2)], 3, 20),
    ("in no order", "reservations in no special order", _RUN, [(12, 4), (0, 5), (7, 3)], 2, 16),
    ("in front", "slot 0 is free", _RUN, [(7, 3), (12, 4)], 6, 16),
    ("a gap that fits exactly", "no slot is left over", _RUN, [(0, 4), (7, 9)], 3, 16),
    ("behind the last", "only the end is free", _RUN, [(0, 2), (4, 5)], 6, 16),
    ("too small at the end", "the pool ends", _RUN, [(0, 2), (4, 5)], 8, 16),
    ("two small gaps", "two gaps don't add up", _RUN, [(3, 5), (11, 5)], 6, 16),
    ("nothing is reserved", "an empty pool", _RUN, [], 16, 16),
    ("larger than the pool", "an empty pool that is too small", _RUN, [], 17, 16),
)


def other_pool(
    rng: np.random.Generator, _: str, reservations: list[tuple[int, int]], *sizes: int
) -> tuple:
    """Everything several times as large."""
    times = int(rng.integers(2, 100))
    larger = [(times * start, times * n) for start, n in reservations]
    return None, larger, *(times * size for size in sizes)


def gap_run(
    pages: SimpleNamespace, reservations: list[tuple[int, int]], size: int, num_slots: int
) -> Tensor:
    runs = [range(start, start + n) for start, n in reservations]
    start, right = pages.find_gap(runs.copy(), size, num_slots), first_gap(runs, size, num_slots)
    if start is None:
        if right is not None:
            free = f"{slots(right, size)} are free"
            raise AnswerError(f"for size {size}, it returned None, but {free}")
        return torch.tensor([-1])
    if type(start) is not int:
        raise AnswerError(f"it returned {start!r:.60}; it must return a slot's number, or None")
    if start + size > num_slots or start < 0:
        raise AnswerError(
            f"it chose {slots(start, size)}, and the pool has slots 0 to {num_slots - 1}"
        )
    for run in runs:
        if taken := range(max(run.start, start), min(run.stop, start + size)):
            raise AnswerError(f"it chose {slots(start, size)}, but slot {taken[0]} is reserved")
    if start != right:
        raise AnswerError(f"it chose slot {start}; the first gap that fits begins at slot {right}")
    return torch.tensor([start])


def slots(first: int, size: int) -> str:
    return f"slots {first} to {first + size - 1}"


def first_gap(runs: Sequence[range], size: int, num_slots: int) -> int | None:
    """Mark the slots one by one, and look for free ones side by side."""
    pool = bytearray(num_slots)
    for run in runs:
        pool[run.start : run.stop] = b"#" * len(run)
    found = pool.find(bytes(size))
    return None if found < 0 else found


def slots_marked(reservations: list[tuple[int, int]], size: int, num_slots: int) -> Tensor:
    runs = [range(start, start + n) for start, n in reservations]
    found = first_gap(runs, size, num_slots)
    return torch.tensor([-1 if found is None else found])


# What a request wastes ----------------------------------------------------------------------------

KINDS = "tokens", "later", "never"
_KINDS = "Each slot that it holds has a token, will have one, or never will."
WASTE_CASES = (
    # name, what it isolates, what its failure means, slots, tokens, tokens at its end
    ("room for the longest", "much is never used", _KINDS, 2048, 100, 358),
    ("room for exactly its tokens", "nothing is never used", _KINDS, 358, 100, 358),
    ("blocks, and many tokens to come", "only the next tokens have slots", _KINDS, 112, 100, 358),
    ("its last block", "the rest of the block is never used", _KINDS, 368, 355, 358),
    ("all its tokens", "nothing comes later", _KINDS, 2048, 358, 358),
)


def other_request(rng: np.random.Generator, _: str, *lens: int) -> tuple:
    times = int(rng.integers(2, 50))
    return None, *(times * n for n in lens)


def waste_run(pages: SimpleNamespace, *numbers: int) -> Tensor:
    found, right = whole_numbers(called(pages.waste_of, *numbers), 3), slots_one_by_one(*numbers)
    for name, one, wanted in zip(KINDS, found, right.tolist(), strict=True):
        if one != wanted:
            held = f": it holds only {numbers[0]} slots" if sum(found[:2]) > numbers[0] else ""
            raise AnswerError(f"{name} should be {wanted}, is {one}{held}")
    return torch.tensor(found)


def slots_one_by_one(num_slots: int, num_tokens: int, final_len: int) -> Tensor:
    kinds = [(slot >= num_tokens) + (slot >= final_len) for slot in range(num_slots)]
    return torch.tensor([kinds.count(kind) for kind in range(3)])


# Blocks -------------------------------------------------------------------------------------------

_PARTLY = "A block that is partly filled counts too."
BLOCKS_CASES = (
    # name, what it isolates, what its failure means, tokens, block_size
    ("more than a block", "the last block is not full", _PARTLY, 17, 16),
    ("exactly a block", "the last block is full", _PARTLY, 16, 16),
    ("exactly two blocks", "the last block is full", _PARTLY, 32, 16),
    ("less than half a block", "one block, hardly used", _PARTLY, 1, 8),
    ("blocks of one", "a block per token", _PARTLY, 9, 1),
    ("no token", "no token, no block", _PARTLY, 0, 8),
)


def other_tokens(rng: np.random.Generator, _: str, num_tokens: int, block_size: int) -> tuple:
    """Some full blocks more, unless there is no token; then blocks of another size."""
    if not num_tokens:
        return None, 0, int(rng.integers(1, 64))
    return None, num_tokens + block_size * int(rng.integers(1, 9)), block_size


def blocks_run(pages: SimpleNamespace, *numbers: int) -> Tensor:
    return results_of(pages.num_blocks, [numbers])


def blocks_one_by_one(num_tokens: int, block_size: int) -> Tensor:
    """Take blocks until the tokens fit."""
    return torch.tensor([len(range(0, num_tokens, block_size))])


# A pool of blocks ---------------------------------------------------------------------------------

Calls = tuple[tuple[int, int], ...]  # (number of a request, its tokens) of each call of store
BLOCK_SIZE = 4
_STORE = "A request takes as many blocks as it lacks, or none at all."
STORE_CASES = (
    # name, what it isolates, what its failure means, blocks, calls
    ("two prompts", "one of them fills its blocks", _STORE, 6, ((0, 8), (1, 3))),
    ("a token more", "it fits into the last block", _STORE, 6, ((0, 6), (1, 3), (0, 7))),
    ("a new block", "the last block was full", _STORE, 6, ((0, 8), (1, 3), (0, 9), (1, 4))),
    ("a prompt without room", "one block is free, two are needed", _STORE, 4, ((0, 9), (1, 6))),
    (
        "a token without room",
        "none is free, and one is needed",
        _STORE,
        3,
        ((0, 8), (1, 4), (0, 9)),
    ),
    ("taking the last block", "exactly as many are free", _STORE, 3, ((0, 4), (1, 8))),
)


def other_calls(rng: np.random.Generator, _: str, blocks: int, calls: Calls) -> tuple:
    """A pool some blocks larger, which another request has taken."""
    more = int(rng.integers(1, 9))
    return None, blocks + more, ((2, more * BLOCK_SIZE), *calls)


def store_run(pages: SimpleNamespace, blocks: int, calls: Calls) -> Tensor:
    memory, sizes = pages.Blocks(blocks * BLOCK_SIZE, BLOCK_SIZE), Counter()
    for number, num_tokens in calls:
        before, free = {n: [*table] for n, table in memory.tables.items()}, [*memory.free_blocks]
        lacks = len(range(0, num_tokens, BLOCK_SIZE)) - sizes[number]
        has_room = pages.store(memory, number, num_tokens)
        call = f"store(memory, {number}, {num_tokens})"
        if not isinstance(has_room, bool):
            raise AnswerError(f"{call} returned {has_room!r:.60}; it must return True or False")
        if has_room != (lacks <= len(free)):
            words = f"blocks that request {number} lacks: {lacks}; free: {len(free)}"
            raise AnswerError(f"{call} returned {has_room}; {words}")
        if has_room:
            sizes[number] += lacks
            require_kept(memory, number, before)
        elif (memory.tables, memory.free_blocks) != (before, free):
            raise AnswerError(f"{call} returned False, and has changed {changed(memory, before)}")
        require_one_place(memory, blocks)
        if (found := len(memory.tables.get(number, []))) != sizes[number]:
            words = f"for {num_tokens} tokens it must be {sizes[number]}"
            raise AnswerError(f"after {call}, its table has length {found}; {words}")
        if has_room and lacks:
            require_from_the_end(memory, number, free, lacks)
    return whose_blocks(memory.tables, memory.free_blocks)


def require_from_the_end(memory: Any, number: int, free: list[int], lacks: int) -> None:
    """Raises AnswerError unless the last free blocks were taken, one after another."""
    found, right = memory.tables[number][-lacks:], free[::-1][:lacks]
    if found != right:
        words = f"from the end of the free blocks, {free}, it gets {right} in this order"
        raise AnswerError(f"request {number} got blocks {found}; {words}")
    if memory.free_blocks != free[:-lacks]:
        words = f"they are {memory.free_blocks}, and should be {free[:-lacks]}"
        raise AnswerError(f"the other free blocks were reordered: {words}")


def changed(memory: Any, before: dict[int, list[int]]) -> str:
    for number, table in memory.tables.items():
        if table != before.get(number):
            return f"the blocks of request {number}: {before.get(number, 'none')} became {table}"
    return "the free blocks" if memory.tables == before else "whose blocks are whose"


def require_kept(memory: Any, number: int, before: dict[int, list[int]]) -> None:
    """Raises AnswerError if a request lost a block that has tokens in it."""
    for one, table in before.items():
        found = memory.tables.get(one)
        if not isinstance(found, list):
            raise AnswerError(f"memory.tables[{one}] is {found!r:.60}; it must be a list of blocks")
        if found[: len(table)] != table:
            raise AnswerError(
                f"request {one} had its tokens in blocks {table}, and now has {found}: "
                "K and V of its first tokens are lost"
            )
        if one != number and found != table:
            raise AnswerError(f"request {one} got blocks, though request {number} asked")
    if not isinstance(memory.tables.get(number), list):
        raise AnswerError(f"request {number} has no list of blocks in memory.tables")


def require_one_place(memory: Any, num_blocks: int) -> None:
    """Raises AnswerError unless each block is free or one request's, once."""
    places: dict[int, list[str]] = {block: [] for block in range(1, num_blocks + 1)}
    for block in memory.free_blocks:
        places.setdefault(block, []).append("in the free blocks")
    for number, table in memory.tables.items():
        for block in table:
            places.setdefault(block, []).append(f"in request {number}'s")
    for block, found in places.items():
        if not 1 <= block <= num_blocks:
            raise AnswerError(f"block {block} is {found[0]}; the pool has blocks 1 to {num_blocks}")
        if not found:
            raise AnswerError(f"block {block} is lost: it is neither free nor a request's")
        if len(found) > 1:
            raise AnswerError(f"block {block} is in two places: {found[0]} and {found[1]}")


def enough_blocks(blocks: int, calls: Calls) -> Tensor:
    """What each request needs, as far as there is room, from the end of the free blocks."""
    free = [*range(blocks, 0, -1)]
    tables: dict[int, list[int]] = {number: [] for number, _ in calls}
    for number, num_tokens in calls:
        lacks = len(range(0, num_tokens, BLOCK_SIZE)) - len(tables[number])
        if lacks <= len(free):
            tables[number] += [free.pop() for _ in range(lacks)]
    return whose_blocks(tables, free)


def whose_blocks(tables: dict[int, list[int]], free: list[int]) -> Tensor:
    """[blocks + 1] of each block: 0 if it is free, else the number of its request + 1, and behind
    the comma its place in the table."""
    whose = torch.zeros(1 + len(free) + sum(map(len, tables.values())))
    for number, table in tables.items():
        for place, block in enumerate(table):
            whose[block] = number + 1 + place / 1000
    return whose


def after_calls(pages: SimpleNamespace, blocks: int, calls: Calls) -> Any:
    memory = pages.Blocks(blocks * BLOCK_SIZE, BLOCK_SIZE)
    for number, num_tokens in calls:
        pages.store(memory, number, num_tokens)
    return memory


def blocks_in_use(pages: SimpleNamespace, *numbers: Any) -> dict[str, int]:
    return {"blocks in use": numbers[0] - len(after_calls(pages, *numbers).free_blocks)}


def store_drawn(pages: SimpleNamespace, blocks: int, calls: Calls) -> "Frame":
    return drawn(after_calls(pages, blocks, calls), dict(calls))


def drawn(memory: Any, num_tokens: dict[int, int], caption: str = "") -> "Frame":
    """The pool; a block that two requests have is counted twice."""
    from pa_tutorial.viz.blocks import frame_of

    tables = {n: [*table] for n, table in sorted(memory.tables.items())}
    counts = Counter(block for table in tables.values() for block in table)
    last = max([*memory.free_blocks, *counts, memory.num_slots // memory.block_size])
    sequences = {
        str(n): ([ord(str(n))] * num_tokens[n], table) for n, table in tables.items() if table
    }
    ref_counts = [counts[block] for block in range(last + 1)]
    return frame_of(caption, memory.block_size, ref_counts, sequences, free=memory.free_blocks)


# Preemption ---------------------------------------------------------------------------------------

_YOUNGEST = "The youngest running request gives up its blocks, and waits in front of the others."
PREEMPT_CASES = (
    # name, what it isolates, what its failure means, running, waiting, blocks of each
    (
        "preempting one of three",
        "the youngest is the last of them",
        _YOUNGEST,
        [0, 1, 2],
        [3, 4],
        2,
    ),
    ("preempting out of order", "numbers don't say who is older", _YOUNGEST, [2, 5, 1], [3], 3),
    ("preempting with an empty queue", "it waits alone", _YOUNGEST, [0, 1], [], 1),
    ("preempting the only one", "no request is left running", _YOUNGEST, [4], [5, 6], 2),
)


def other_numbers(
    rng: np.random.Generator, _: str, running: list[int], waiting: list[int], size: int
) -> tuple:
    more = int(rng.integers(1, 90))
    return None, [n + more for n in running], [n + more for n in waiting], size + more % 2


def full_pool(pages: SimpleNamespace, running: list[int], size: int) -> Any:
    """The requests that run have that many blocks each; one more is free."""
    memory = pages.Blocks((len(running) * size + 1) * BLOCK_SIZE, BLOCK_SIZE)
    for number in running:
        memory.tables[number] = [memory.free_blocks.pop() for _ in range(size)]
    return memory


def preempt_run(
    pages: SimpleNamespace, running: list[int], waiting: list[int], size: int
) -> Tensor:
    memory, run, wait = full_pool(pages, running, size), running.copy(), deque(waiting)
    *older, youngest = running
    number = pages.preempt(run, wait, memory)
    if run != older:
        raise AnswerError(
            f"running is {run}; it was {running}, and the youngest, {youngest}, must go"
        )
    if memory.tables.get(youngest):
        raise AnswerError(f"request {youngest} no longer runs, and still has its blocks")
    for one in older:
        if len(memory.tables.get(one, [])) < size:
            raise AnswerError(f"request {one} runs, and its blocks are gone")
    require_one_place(memory, len(running) * size + 1)
    if youngest not in wait:
        raise AnswerError(f"request {youngest} neither runs nor waits: its text is lost")
    if [*wait] != [youngest, *waiting]:
        first = f": it was admitted before {waiting[0]}" if waiting else ""
        raise AnswerError(f"waiting is {[*wait]}; request {youngest} must be first{first}")
    if number != youngest or type(number) is not int:
        raise AnswerError(f"it returned {number!r:.60}; it must return {youngest}, who had to go")
    return torch.tensor([number, *run, *wait, len(memory.free_blocks)])


def the_last_that_runs(running: list[int], waiting: list[int], size: int) -> Tensor:
    """Which it is, those that run, those that wait, and how many blocks are free."""
    *older, youngest = running
    return torch.tensor([youngest, *older, youngest, *waiting, size + 1])


def preempt_drawn(
    pages: SimpleNamespace, running: list[int], waiting: list[int], size: int
) -> "Frame":
    memory, run, wait = full_pool(pages, running, size), running.copy(), deque(waiting)
    pages.preempt(run, wait, memory)
    lists = f"running {run}, waiting {[*wait]}"
    return drawn(memory, dict.fromkeys(running, size * BLOCK_SIZE - 1), lists)


CASES = {
    "find_gap": graded(GAP_CASES, gap_run, slots_marked, ("slot",), other_pool),
    "waste_of": graded(WASTE_CASES, waste_run, slots_one_by_one, ("kind",), other_request),
    "num_blocks": graded(
        BLOCKS_CASES,
        blocks_run,
        blocks_one_by_one,
        lambda *numbers: axes_of_calls("num_blocks", [numbers]),
        other_tokens,
    ),
    "store": graded(
        STORE_CASES,
        store_run,
        enough_blocks,
        ("request",),
        other_calls,
        drawn=store_drawn,
        costs=blocks_in_use,
    ),
    "preempt": graded(
        PREEMPT_CASES,
        preempt_run,
        the_last_that_runs,
        ("request",),
        other_numbers,
        drawn=preempt_drawn,
    ),
}
