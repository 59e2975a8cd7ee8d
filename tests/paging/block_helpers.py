"""Short ways to make and compare pools and sequences, for tests of the manager."""

from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable

BLOCK_SIZE = 4


def words(start: int, count: int) -> list[int]:
    return list(range(start, start + count))


def sequence(allocator: BlockAllocator, tokens: list[int]) -> BlockTable:
    table = BlockTable(allocator, BLOCK_SIZE)
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
