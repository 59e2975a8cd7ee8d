"""Allocator and block tables: counts by hand, refusals with their words, and batches.

What operations do to one another is told by the stories (tests/checks/test_stories.py) and by
random operations (test_block_machine.py).
"""

from collections.abc import Callable

import pytest
import torch
from block_helpers import BLOCK_SIZE, sequence, snapshot, words

from pa_tutorial.paging.allocator import NULL_BLOCK, Admission, BlockAllocator
from pa_tutorial.paging.block_table import BlockTable, padded_block_tables
from pa_tutorial.paging.errors import (
    BlocksInUse,
    DoubleFree,
    OutOfBlocks,
    TableTooLong,
    UnknownBlock,
    UseAfterFree,
)
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator

BOTH = pytest.mark.parametrize("allocator_class", [BlockAllocator, PrefixCachingAllocator])


@BOTH
def test_the_block_that_was_freed_last_is_given_out_next(allocator_class) -> None:
    pool = allocator_class(6)
    blocks = [pool.allocate() for _ in range(4)]
    assert blocks == [1, 2, 3, 4]  # never the null block
    for block in (blocks[1], blocks[3]):
        pool.free(block)
    assert [pool.allocate(), pool.allocate()] == [blocks[3], blocks[1]]


@BOTH
@pytest.mark.parametrize("num_tokens", range(6))
@pytest.mark.parametrize("more", range(10))
@pytest.mark.parametrize("forked", [False, True])
def test_blocks_needed_are_the_blocks_that_an_append_takes(
    allocator_class, num_tokens, more, forked
) -> None:
    pool = allocator_class(8)
    table = sequence(pool, words(0, num_tokens))
    if forked:
        table.fork()
    needed, free = table.blocks_needed(more), pool.num_free
    appended = table.append(words(50, more))
    assert free - pool.num_free == needed
    assert len(appended.copies) == (forked and more > 0 and num_tokens % BLOCK_SIZE > 0)


# vLLM, tests/core/block/test_block_manager.py
@BOTH
@pytest.mark.parametrize(
    ("watermark", "held", "needed", "expected"),
    [
        (0, 0, 10, Admission.NOW),
        (0, 0, 11, Admission.NEVER),
        (0, 1, 10, Admission.LATER),
        (2, 0, 8, Admission.NOW),
        (2, 0, 9, Admission.NEVER),
        (2, 5, 3, Admission.NOW),
        (2, 5, 4, Admission.LATER),
        (2, 9, 0, Admission.LATER),
        (2, 10, 9, Admission.NEVER),
    ],
)
def test_a_prompt_starts_now_later_or_never(
    allocator_class, watermark, held, needed, expected
) -> None:
    pool = allocator_class(11, watermark)
    for _ in range(held):
        pool.allocate()
    before = snapshot(pool)
    assert pool.can_allocate(needed) is expected  # every Admission is true as a condition
    assert snapshot(pool) == before


def test_swapping_in_copies_only_what_the_pool_does_not_have() -> None:
    device, host = PrefixCachingAllocator(8), PrefixCachingAllocator(8)
    table = sequence(device, words(0, 10))
    out = table.move_to(host)
    assert [destination for _, destination in out] == table.blocks
    assert [source for source, _ in table.move_to(device)] == [out[2][1]]


# Refusals: a clear error, and everything as it was


def windowed() -> BlockTable:
    """A sequence of which a block has slid out."""
    table = sequence(BlockAllocator(6), words(0, 9))
    table.slide(3)
    return table


@pytest.mark.parametrize(
    ("make", "operation", "arguments", "error", "message"),
    [
        (lambda: sequence(BlockAllocator(6), [1]), "slide", [0], ValueError, "window is 0; it mus"),
        (lambda: BlockTable(BlockAllocator(6), 4), "append", [[3, 4.0]], TypeError, "float"),
        (lambda: BlockTable(BlockAllocator(6), 4), "blocks_needed", [-3], ValueError, "is -3; it"),
        (windowed, "move_to", [BlockAllocator(6)], ValueError, "has let go of blocks"),
        (lambda: BlockAllocator(4), "can_allocate", [-5], ValueError, "num_blocks is -5; it must"),
        (lambda: windowed().allocator, "free", [6], UnknownBlock, "block is 6; .* blocks 1 to 5"),
        (lambda: windowed().allocator, "share", [0], UnknownBlock, "block is 0; .* blocks 1 to 5"),
        (lambda: windowed().allocator, "free", [5], DoubleFree, "block 5 is held by nobody"),
        (lambda: windowed().allocator, "share", [5], UseAfterFree, "block 5 is held by nobody"),
        (
            lambda: sequence(PrefixCachingAllocator(6), words(0, 9)).allocator,
            "reset",
            [],
            BlocksInUse,
            "3 blocks are held",
        ),
    ],
)
def test_a_refusal_says_why_and_changes_nothing(
    make: Callable, operation, arguments, error, message
) -> None:
    thing = make()
    before = snapshot(thing)
    with pytest.raises(error, match=message):
        getattr(thing, operation)(*arguments)
    assert snapshot(thing) == before


