"""Tables that only grow: what they share, what they keep twice, and what they give back."""

import random

import pytest

from pa_tutorial.paging.append_only import AppendOnlyTable
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.layouts import PAD_SLOT
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator


def pool_and(count: int, block_size: int = 4) -> tuple[PrefixCachingAllocator, list]:
    pool = PrefixCachingAllocator(num_blocks=60)
    return pool, [AppendOnlyTable(pool, block_size) for _ in range(count)]


def test_prompts_share_full_blocks_in_the_same_step() -> None:
    pool, (a, b) = pool_and(2)
    a.append(range(10))
    appended = b.append([*range(8), 99])
    assert b.blocks[:2] == a.blocks[:2]
    assert appended.num_cached == 8
    assert pool.num_usable - pool.num_free == 4


def test_the_block_of_the_last_token_is_computed_again() -> None:
    """vLLM: max_cache_hit_length is num_tokens - 1, in whole blocks."""
    _, (a, b) = pool_and(2)
    a.append(range(8))
    appended = b.append(range(8))
    assert (b.blocks[0] == a.blocks[0], b.blocks[1] == a.blocks[1]) == (True, False)
    assert appended.slots[:4] == [PAD_SLOT] * 4
    assert min(appended.slots[4:]) >= 0


def test_a_block_that_becomes_full_later_stays() -> None:
    """The example of vLLM's document: two copies of EFGH. Our BlockTable joins them."""
    for kind, same in ((AppendOnlyTable, False), (BlockTable, True)):
        pool = PrefixCachingAllocator(num_blocks=20)
        tables = [kind(pool, 4) for _ in range(2)]
        for table in tables:
            table.append(range(6))
            before = list(table.blocks)
            table.append([6])
            table.append([7])
            assert (table.blocks == before) or (same and table is tables[1])
        assert (tables[0].blocks[1] == tables[1].blocks[1]) is same


def test_a_second_chunk_of_a_prompt_is_not_looked_up() -> None:
    _, (a, b) = pool_and(2)
    a.append(range(16))
    b.append(range(6))
    before = list(b.blocks)
    appended = b.append(range(6, 16))
    assert b.blocks[:2] == before
    assert not set(b.blocks[1:]) & set(a.blocks)
    assert min(appended.slots) >= 0


def test_who_comes_later_finds_the_first_copy_and_what_follows_either() -> None:
    _, (a, b, c) = pool_and(3)
    for table in (a, b):
        table.append(range(6))
        table.append([6])
        table.append([7])
    for token in (8, 9, 10, 11):  # b alone goes on: its third block follows its own copy
        b.append([token])
    c.append(range(13))
    assert c.blocks[:3] == [a.blocks[0], a.blocks[1], b.blocks[2]]


def test_the_copy_is_gone_when_its_sequence_ends() -> None:
    pool, (a, b, c) = pool_and(3)
    for table in (a, b):
        table.append(range(6))
        table.append([6])
        table.append([7])
    copy = b.blocks[1]
    b.free()
    assert copy not in pool.named_blocks()
    c.append(range(9))
    assert c.blocks[:2] == a.blocks[:2]


def test_a_preempted_sequence_finds_its_blocks_again_and_its_beginning_longest() -> None:
    """The example of notebook 18: 60 tokens in blocks of 4, in a pool of 29 usable blocks."""
    pool = PrefixCachingAllocator(num_blocks=30)
    preempted, other, again = (AppendOnlyTable(pool, 4) for _ in range(3))
    preempted.append(range(60))
    preempted.free()
    assert again.look_up(range(60)).num_cached == 56
    other.append(range(100, 192))  # takes 23 blocks: the unused ones, then the last ones of the 15
    assert again.look_up(range(60)).num_cached == 24


def test_each_further_prompt_of_full_blocks_takes_one_block() -> None:
    """The example of notebook 18: ABCDEFGH in blocks of 4."""
    _, tables = pool_and(3)
    found = [table.append(b"ABCDEFGH").num_cached for table in tables]
    assert found == [0, 4, 4]
    assert [table.blocks for table in tables] == [[1, 2], [1, 3], [1, 4]]


@pytest.mark.parametrize("seed", range(8))
def test_an_entry_never_changes_and_nothing_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    pool = PrefixCachingAllocator(num_blocks=400)
    tables: list[AppendOnlyTable] = []
    for _ in range(60):
        if not tables or rng.random() < 0.2:
            tables.append(AppendOnlyTable(pool, 3))
            new = [rng.randrange(2) for _ in range(rng.randrange(1, 12))]
            table = tables[-1]
        else:
            table, new = rng.choice(tables), [rng.randrange(2)]
        before = list(table.blocks)
        appended = table.append(new)
        assert table.blocks[: len(before)] == before
        assert not appended.copies
    contents: dict[int, tuple] = {}
    for table in tables:  # a block means the same tokens in every table that names it
        for index, block in enumerate(table.blocks):
            prefix = tuple(table.token_ids[: 3 * (index + 1)])
            assert contents.setdefault(block, prefix) == prefix
    assert pool.num_usable - pool.num_free == len(contents)
    for table in tables:
        table.free()
    assert pool.num_free == pool.num_usable
