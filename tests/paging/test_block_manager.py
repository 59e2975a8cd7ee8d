"""Allocator and block tables: what vLLM's own block tests hold them to, and batches."""

import pytest
import torch
from block_helpers import BLOCK_SIZE, make_cache, sequence, snapshot, words

from pa_tutorial.paging.allocator import NULL_BLOCK, Admission, BlockAllocator
from pa_tutorial.paging.block_table import BlockTable, padded_block_tables
from pa_tutorial.paging.errors import (
    DoubleFree,
    OutOfBlocks,
    TableTooLong,
    UnknownBlock,
    UseAfterFree,
)
from pa_tutorial.paging.kv_cache import swap_blocks
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator

BOTH = pytest.mark.parametrize("allocator_class", [BlockAllocator, PrefixCachingAllocator])


# vLLM, tests/core/block/test_common.py: the reference counter


@BOTH
def test_a_block_is_free_only_when_the_last_reference_is_gone(allocator_class) -> None:
    pool = allocator_class(4)
    block = pool.allocate()
    for expected in (2, 3, 4):
        pool.share(block)
        assert pool.ref_counts[block] == expected
    for expected in (3, 2, 1):
        pool.free(block)
        assert (pool.ref_counts[block], pool.num_free) == (expected, 2)
        assert pool.is_shared(block) is (expected > 1)
    pool.free(block)
    assert (pool.ref_counts[block], pool.num_free) == (0, 3)


@BOTH
@pytest.mark.parametrize("operation", ["free", "share"])
def test_a_free_block_is_not_freed_again_and_not_brought_back(allocator_class, operation) -> None:
    pool = allocator_class(4)
    pool.free(pool.allocate())
    before = snapshot(pool)
    error = {"free": DoubleFree, "share": UseAfterFree}[operation]
    with pytest.raises(error, match="block 1 is held by nobody"):
        getattr(pool, operation)(1)
    assert snapshot(pool) == before


@BOTH
@pytest.mark.parametrize("operation", ["free", "share"])
@pytest.mark.parametrize("block", [NULL_BLOCK, -1, 4])
def test_a_block_that_is_never_given_out_is_refused(allocator_class, operation, block) -> None:
    pool = allocator_class(4)
    for _ in range(3):
        pool.allocate()
    before = snapshot(pool)
    with pytest.raises(UnknownBlock, match=f"block is {block}; .* blocks 1 to 3"):
        getattr(pool, operation)(block)
    assert snapshot(pool) == before


# vLLM, tests/core/block/test_naive_block.py


@BOTH
def test_one_block_more_than_the_pool_has_is_refused(allocator_class) -> None:
    pool = allocator_class(6)
    assert sorted(pool.allocate() for _ in range(5)) == [1, 2, 3, 4, 5]  # never the null block
    before = snapshot(pool)
    with pytest.raises(OutOfBlocks, match="needed: 1; free: 0 of 5"):
        pool.allocate()
    assert snapshot(pool) == before


