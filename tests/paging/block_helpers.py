"""Short ways to make and compare pools and sequences, for tests of the manager."""

from collections import Counter
from collections.abc import Iterable

from pa_tutorial.paging.allocator import NULL_BLOCK, BlockAllocator
from pa_tutorial.paging.block_table import BlockTable


def require_balanced(pool: BlockAllocator, tables: Iterable[BlockTable]) -> None:
    """Reference counts are the tables that name a block; no block is lost or listed twice."""
    named = Counter(block for table in tables for block in table.blocks if block != NULL_BLOCK)
    assert pool.ref_counts == [named[block] for block in range(pool.num_blocks)]
    cached = list(getattr(pool, "_evictable", ()))
    everywhere = sorted([*pool._free, *cached, *named])
    assert everywhere == list(range(1, pool.num_blocks)), "a block is lost or listed twice"
    assert pool.num_free == len(pool._free) + len(cached)
    assert len(cached) == getattr(pool, "num_cached", 0)


def snapshot(*things: BlockAllocator | BlockTable) -> list[dict[str, object]]:
    """Every attribute, copied; the order counts, so that of the free blocks too."""

    def copied(value: object) -> object:
        if isinstance(value, dict):
            return [(key, copied(inner)) for key, inner in value.items()]
        if isinstance(value, list | tuple):
            return [copied(inner) for inner in value]
        return value

    return [{name: copied(value) for name, value in vars(thing).items()} for thing in things]
