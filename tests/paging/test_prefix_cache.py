"""Named blocks: their hash, looking before appending, and forgetting: what the engine needs."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator, chained_hash
from tests.paging.block_helpers import BLOCK_SIZE, sequence, snapshot, words

BOTH = pytest.mark.parametrize("allocator_class", [BlockAllocator, PrefixCachingAllocator])


# Equal in Python; K and V of one aren't those of another.
EXTRAS = [1, True, 1.0, np.int64(1), frozenset({1}), frozenset({True})]


def test_the_hash_depends_on_all_that_k_and_v_depend_on() -> None:
    contents = [(None, (1, 2)), (0, (1, 2)), (7, (1, 2)), (None, (2, 1)), (None, (1,))]
    hashes = [chained_hash(*content, extra) for content in contents for extra in (None, "a")]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("extras", [EXTRAS, [("lora", (one,)) for one in EXTRAS]], ids=str)
@pytest.mark.parametrize("hash_function", [chained_hash, lambda *_: 7], ids=["chained", "same"])
def test_equal_extras_of_other_types_share_no_block(extras, hash_function) -> None:
    pool = PrefixCachingAllocator(20, hash_function=hash_function)
    for extra in extras:
        assert BlockTable(pool, BLOCK_SIZE, extra).append(words(0, 5)).num_cached == 0
    found = [BlockTable(pool, BLOCK_SIZE, extra).look_up(words(0, 5)) for extra in extras]
    named = len(pool.named_blocks())  # with one hash for all, only the first gets a name
    assert [one.num_cached for one in found] == [4] * named + [0] * (len(extras) - named)


CHAINS = list(product("ABC", repeat=3))


def tokens_of(chain: tuple[str, ...]) -> list[int]:
    return [10 * ord(block) + place for block in chain for place in range(BLOCK_SIZE)]


def token_by_token(pool: PrefixCachingAllocator, tokens: list[int]) -> BlockTable:
    table = BlockTable(pool, BLOCK_SIZE)
    for token in tokens:
        table.append([token])
    return table


def by_a_fork(pool: PrefixCachingAllocator, tokens: list[int]) -> BlockTable:
    """Which copies the second block to write to it, like the sequence that it comes from."""
    origin = sequence(pool, tokens[:6])
    fork = origin.fork()
    fork.append(tokens[6:])
    origin.append([7, 7])
    return fork


def by_a_swap(pool: PrefixCachingAllocator, tokens: list[int]) -> BlockTable:
    table = sequence(PrefixCachingAllocator(6), tokens)
    table.move_to(pool)
    return table


@pytest.mark.parametrize("write", [sequence, token_by_token, by_a_fork, by_a_swap])
def test_exactly_the_blocks_of_a_common_prefix_are_found(write: Callable) -> None:
    """Each block is known after the one before it: not after the first one, or after none."""
    for known in CHAINS:
        pool = PrefixCachingAllocator(9)
        write(pool, tokens_of(known))
        for asked in CHAINS:
            common = next((place for place in range(3) if known[place] != asked[place]), 3)
            found = BlockTable(pool, BLOCK_SIZE).look_up([*tokens_of(asked), 7]).num_cached
            assert found == common * BLOCK_SIZE, (known, asked)


@pytest.mark.parametrize("num_evicted", range(4))
def test_after_an_eviction_the_blocks_before_it_are_found(num_evicted: int) -> None:
    """And none when its number holds other tokens, after the same block or another."""
    pool = PrefixCachingAllocator(4)
    sequence(pool, tokens_of(("A", "B", "C"))).free()
    other = BlockTable(pool, BLOCK_SIZE, extra="other")
    other.append(tokens_of(("A", "B", "C"))[: num_evicted * BLOCK_SIZE])
    for extra, blocks in ((None, 3 - num_evicted), ("other", num_evicted)):
        table = BlockTable(pool, BLOCK_SIZE, extra)
        assert table.look_up([*tokens_of(("A", "B", "C")), 7]).num_cached == blocks * BLOCK_SIZE


@pytest.mark.rest(keep=["True-4-*"])
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
