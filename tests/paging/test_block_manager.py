"""Allocator, block tables and BlockPages: refusals, names, prefixes, and what admission counts.

What operations do to one another is told by the stories (tests/checks/test_stories.py) and by
random operations (test_block_machine.py).
"""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from pa_tutorial.paging.allocator import Admission, BlockAllocator
from pa_tutorial.paging.block_pages import BlockPages
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.errors import OutOfBlocks, TableTooLong, UnknownBlock, UseAfterFree
from pa_tutorial.paging.pages import padded
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator, chained_hash
from tests.paging.block_helpers import BLOCK_SIZE, sequence, snapshot, words


@pytest.mark.parametrize(
    ("operation", "argument", "error", "message"),
    [
        ("move_to", BlockAllocator(6), ValueError, "slide"),
        ("append", words(0, 20), OutOfBlocks, "needed: 5; free: 3 of 5"),
        ("free", 6, UnknownBlock, "block is 6; .* 1 to 5"),
        ("share", 5, UseAfterFree, "block 5"),
    ],
)
def test_a_refusal_says_why_and_changes_nothing(operation, argument, error, message) -> None:
    table = sequence(pool := BlockAllocator(6), words(0, 9))
    table.slide(3)  # a block slides out
    before = snapshot(pool, table)
    with pytest.raises(error, match=message):
        getattr(pool if operation in ("free", "share") else table, operation)(argument)
    assert snapshot(pool, table) == before


def test_operations_on_a_freed_sequence_are_refused() -> None:
    table = sequence(pool := BlockAllocator(6), words(0, 6))
    table.free()
    before = snapshot(pool, table)
    others = {"look_up": [[7]], "append": [[7]], "fork": [], "slide": [3], "move_to": [pool]}
    for operation, arguments in others.items():
        with pytest.raises(UseAfterFree, match="the sequence was freed"):
            getattr(table, operation)(*arguments)
    assert snapshot(pool, table) == before


def test_tables_of_a_batch_are_padded_with_the_null_block() -> None:
    assert padded([[3, 1], []], 3).tolist() == [[3, 1, 0], [0, 0, 0]]
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
    pages.append("a", words(0, 9))
    assert pages.admit(words(0, 9)) is Admission.LATER  # one block, and the watermark
    assert pages.admit(words(0, 8)) is Admission.NOW
    assert pages.num_found("b", words(0, 9)) == 8
    pages.forget("a")
    assert pages.num_found("b", words(0, 9)) == 0
    assert pages.admit(words(0, 13)) is Admission.NEVER


# Equal in Python; K and V of one aren't those of another.
EXTRAS = [1, True, 1.0, np.int64(1), ("lora", (1,)), ("lora", (True,)), frozenset({1})]


@pytest.mark.parametrize("hash_function", [chained_hash, lambda *_: 7], ids=["chained", "same"])
def test_equal_extras_of_other_types_share_no_block(hash_function: Callable) -> None:
    pool = PrefixCachingAllocator(20, hash_function=hash_function)
    for extra in EXTRAS:
        assert BlockTable(pool, BLOCK_SIZE, extra).append(words(0, 5)).num_cached == 0
    found = [BlockTable(pool, BLOCK_SIZE, extra).look_up(words(0, 5)) for extra in EXTRAS]
    named = len(pool.named_blocks())  # with one hash for all, only the first gets a name
    assert [one.num_cached for one in found] == [4] * named + [0] * (len(EXTRAS) - named)
    with pytest.raises(TypeError, match="extra"):  # which cannot be hashed
        BlockTable(pool, BLOCK_SIZE, (1, [2]))


def test_exactly_the_blocks_of_a_common_prefix_are_found() -> None:
    """Each block is known after the one before it: not after the first one, or after none."""

    def tokens_of(chain: tuple[int, ...]) -> list[int]:
        return [10 * block + place for block in chain for place in range(BLOCK_SIZE)]

    chains = list(product(range(3), repeat=3))
    for known in chains:
        sequence(pool := PrefixCachingAllocator(9), tokens_of(known))
        for asked in chains:
            common = next((place for place in range(3) if known[place] != asked[place]), 3)
            found = BlockTable(pool, BLOCK_SIZE).look_up([*tokens_of(asked), 7]).num_cached
            assert found == common * BLOCK_SIZE, (known, asked)


@pytest.mark.parametrize("is_held", [True, False])
def test_a_forgotten_block_is_not_found_whether_held_or_not(is_held: bool) -> None:
    table = sequence(pool := PrefixCachingAllocator(6), words(0, 8))
    first, second = table.blocks
    if not is_held:
        table.free()
    free = pool.num_free
    for _ in range(2):  # the second time, nothing is left to forget
        pool.forget(first)
        assert (pool.num_free, pool.num_cached) == (free, not is_held)
        assert [*pool.named_blocks()] == [second]
    # The second is there, but only behind the first, which nobody finds.
    assert BlockTable(pool, BLOCK_SIZE).look_up(words(0, 9)).num_cached == 0
    assert len({pool.allocate() for _ in range(free)}) == free  # every free block can be had
