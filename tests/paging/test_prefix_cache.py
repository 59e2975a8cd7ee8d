"""Named blocks: extras, prefixes and forgetting. (Stories and random operations have the rest.)"""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator, chained_hash
from tests.paging.block_helpers import BLOCK_SIZE, sequence, words

# Equal in Python; K and V of one aren't those of another.
EXTRAS = [1, True, 1.0, np.int64(1), frozenset({1}), frozenset({True})]


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


def by_a_fork(pool: PrefixCachingAllocator, tokens: list[int]) -> None:
    """Which copies the second block to write to it, like the sequence that it comes from."""
    origin = sequence(pool, tokens[:6])
    origin.fork().append(tokens[6:])
    origin.append([7, 7])


@pytest.mark.parametrize("write", [sequence, by_a_fork])
def test_exactly_the_blocks_of_a_common_prefix_are_found(write: Callable) -> None:
    """Each block is known after the one before it: not after the first one, or after none."""
    for known in CHAINS:
        pool = PrefixCachingAllocator(9)
        write(pool, tokens_of(known))
        for asked in CHAINS:
            common = next((place for place in range(3) if known[place] != asked[place]), 3)
            found = BlockTable(pool, BLOCK_SIZE).look_up([*tokens_of(asked), 7]).num_cached
            assert found == common * BLOCK_SIZE, (known, asked)


@pytest.mark.parametrize("is_held", [True, False])
def test_a_forgotten_block_is_not_found_whether_held_or_not(is_held: bool) -> None:
    pool = PrefixCachingAllocator(6)
    table = sequence(pool, words(0, 8))
    first, second = table.blocks
    if not is_held:
        table.free()
    free = pool.num_free
    for _ in range(2):  # the second time, nothing is left to forget
        pool.forget(first)
        assert (pool.num_free, pool.num_cached, [*pool.named_blocks()]) == (
            free,
            not is_held,
            [second],
        )
    # The second is there, but only behind the first, which nobody finds.
    assert BlockTable(pool, BLOCK_SIZE).look_up(words(0, 9)).num_cached == 0
    assert len({pool.allocate() for _ in range(free)}) == free  # every free block can be had