@BOTH
def test_the_block_that_was_freed_last_is_given_out_next(allocator_class) -> None:
    pool = allocator_class(6)
    blocks = [pool.allocate() for _ in range(4)]
    for block in (blocks[1], blocks[3]):
        pool.free(block)
    assert [pool.allocate(), pool.allocate()] == [blocks[3], blocks[1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1,), "num_blocks is 1; it must be at least 2"),
        ((6, -1), "watermark is -1; it must be 0 to 5"),
        ((6, 6), "watermark is 6; it must be 0 to 5"),
    ],
)
@BOTH
def test_impossible_pools_are_refused(allocator_class, arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        allocator_class(*arguments)


# vLLM, tests/core/block/test_block_table.py


@BOTH
@pytest.mark.parametrize("num_tokens", range(10))
@pytest.mark.parametrize("step", [1, 3, 10])
def test_tokens_take_no_block_before_the_last_one_is_full(
    allocator_class, num_tokens, step
) -> None:
    pool = allocator_class(6)
    table, tokens = BlockTable(pool, BLOCK_SIZE), words(0, num_tokens)
    for start in range(0, num_tokens, step):
        table.append(tokens[start : start + step])
    needed = -(-num_tokens // BLOCK_SIZE)
    assert (len(table.blocks), pool.num_usable - pool.num_free) == (needed, needed)
    table.free()
    assert (table.blocks, pool.num_free) == ([], pool.num_usable)


@BOTH
@pytest.mark.parametrize("num_tokens", [0, 3, 8, 9])
def test_a_fork_takes_no_block_and_shares_every_one(allocator_class, num_tokens) -> None:
    pool = allocator_class(6)
    table = sequence(pool, words(0, num_tokens))
    free = pool.num_free
    fork = table.fork()
    assert fork.blocks == table.blocks
    assert fork.token_ids == table.token_ids
    assert pool.num_free == free
    assert all(pool.ref_counts[block] == 2 for block in table.blocks)


@BOTH
@pytest.mark.parametrize("first_to_go", [0, 1])
def test_freeing_one_side_of_a_fork_changes_nothing_on_the_other(
    allocator_class, first_to_go
) -> None:
    pool = allocator_class(6)
    table = sequence(pool, words(0, 10))
    sides = [table, table.fork()]
    gone, stays = sides[first_to_go], sides[1 - first_to_go]
    before = snapshot(stays)
    gone.free()
    assert snapshot(stays) == before
    assert [pool.ref_counts[block] for block in stays.blocks] == [1, 1, 1]
    stays.free()
    assert pool.num_free == pool.num_usable
    assert not any(pool.ref_counts)


@BOTH
@pytest.mark.parametrize("num_tokens", range(1, 10))
@pytest.mark.parametrize("forks", [0, 1, 2])
@pytest.mark.parametrize("writer", [0, -1])
def test_only_a_shared_block_that_is_not_full_is_copied(
    allocator_class, num_tokens, forks, writer
) -> None:
    pool = allocator_class(8)
    sides = [sequence(pool, words(0, num_tokens))]
    for _ in range(forks):
        sides.append(sides[-1].fork())  # forks of forks
    table = sides.pop(writer)
    static, last = snapshot(*sides), table.blocks[-1]
    appended = table.append([77])
    copied = forks > 0 and num_tokens % BLOCK_SIZE > 0
    assert appended.copies == ([(last, table.blocks[-1])] if copied else [])
    assert appended.slots == [table.blocks[-1] * BLOCK_SIZE + num_tokens % BLOCK_SIZE]
    assert (last in table.blocks) is not copied
    assert pool.ref_counts[table.blocks[-1]] == 1
    assert snapshot(*sides) == static
    for side in (table, *sides):
        side.free()
    assert pool.num_free == pool.num_usable


@BOTH
@pytest.mark.parametrize("num_tokens", range(6))
@pytest.mark.parametrize("more", range(10))
@pytest.mark.parametrize("forked", [False, True])
def test_blocks_needed_are_the_blocks_that_an_append_takes(
    allocator_class, num_tokens, more, forked
) -> None:
    pool = allocator_class(8)
    table = sequence(pool, words(0, num_tokens))
    if forked:
        table.fork()
    needed, free = table.blocks_needed(more), pool.num_free
    table.append(words(50, more))
    assert free - pool.num_free == needed


def test_a_token_that_is_no_whole_number_changes_nothing() -> None:
    pool = PrefixCachingAllocator(6)
    table = sequence(pool, words(0, 3))
    before = snapshot(pool, table)
    with pytest.raises(TypeError):
        table.append([3, 4.0])
    assert snapshot(pool, table) == before


# vLLM, tests/core/block/test_block_manager.py


@BOTH
@pytest.mark.parametrize(
    ("watermark", "held", "needed", "expected"),
    [
        (0, 0, 10, Admission.NOW),
        (0, 0, 11, Admission.NEVER),
        (0, 1, 10, Admission.LATER),
        (2, 0, 8, Admission.NOW),
        (2, 0, 9, Admission.NEVER),
        (2, 5, 3, Admission.NOW),
        (2, 5, 4, Admission.LATER),
        (2, 9, 0, Admission.LATER),
        (2, 10, 9, Admission.NEVER),
    ],
)
def test_a_prompt_starts_now_later_or_never(
    allocator_class, watermark, held, needed, expected
) -> None:
    pool = allocator_class(11, watermark)
    for _ in range(held):
        pool.allocate()
    before = snapshot(pool)
    assert pool.can_allocate(needed) is expected  # every Admission is true as a condition
    assert snapshot(pool) == before


def test_cached_blocks_count_as_free_when_a_prompt_asks() -> None:
    pool = PrefixCachingAllocator(4)
    sequence(pool, words(0, 12)).free()
    assert pool.num_cached == 3
    assert pool.can_allocate(3) is Admission.NOW


@BOTH
def test_swapping_out_and_in_keeps_counts_and_content(allocator_class) -> None:
    device, host = allocator_class(6), allocator_class(9)
    caches = {pool: make_cache("vllm", pool.num_blocks) for pool in (device, host)}
    other = sequence(device, words(50, 4))
    table = BlockTable(device, BLOCK_SIZE)
    slots = table.append(words(0, 10)).slots
    key, value = torch.randn(2, 10, 1, 4, generator=torch.Generator().manual_seed(0))
    for layer in (0, 1):
        caches[device].write(layer, key + layer, value + layer, torch.tensor(slots))
    for target, free_on_device, free_on_host in ((host, 4, 5), (device, 1, 8)):
        source = table.allocator
        pairs = table.move_to(target)
        for _, block in pairs:  # what a copy leaves out must not be there from before
            for cache in (*caches[target].k, *caches[target].v):
                cache[block] = torch.nan
        swap_blocks(caches[source], caches[target], pairs)
        assert (device.num_free, host.num_free) == (free_on_device, free_on_host)
        for layer in (0, 1):
            k, v = caches[target].read(layer, torch.tensor(table.blocks), 10)
            assert torch.equal(k, key + layer)
            assert torch.equal(v, value + layer)
    assert [pool.ref_counts.count(1) for pool in (device, host)] == [4, 0]
    assert other.token_ids == words(50, 4)


def test_swapping_in_copies_only_what_the_pool_does_not_have() -> None:
    device, host = PrefixCachingAllocator(8), PrefixCachingAllocator(8)
    table = sequence(device, words(0, 10))
    out = table.move_to(host)
    assert [destination for _, destination in out] == table.blocks
    assert [source for source, _ in table.move_to(device)] == [out[2][1]]


@pytest.mark.parametrize("window", range(1, 14))
@pytest.mark.parametrize("prompt", [1, 4, 7, 13])
def test_a_sliding_window_holds_few_blocks_and_all_that_it_sees(window, prompt) -> None:
    pool = BlockAllocator(40)
    table = sequence(pool, words(0, prompt))
    table.slide(window)
    for token in range(prompt, 60):
        table.append([token])
        table.slide(window)
        used = pool.num_usable - pool.num_free
        assert used <= window // BLOCK_SIZE + 2
        seen = range(max(0, table.num_tokens - window), table.num_tokens)
        assert NULL_BLOCK not in {table.blocks[position // BLOCK_SIZE] for position in seen}
        gone = table.blocks.count(NULL_BLOCK)
        assert gone == min(seen) // BLOCK_SIZE  # and every block before the window is let go
        assert used + gone == len(table.blocks)


def test_a_window_that_grows_again_frees_nothing_twice() -> None:
    pool = BlockAllocator(8)
    table = sequence(pool, words(0, 20))
    fork = table.fork()
    for window in (3, 9, 3):
        table.slide(window)
    assert [pool.ref_counts[block] for block in fork.blocks] == [1, 1, 1, 1, 2]
    with pytest.raises(ValueError, match="window is 0; it must be at least 1"):
        table.slide(0)
    with pytest.raises(ValueError, match="has let go of blocks"):
        table.move_to(BlockAllocator(8))
    table.free()
    fork.free()
    assert pool.num_free == pool.num_usable


# vLLM, tests/core/block/test_cpu_gpu_block_allocator.py


@BOTH
def test_pools_are_independent(allocator_class) -> None:
    device, host = allocator_class(4), allocator_class(4)
    before = snapshot(host)
    sequence(device, words(0, 12))
    with pytest.raises(OutOfBlocks):
        sequence(device, [50])
    assert snapshot(host) == before
    assert host.find(None, (0, 1, 2, 3), None) is None


# Block tables of a batch


def test_tables_of_a_batch_are_padded_with_the_null_block() -> None:
    pool = BlockAllocator(9)
    tables = [sequence(pool, words(0, count)) for count in (9, 0, 4)]
    for width, padded in ((None, 3), (3, 3), (5, 5)):
        batch = padded_block_tables(tables, width)
        assert batch.dtype == torch.int32
        assert batch.tolist() == [
            table.blocks + [NULL_BLOCK] * (padded - len(table.blocks)) for table in tables
        ]
    assert padded_block_tables([]).shape == (0, 0)
    assert padded_block_tables([], 4).shape == (0, 4)
    assert padded_block_tables(tables[1:2]).shape == (1, 0)


def test_a_table_that_does_not_fit_is_not_cut() -> None:
    tables = [sequence(BlockAllocator(9), words(0, 9))]
    with pytest.raises(TableTooLong, match="a table names 3 blocks; width is 2"):
        padded_block_tables(tables, 2)


def test_a_batch_with_a_freed_sequence_or_of_two_pools_is_refused() -> None:
    pool = BlockAllocator(9)
    tables = [sequence(pool, [1]), sequence(pool, [2])]
    with pytest.raises(ValueError, match="different pools or block sizes"):
        padded_block_tables([*tables, sequence(BlockAllocator(9), [3])])
    with pytest.raises(ValueError, match="different pools or block sizes"):
        padded_block_tables([*tables, BlockTable(pool, 2 * BLOCK_SIZE)])
    tables[1].free()
    with pytest.raises(UseAfterFree, match="the sequence was freed"):
        padded_block_tables(tables)


def test_negative_numbers_of_blocks_and_tokens_are_refused() -> None:
    pool = BlockAllocator(4)
    with pytest.raises(ValueError, match="num_blocks is -5; it must be at least 0"):
        pool.can_allocate(-5)
    with pytest.raises(ValueError, match="num_tokens is -3; it must be at least 0"):
        BlockTable(pool, 4).blocks_needed(-3)
