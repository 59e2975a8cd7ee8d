"""Short ways to make and compare pools, sequences and caches, for tests of the manager."""

from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.kv_cache import PagedKVCache
from pa_tutorial.paging.layouts import LAYOUTS

BLOCK_SIZE = 4


def words(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def sequence(allocator: BlockAllocator, tokens: list[int], extra: object = None) -> BlockTable:
    table = BlockTable(allocator, BLOCK_SIZE, extra)
    table.append(tokens)
    return table


def snapshot(*things: BlockAllocator | BlockTable) -> list[dict[str, object]]:
    """Every attribute, copied; the order counts, so that of the free blocks too."""

    def copied(value: object) -> object:
        if isinstance(value, dict):
            return [(key, copied(inner)) for key, inner in value.items()]
        if isinstance(value, list | tuple):
            return [copied(inner) for inner in value]
        return value

    return [{name: copied(value) for name, value in vars(thing).items()} for thing in things]


def names(table: BlockTable) -> list[int | None]:
    """For each full block of the table, the number under which it can be found, or None."""
    return [None if name is None else name.block for name in table._names]


def make_cache(layout: str, num_blocks: int = 6, **changes: int) -> PagedKVCache:
    sizes = {"num_kv_heads": 1, "head_size": 4, "block_size": BLOCK_SIZE, "num_layers": 2}
    sizes |= changes
    num_layers = sizes.pop("num_layers")
    return PagedKVCache(LAYOUTS[layout](num_blocks, **sizes), num_layers)
