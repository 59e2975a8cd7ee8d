"""Allocator and block tables: counts by hand, refusals with their words, and batches.

What operations do to one another is told by the stories (tests/checks/test_stories.py) and by
random operations (test_block_machine.py).
"""

from collections.abc import Callable

import pytest
import torch

from pa_tutorial.paging.allocator import NULL_BLOCK, Admission, BlockAllocator
from pa_tutorial.paging.block_pages import BlockPages
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.errors import OutOfBlocks, TableTooLong, UnknownBlock, UseAfterFree
from pa_tutorial.paging.pages import padded
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from tests.paging.block_helpers import BLOCK_SIZE, sequence, snapshot, words

BOTH = pytest.mark.parametrize("allocator_class", [BlockAllocator, PrefixCachingAllocator])


@BOTH
def test_the_block_that_was_freed_last_is_given_out_next(allocator_class) -> None:
    pool = allocator_class(6)
    blocks = [pool.allocate() for _ in range(4)]
    assert blocks == [1, 2, 3, 4]  # never the null block
    for block in (blocks[1], blocks[3]):
        pool.free(block)
    assert [pool.allocate(), pool.allocate()] == [blocks[3], blocks[1]]


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


def caching() -> BlockTable:
    return sequence(PrefixCachingAllocator(6), words(0, 9))


@pytest.mark.parametrize(
    ("make", "operation", "arguments", "error", "message"),
    [
        (caching, "slide", [0], ValueError, "window is 0; it mus"),
        (caching, "move_to", [9], TypeError, "allocator is of type int; it must be a BlockAlloc"),
        (caching, "append", [words(50, 13)], OutOfBlocks, "blocks needed: 3; free: 2 of 5"),
        (caching, "move_to", [BlockAllocator(3)], OutOfBlocks, "needed: 3; free: 2 of 2"),
        (windowed, "move_to", [BlockAllocator(6)], ValueError, "has freed blocks"),
        (lambda: windowed().allocator, "free", [6], UnknownBlock, "block is 6; .* 1 to 5"),
        (lambda: windowed().allocator, "share", [5], UseAfterFree, "block 5 is free"),
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
def test_impossible_pools_are_refused(allocator_class) -> None:
    for num_blocks in (1, 10**12):
        with pytest.raises(ValueError, match=f"num_blocks is {num_blocks}; it must be at least 2"):
            allocator_class(num_blocks)
    for watermark in (-1, 6):
        with pytest.raises(ValueError, match=f"watermark is {watermark}; it must be 0 to 5"):
            allocator_class(6, watermark)


def test_an_extra_that_cannot_be_hashed_is_refused_when_the_table_is_made() -> None:
    for extra in ([1], (1, [2])):
        with pytest.raises(TypeError, match="; it must be hashable"):
            BlockTable(BlockAllocator(6), BLOCK_SIZE, extra)


@BOTH
def test_operations_on_a_freed_sequence_are_refused(allocator_class) -> None:
    """Appending, forking and freeing: a story."""
    table = sequence(pool := allocator_class(6), words(0, 6))
    table.fork()
    table.free()
    before = snapshot(pool, table)
    others = {"look_up": [7], "slide": 3, "move_to": pool}
    for operation, argument in others.items():
        with pytest.raises(UseAfterFree, match="the sequence was freed"):
            getattr(table, operation)(argument)
        assert snapshot(pool, table) == before


# Block tables of a batch


def test_tables_of_a_batch_are_padded_with_the_null_block() -> None:
    tables = [[3, 1, 2], [], [4]]
    for width, length in ((None, 3), (3, 3), (5, 5)):
        batch = padded(tables, width)
        assert batch.dtype == torch.int32
        assert batch.tolist() == [[*row, *[NULL_BLOCK] * (length - len(row))] for row in tables]
    assert padded([]).shape == (0, 0)
    assert padded([], 4).shape == (0, 4)
    assert padded([[]], 0).shape == (1, 0)
    with pytest.raises(TableTooLong, match="a table has 3 blocks, which don't fit"):
        padded(tables, 2)


# BlockPages


def test_pages_know_sequences_by_their_names() -> None:
    pages = BlockPages(9, BLOCK_SIZE)
    assert pages.append("a", words(0, 6)).slots == [4, 5, 6, 7, 8, 9]
    pages.fork("a", ("b", 1))
    assert pages.append(("b", 1), [50]).copies == [(2, 3)]
    assert pages.tables([("b", 1), "a"]).tolist() == [[1, 3], [1, 2]]
    pages.table("a").append(7)  # a copy
    assert pages.table("a") == [1, 2]
    with pytest.raises(ValueError, match="new is 'a'; it must be a name that no sequence has"):
        pages.fork(("b", 1), "a")
    pages.free("a")
    for operation in (pages.table, pages.free, pages.forget, lambda name: pages.fork(name, "c")):
        with pytest.raises(KeyError):
            operation("a")
    assert pages.num_free == 6


def test_a_new_sequence_that_is_refused_is_not_there() -> None:
    pages = BlockPages(3, BLOCK_SIZE)
    with pytest.raises(OutOfBlocks):
        pages.append("a", words(0, 9))
    with pytest.raises(KeyError):
        pages.table("a")


def test_known_tokens_need_no_room_until_they_are_forgotten() -> None:
    pages = BlockPages(5, BLOCK_SIZE, watermark=1)
    assert pages.num_usable == 3
    pages.append("a", words(0, 9))
    assert pages.admit(words(0, 9)) is Admission.LATER  # one block, and the watermark
    assert pages.admit(words(0, 8)) is Admission.NOW
    assert pages.num_found("b", words(0, 9)) == 8
    pages.forget("a")
    assert pages.num_found("b", words(0, 9)) == 0
    assert pages.admit(words(0, 13)) is Admission.NEVER
