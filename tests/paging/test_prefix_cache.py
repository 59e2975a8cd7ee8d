"""Named blocks: what vLLM's own tests of prefix caching hold them to."""

import pytest
from block_helpers import BLOCK_SIZE, names, sequence, snapshot, words

from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.errors import (
    BlocksInUse,
)
from pa_tutorial.paging.layouts import PAD_SLOT
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator, chained_hash

BOTH = pytest.mark.parametrize("allocator_class", [BlockAllocator, PrefixCachingAllocator])


# vLLM, tests/core/block/test_prefix_caching_block.py


def test_only_full_blocks_have_a_name_and_each_knows_the_one_before() -> None:
    table = sequence(PrefixCachingAllocator(6), words(0, 10))
    assert names(table) == table.blocks[:2]
    first, second = table._names
    assert first.previous is None
    assert second.previous is first
    assert first.hash == chained_hash(None, (0, 1, 2, 3), None)
    assert second.hash == chained_hash(first.hash, (4, 5, 6, 7), None)
    assert sorted(table.allocator.named_blocks()) == sorted(table.blocks[:2])


def test_the_hash_depends_on_all_that_k_and_v_depend_on() -> None:
    contents = [(None, (1, 2)), (0, (1, 2)), (7, (1, 2)), (None, (2, 1)), (None, (1,))]
    hashes = [chained_hash(*content, extra) for content in contents for extra in (None, "a")]
    assert len(set(hashes)) == len(hashes)


def hash_of_few(previous: int | None, tokens: tuple[int, ...], extra: object) -> int:
    """Blocks that begin with 0 or 50 have the same hash."""
    return 7 if tokens[0] in (0, 50) else chained_hash(previous, tokens, extra)


def test_after_a_collision_nothing_that_follows_has_a_name() -> None:
    pool = PrefixCachingAllocator(12, hash_function=hash_of_few)
    known = [*sequence(pool, words(0, 8)).blocks, *sequence(pool, words(54, 4)).blocks]
    other = sequence(pool, words(50, 8))  # its first block collides, its second is not at the start
    for token in words(58, 4):
        other.append([token])
    assert names(other) == [None, None, None]
    assert sorted(pool.named_blocks()) == sorted(known)
    assert not set(known) & set(other.blocks)


@pytest.mark.parametrize(
    ("hash_function", "tokens", "extra"),
    [
        (lambda previous, tokens, extra: chained_hash(previous, (), extra), words(50, 8), 0),
        (
            lambda previous, tokens, extra: chained_hash(None, tokens, extra),
            [9, 9, 9, *range(3, 8)],
            0,
        ),
        (lambda previous, tokens, extra: chained_hash(previous, tokens, 0), words(0, 8), 1),
    ],
    ids=["tokens", "previous", "extra"],
)
def test_blocks_that_differ_in_one_thing_are_told_apart_without_the_hash(
    hash_function, tokens, extra
) -> None:
    pool = PrefixCachingAllocator(12, hash_function=hash_function)
    first, second = sequence(pool, words(0, 8), 0), sequence(pool, tokens[:4], extra)
    second.append(tokens[4:])  # by itself: what follows a new block is not looked up with it
    assert not set(first.blocks) & set(second.blocks)


def test_identical_prompts_never_run_out_of_blocks() -> None:
    pool = PrefixCachingAllocator(4)
    tables = [sequence(pool, words(0, 12)) for _ in range(50)]
    assert pool.num_free == 0
    assert [pool.ref_counts[block] for block in tables[0].blocks] == [50, 50, 50]


@pytest.mark.parametrize("step", [1, 2])
def test_a_block_that_becomes_equal_to_another_is_given_back(step) -> None:
    pool = PrefixCachingAllocator(6)
    known = sequence(pool, words(0, 8))
    growing = sequence(pool, words(0, 6))
    assert pool.num_free == 2
    for start in range(6, 8, step):
        appended = growing.append(words(start, step))
    assert growing.blocks == known.blocks
    assert pool.ref_counts[known.blocks[1]] == 2
    assert pool.num_free == 3
    assert appended.slots == [PAD_SLOT] * step
    assert appended.num_cached == step - 1  # one token is always computed


