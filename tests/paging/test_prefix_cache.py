"""Named blocks: their hash, looking before appending, and forgetting: what the engine needs."""

import pytest

from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator, chained_hash
from tests.paging.block_helpers import BLOCK_SIZE, sequence, snapshot, words

BOTH = pytest.mark.parametrize("allocator_class", [BlockAllocator, PrefixCachingAllocator])


def test_the_hash_depends_on_all_that_k_and_v_depend_on() -> None:
    contents = [(None, (1, 2)), (0, (1, 2)), (7, (1, 2)), (None, (2, 1)), (None, (1,))]
    hashes = [chained_hash(*content, extra) for content in contents for extra in (None, "a")]
    assert len(set(hashes)) == len(hashes)


@BOTH
@pytest.mark.parametrize("num_known", [0, 3, 4, 8, 11])
@pytest.mark.parametrize("num_before", [0, 1, 4])
@pytest.mark.parametrize("num_new", [1, 4, 6, 9])
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