@BOTH
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1,), "num_blocks is 1; it must be at least 2"),
        ((6, -1), "watermark is -1; it must be 0 to 5"),
        ((6, 6), "watermark is 6; it must be 0 to 5"),
    ],
)
def test_impossible_pools_are_refused(allocator_class, arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        allocator_class(*arguments)


@BOTH
@pytest.mark.parametrize(
    ("operation", "arguments", "error"),
    [
        ("append", ([7],), UseAfterFree),
        ("append", ([],), UseAfterFree),
        ("look_up", ([7],), UseAfterFree),
        ("fork", (), UseAfterFree),
        ("slide", (3,), UseAfterFree),
        ("move_to", (BlockAllocator(6),), UseAfterFree),
        ("blocks_needed", (1,), UseAfterFree),
        ("free", (), DoubleFree),
    ],
)
def test_a_freed_sequence_is_not_used_again(allocator_class, operation, arguments, error) -> None:
    pool = allocator_class(6)
    table = sequence(pool, words(0, 6))
    table.fork()
    table.free()
    before = snapshot(pool, table)
    with pytest.raises(error, match="the sequence was freed"):
        getattr(table, operation)(*arguments)
    assert snapshot(pool, table) == before


@pytest.mark.parametrize(
    ("num_blocks", "others", "is_held", "own", "forks", "new"),
    [
        pytest.param(4, 0, True, 10, 1, [20], id="copy_on_write"),
        pytest.param(5, 0, True, 10, 2, words(20, 3), id="copy_on_write_and_more_in_a_fork"),
        pytest.param(5, 0, True, 3, 0, words(20, 14), id="many_blocks"),
        pytest.param(5, 16, False, 0, 0, [*words(0, 12), *words(50, 5)], id="revives_cached_ones"),
        pytest.param(5, 12, True, 0, 0, [*words(0, 12), *words(50, 5)], id="shares_held_ones"),
    ],
)
def test_running_out_of_blocks_in_the_middle_changes_nothing(
    num_blocks, others, is_held, own, forks, new
) -> None:
    pool = PrefixCachingAllocator(num_blocks)
    other = sequence(pool, words(0, others))
    if not is_held:
        other.free()
    tables = [sequence(pool, words(0, own))]
    for _ in range(forks):
        tables.append(tables[-1].fork())
    before = snapshot(pool, other, *tables)
    for _ in range(2):
        with pytest.raises(OutOfBlocks, match=r"needed: \d; free: \d of \d"):
            tables[-1].append(new)
        assert snapshot(pool, other, *tables) == before


@pytest.mark.parametrize("known", [0, 8])  # tokens that the other pool has already, in its cache
def test_a_move_to_a_pool_without_room_changes_nothing(known) -> None:
    device, host = PrefixCachingAllocator(6), PrefixCachingAllocator(4)
    sequence(host, words(0, known)).free()
    things = [device, host, sequence(host, [50]), table := sequence(device, words(0, 10))]
    things.append(table.fork())
    before = snapshot(*things)
    with pytest.raises(OutOfBlocks, match="needed: 3; free: 2 of 3"):
        table.move_to(host)
    assert snapshot(*things) == before


# Block tables of a batch


def test_tables_of_a_batch_are_padded_with_the_null_block() -> None:
    pool = BlockAllocator(9)
    tables = [sequence(pool, words(0, count)) for count in (9, 0, 4)]
    for width, padded in ((None, 3), (3, 3), (5, 5)):
        batch = padded_block_tables(tables, width)
        assert batch.dtype == torch.int32
        assert batch.tolist() == [
            table.blocks + [NULL_BLOCK] * (padded - len(table.blocks)) for table in tables
        ]
    assert padded_block_tables([]).shape == (0, 0)
    assert padded_block_tables([], 4).shape == (0, 4)
    assert padded_block_tables(tables[1:2]).shape == (1, 0)


def test_a_batch_that_does_not_fit_or_is_not_of_one_pool_is_refused() -> None:
    pool = BlockAllocator(9)
    tables = [sequence(pool, words(0, 9)), sequence(pool, [2])]
    with pytest.raises(TableTooLong, match="a table names 3 blocks; width is 2"):
        padded_block_tables(tables, 2)
    for stranger in (sequence(BlockAllocator(9), [3]), BlockTable(pool, 2 * BLOCK_SIZE)):
        with pytest.raises(ValueError, match="different pools or block sizes"):
            padded_block_tables([*tables, stranger])
    tables[1].free()
    with pytest.raises(UseAfterFree, match="the sequence was freed"):
        padded_block_tables(tables)
