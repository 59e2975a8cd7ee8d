"""Refusals: a clear error, and everything as it was."""

from collections.abc import Callable

import pytest
from block_helpers import BLOCK_SIZE, sequence, snapshot, words

from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.errors import (
    DoubleFree,
    OutOfBlocks,
    UseAfterFree,
)
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator

BOTH = pytest.mark.parametrize("allocator_class", [BlockAllocator, PrefixCachingAllocator])


# Refusals: a clear error, and everything as it was


@pytest.mark.parametrize(
    ("operation", "arguments", "error"),
    [
        ("append", ([7],), UseAfterFree),
        ("append", ([],), UseAfterFree),
        ("fork", (), UseAfterFree),
        ("slide", (3,), UseAfterFree),
        ("move_to", (BlockAllocator(6),), UseAfterFree),
        ("blocks_needed", (1,), UseAfterFree),
        ("free", (), DoubleFree),
    ],
)
@BOTH
def test_a_freed_sequence_is_not_used_again(allocator_class, operation, arguments, error) -> None:
    pool = allocator_class(6)
    table = sequence(pool, words(0, 6))
    table.fork()
    table.free()
    before = snapshot(pool, table)
    with pytest.raises(error, match="the sequence was freed"):
        getattr(table, operation)(*arguments)
    assert snapshot(pool, table) == before


Refused = tuple[list[BlockAllocator | BlockTable], Callable[[], object]]


def copy_on_write() -> Refused:
    pool = PrefixCachingAllocator(4)
    table = sequence(pool, words(0, 10))
    return [pool, table, table.fork()], lambda: table.append([20])


def copy_on_write_and_more_in_a_fork_of_a_fork() -> Refused:
    pool = PrefixCachingAllocator(5)
    table = sequence(pool, words(0, 10))
    fork = table.fork().fork()
    return [pool, table, fork], lambda: fork.append(words(20, 3))


def many_blocks() -> Refused:
    pool = PrefixCachingAllocator(5)
    table = sequence(pool, words(0, 3))
    return [pool, table], lambda: table.append(words(20, 14))


def prompt_that_revives_cached_blocks() -> Refused:
    pool = PrefixCachingAllocator(5)
    sequence(pool, words(0, 16)).free()
    table = BlockTable(pool, BLOCK_SIZE)
    return [pool, table], lambda: table.append([*words(0, 12), *words(50, 5)])


def prompt_that_shares_held_blocks() -> Refused:
    pool = PrefixCachingAllocator(5)
    other, table = sequence(pool, words(0, 12)), BlockTable(pool, BLOCK_SIZE)
    return [pool, other, table], lambda: table.append([*words(0, 12), *words(50, 5)])


def move_to_a_full_pool() -> Refused:
    device, host = PrefixCachingAllocator(6), PrefixCachingAllocator(6)
    other, table = sequence(host, words(50, 9)), sequence(device, words(0, 10))
    return [device, host, other, table, table.fork()], lambda: table.move_to(host)


def move_to_a_pool_that_has_half_of_it() -> Refused:
    device, host = PrefixCachingAllocator(6), PrefixCachingAllocator(4)
    sequence(host, words(0, 8)).free()
    other, table = sequence(host, [50]), sequence(device, words(0, 10))
    return [device, host, other, table], lambda: table.move_to(host)


@pytest.mark.parametrize(
    "scene",
    [
        copy_on_write,
        copy_on_write_and_more_in_a_fork_of_a_fork,
        many_blocks,
        prompt_that_revives_cached_blocks,
        prompt_that_shares_held_blocks,
        move_to_a_full_pool,
        move_to_a_pool_that_has_half_of_it,
    ],
)
def test_running_out_of_blocks_in_the_middle_changes_nothing(scene: Callable[[], Refused]) -> None:
    things, operation = scene()
    before = snapshot(*things)
    for _ in range(2):
        with pytest.raises(OutOfBlocks, match=r"needed: \d; free: \d of \d"):
            operation()
        assert snapshot(*things) == before
