"""Named blocks: their chain and their hash, looking before appending, and forgetting."""

import pytest
from block_helpers import BLOCK_SIZE, sequence, snapshot, words

from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator, chained_hash

BOTH = pytest.mark.parametrize("allocator_class", [BlockAllocator, PrefixCachingAllocator])


# vLLM, tests/core/block/test_prefix_caching_block.py


def test_only_full_blocks_have_a_name_and_each_knows_the_one_before() -> None:
    table = sequence(PrefixCachingAllocator(6), words(0, 10))
    first, second = table._names
    assert [first.block, second.block] == table.blocks[:2]
    assert first.previous is None
    assert second.previous is first
    assert first.hash == chained_hash(None, (0, 1, 2, 3), None)
    assert second.hash == chained_hash(first.hash, (4, 5, 6, 7), None)
    assert sorted(table.allocator.named_blocks()) == sorted(table.blocks[:2])
    assert "previous" not in repr(second), "a chain prints all of itself"


def test_the_hash_depends_on_all_that_k_and_v_depend_on() -> None:
    contents = [(None, (1, 2)), (0, (1, 2)), (7, (1, 2)), (None, (2, 1)), (None, (1,))]
    hashes = [chained_hash(*content, extra) for content in contents for extra in (None, "a")]
    assert len(set(hashes)) == len(hashes)


def test_the_block_that_was_freed_longest_ago_is_evicted_first() -> None:
    pool = PrefixCachingAllocator(5)
    a, b, c, d = (sequence(pool, words(10 * n, 4)) for n in range(4))
    blocks = {name: table.blocks[0] for name, table in zip("abcd", (a, b, c, d), strict=True)}
    for table in (c, a, d, b):
        table.free()
    again = sequence(pool, words(20, 4))  # c, back to life
    again.free()  # and now the youngest
    assert [pool.allocate() for _ in range(4)] == [blocks[name] for name in "adbc"]


# Looking before appending, and forgetting: what the engine needs


@BOTH
@pytest.mark.parametrize("num_known", [0, 3, 4, 7, 8, 11])
@pytest.mark.parametrize("num_before", [0, 2, 4, 6])
@pytest.mark.parametrize("num_new", [1, 2, 4, 6, 9])
@pytest.mark.parametrize("is_held", [True, False])
def test_look_up_says_what_append_does(
    allocator_class, num_known: int, num_before: int, num_new: int, is_held: bool
) -> None:
    pool = allocator_class(20)
    known = sequence(pool, words(0, num_known))
    if not is_held:
        known.free()
    table = sequence(pool, words(0, num_before))
    tokens = words(num_before, num_new)
    before, free = snapshot(pool, table), pool.num_free
    prospect = table.look_up(tokens)
    assert snapshot(pool, table) == before, "looking changes nothing"
    appended = table.append(tokens)
    assert prospect.num_cached == appended.num_cached
    assert prospect.num_blocks == free - pool.num_free


@pytest.mark.parametrize("is_held", [True, False])
def test_a_forgotten_block_is_not_found_whether_held_or_not(is_held: bool) -> None:
    pool = PrefixCachingAllocator(6)
    table = sequence(pool, words(0, 8))
    first, second = table.blocks
    if not is_held:
        table.free()
    free = pool.num_free
    pool.forget(first)
    pool.forget(first)  # a second time: nothing is left to forget
    assert pool.num_free == free
    assert sorted(pool.named_blocks()) == [second]
    assert pool.num_cached == (not is_held)
    # The second is there, but only behind the first, which nobody finds.
    assert BlockTable(pool, BLOCK_SIZE).look_up(words(0, 9)).num_cached == 0
    assert BlockTable(pool, BLOCK_SIZE).look_up([]).num_blocks == 0
    taken = {pool.allocate() for _ in range(free)}  # every free block can be had
    assert len(taken) == free