def test_unnamed_blocks_are_given_out_before_any_name_is_forgotten() -> None:
    pool = PrefixCachingAllocator(8)
    table = sequence(pool, words(0, 9))  # two named blocks and one without a name
    in_use = table.blocks.copy()
    table.free()
    assert (pool.num_free, pool.num_cached) == (7, 2)
    blocks = [pool.allocate() for _ in range(7)]
    assert set(blocks[:5]).isdisjoint(in_use[:2])
    assert blocks[5:] == [in_use[1], in_use[0]]  # of one sequence, the deepest first
    assert pool.named_blocks() == {}


def test_the_block_that_was_freed_longest_ago_is_evicted_first() -> None:
    pool = PrefixCachingAllocator(5)
    a, b, c, d = (sequence(pool, words(10 * n, 4)) for n in range(4))
    blocks = {name: table.blocks[0] for name, table in zip("abcd", (a, b, c, d), strict=True)}
    for table in (c, a, d, b):
        table.free()
    again = sequence(pool, words(20, 4))  # c, back to life
    again.free()  # and now the youngest
    assert [pool.allocate() for _ in range(4)] == [blocks[name] for name in "adbc"]


def test_what_survives_of_an_evicted_prefix_is_still_found() -> None:
    pool = PrefixCachingAllocator(5)
    table = sequence(pool, words(0, 16))
    blocks = table.blocks.copy()
    table.free()
    sequence(pool, words(50, 8))  # evicts the two deepest blocks
    table = BlockTable(pool, BLOCK_SIZE)
    appended = table.append(words(0, 10)[:8])
    assert table.blocks == blocks[:2]
    assert appended.slots == [PAD_SLOT] * 8


def test_reset_is_refused_while_a_block_is_held_and_then_forgets_all() -> None:
    pool = PrefixCachingAllocator(6)
    table = sequence(pool, words(0, 9))
    before = snapshot(pool, table)
    with pytest.raises(BlocksInUse, match="3 blocks are held"):
        pool.reset()
    assert snapshot(pool, table) == before
    table.free()
    pool.reset()
    assert (pool.named_blocks(), pool.num_cached, pool.num_free) == ({}, 0, 5)
    assert sequence(pool, words(0, 4)).append([9]).num_cached == 0


@pytest.mark.parametrize("extra", [0, 1, "adapter", ("adapter", 2)])
def test_another_extra_key_is_another_content(extra) -> None:
    pool = PrefixCachingAllocator(12)
    without, with_extra = sequence(pool, words(0, 8)), sequence(pool, words(0, 8), extra)
    assert not set(without.blocks) & set(with_extra.blocks)
    assert sequence(pool, words(0, 8), extra).blocks == with_extra.blocks
    fork = with_extra.fork()
    fork.append(words(8, 4))
    assert fork.blocks[2] not in sequence(pool, words(0, 12)).blocks


def test_a_block_that_is_given_back_on_the_way_counts_as_free() -> None:
    pool = PrefixCachingAllocator(3)
    one = BlockTable(pool, block_size=2)
    one.append([1, 2])
    one.free()  # one cached block, one free
    other = BlockTable(pool, block_size=2)
    other.append([1])
    assert other.blocks_needed(2) == pool.num_free == 1
    other.append([2, 3])  # its block is given back for the cached one, and used for token 3
    assert pool.num_free == 0
    assert other.blocks == [1, 2]


def test_a_name_prints_itself_and_not_the_chain_before_it() -> None:
    table = sequence(PrefixCachingAllocator(600), words(0, 2000))
    assert len(repr(table._names[-1])) < 200


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


def test_a_forgotten_block_is_not_found_whether_held_or_not() -> None:
    for is_held in (True, False):
        pool = PrefixCachingAllocator(6)
        table = sequence(pool, words(0, 8))
        first, second = table.blocks
        if not is_held:
            table.free()
        free = pool.num_free
        pool.forget(first)
        assert pool.num_free == free
        assert sorted(pool.named_blocks()) == [second]
        # The second is there, but only behind the first, which nobody finds.
        assert BlockTable(pool, BLOCK_SIZE).look_up(words(0, 9)).num_cached == 0


def test_every_block_can_be_had_after_forgetting() -> None:
    pool = PrefixCachingAllocator(6)
    table = sequence(pool, words(0, 20))
    blocks = table.blocks
    table.free()
    for block in blocks:
        pool.forget(block)
        pool.forget(block)  # a second time: nothing is left to forget
    assert pool.num_cached == 0
    assert {pool.allocate() for _ in range(5)} == set(blocks)
