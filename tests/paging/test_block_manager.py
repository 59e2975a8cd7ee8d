"""Block tables and BlockPages: what is freed, known, named by an extra, or forgotten.

What operations do to one another, and what is refused, is told by the stories
(tests/checks/test_stories.py) and by random operations (test_block_machine.py).
"""

from collections.abc import Callable

import numpy as np
import pytest

from pa_tutorial.paging.allocator import Admission, BlockAllocator
from pa_tutorial.paging.block_pages import BlockPages
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.errors import UseAfterFree
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator, chained_hash
from tests.paging.block_helpers import snapshot

WORDS = range(9)


def sequence(pool: BlockAllocator, num_tokens: int) -> BlockTable:
    table = BlockTable(pool, 4)
    table.append(WORDS[:num_tokens])
    return table


def test_operations_on_a_freed_sequence_are_refused() -> None:
    table = sequence(pool := BlockAllocator(6), 6)
    table.free()
    before = snapshot(pool, table)
    others = {"look_up": [[7]], "append": [[7]], "fork": [], "slide": [3], "move_to": [pool]}
    for operation, arguments in others.items():
        with pytest.raises(UseAfterFree, match="the sequence was freed"):
            getattr(table, operation)(*arguments)
    assert snapshot(pool, table) == before


def test_known_tokens_need_no_room_until_they_are_forgotten() -> None:
    pages = BlockPages(5, 4, watermark=1)
    pages.append("a", WORDS)
    with pytest.raises(ValueError, match="new is 'a'"):
        pages.fork("a", "a")
    assert pages.admit(WORDS) is Admission.LATER  # one block, and the watermark
    assert pages.admit(WORDS[:8]) is Admission.NOW
    assert pages.num_found("b", WORDS) == 8
    pages.forget("a")
    assert pages.num_found("b", WORDS) == 0
    assert pages.admit(range(13)) is Admission.NEVER


# Equal in Python; K and V of one aren't those of another.
EXTRAS = [1, True, 1.0, np.int64(1), ("lora", (1,)), ("lora", (True,)), frozenset({1})]


@pytest.mark.parametrize("hash_function", [chained_hash, lambda *_: 7], ids=["chained", "same"])
def test_equal_extras_of_other_types_share_no_block(hash_function: Callable) -> None:
    pool = PrefixCachingAllocator(20, hash_function=hash_function)
    assert not any(BlockTable(pool, 4, one).append(WORDS[:5]).num_cached for one in EXTRAS)
    found = [BlockTable(pool, 4, extra).look_up(WORDS[:5]).num_cached for extra in EXTRAS]
    named = len(pool.named_blocks())  # with one hash for all, only the first gets a name
    assert found == [4] * named + [0] * (len(EXTRAS) - named)
    with pytest.raises(TypeError, match="extra"):  # which cannot be hashed
        BlockTable(pool, 4, (1, [2]))


@pytest.mark.parametrize("is_held", [True, False])
def test_a_forgotten_block_is_not_found_whether_held_or_not(is_held: bool) -> None:
    table = sequence(pool := PrefixCachingAllocator(6), 8)
    first, second = table.blocks
    if not is_held:
        table.free()
    free = pool.num_free
    for _ in range(2):  # the second time, nothing is left to forget
        pool.forget(first)
        assert (pool.num_free, pool.num_cached) == (free, not is_held)
        assert [*pool.named_blocks()] == [second]
    # The second is there, but only behind the first, which nobody finds.
    assert BlockTable(pool, 4).look_up(WORDS).num_cached == 0
    assert len({pool.allocate() for _ in range(free)}) == free  # every free block can be had
