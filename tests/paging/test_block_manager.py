"""Allocator, block tables and BlockPages: refusals, names, and what admission counts.

What operations do to one another is told by the stories (tests/checks/test_stories.py) and by
random operations (test_block_machine.py).
"""

from collections.abc import Callable

import pytest

from pa_tutorial.paging.allocator import Admission, BlockAllocator
from pa_tutorial.paging.block_pages import BlockPages
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.errors import OutOfBlocks, TableTooLong, UnknownBlock, UseAfterFree
from pa_tutorial.paging.pages import padded
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from tests.paging.block_helpers import BLOCK_SIZE, sequence, snapshot, words


def windowed() -> BlockTable:
    """A sequence of which a block has slid out."""
    table = sequence(BlockAllocator(6), words(0, 9))
    table.slide(3)
    return table


@pytest.mark.parametrize(
    ("make", "operation", "arguments", "error", "message"),
    [
        (windowed, "slide", [0], ValueError, "window is 0"),
        (windowed, "move_to", [BlockAllocator(6)], ValueError, "slide"),
        (windowed, "append", [words(0, 20)], OutOfBlocks, "needed: 5; free: 3 of 5"),
        (lambda: windowed().allocator, "free", [6], UnknownBlock, "block is 6; .* 1 to 5"),
        (lambda: windowed().allocator, "share", [5], UseAfterFree, "block 5"),
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


def test_operations_on_a_freed_sequence_are_refused() -> None:
    table = sequence(pool := BlockAllocator(6), words(0, 6))
    table.free()
    before = snapshot(pool, table)
    others = {"look_up": [[7]], "append": [[7]], "fork": [], "slide": [3], "move_to": [pool]}
    for operation, arguments in others.items():
        with pytest.raises(UseAfterFree, match="the sequence was freed"):
            getattr(table, operation)(*arguments)
    assert snapshot(pool, table) == before


@pytest.mark.parametrize("allocator_class", [BlockAllocator, PrefixCachingAllocator])
def test_impossible_pools_are_refused(allocator_class) -> None:
    for sizes, name in (((1,), "num_blocks"), ((6, -1), "watermark"), ((6, 6), "watermark")):
        with pytest.raises(ValueError, match=name):
            allocator_class(*sizes)


def test_an_extra_that_cannot_be_hashed_is_refused_when_the_table_is_made() -> None:
    with pytest.raises(TypeError, match="extra"):
        BlockTable(BlockAllocator(6), BLOCK_SIZE, (1, [2]))


def test_tables_of_a_batch_are_padded_with_the_null_block() -> None:
    assert padded([[3, 1], []], 3).tolist() == [[3, 1, 0], [0, 0, 0]]
    assert padded([], 4).shape == (0, 4)
    with pytest.raises(TableTooLong, match="has 2 blocks"):
        padded([[3, 1], []], 1)


def test_pages_know_sequences_by_their_names() -> None:
    pages = BlockPages(4, BLOCK_SIZE)
    with pytest.raises(OutOfBlocks):  # then it isn't there
        pages.append("b", words(0, 13))
    pages.append("a", words(0, 6))
    pages.table("a").append(7)  # a copy
    assert pages.table("a") == [1, 2]
    with pytest.raises(ValueError, match="new is 'a'"):
        pages.fork("a", "a")
    for operation in (pages.table, pages.free, pages.forget, lambda name: pages.fork(name, "c")):
        with pytest.raises(KeyError):
            operation("b")


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
