"""The stories that the memory manager must tell as plain lists do; blocks hold 4 tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pa_tutorial.paging.errors import DoubleFree, OutOfBlocks, TableTooLong, UseAfterFree

Words = list[int]


@dataclass(frozen=True)
class Story:
    """One story, and what it usually means if it comes out wrong.

    tell     what happens, on a World or a ListModel
    options  of the allocator: num_blocks (block 0 is never given out), hash_function
    """

    isolates: str
    meaning: str
    tell: Callable[[Any], None]
    options: dict[str, Any]


STORIES: dict[str, Story] = {}


def story(isolates: str, meaning: str, **options: Any) -> Callable[[Callable], Callable]:
    """Decorator: put a function among the STORIES, under its own name."""

    def add(tell: Callable[[Any], None]) -> Callable[[Any], None]:
        STORIES[tell.__name__] = Story(isolates, meaning, tell, options)
        return tell

    return add


def same_hash(*content: object) -> int:
    """A hash function on purpose so bad that everything collides."""
    return 7


def words(start: int, count: int) -> Words:
    return list(range(start, start + count))


@story("one sequence grows", "A slot is block number * block_size + offset in the block.")
def token_by_token(world: Any) -> None:
    world.start("a", [1])
    for token in words(2, 9):
        world.append("a", [token])
    world.fact("used", 3)


@story(
    "two sequences grow side by side",
    "A block was given out twice, or a token went to the wrong slot.",
)
def prompts_and_tokens(world: Any) -> None:
    world.start("a", words(1, 6))
    world.start("b", words(20, 3))
    for step in range(5):
        world.append("a", [50 + step])
        world.append("b", [70 + step])
    world.fact("used", 5)


@story(
    "blocks of a finished sequence serve another one",
    "A freed block kept something, or was not given out again.",
)
def blocks_are_reused(world: Any) -> None:
    world.start("a", words(1, 7))
    world.start("b", words(20, 7))
    world.free("a")
    world.start("c", words(40, 13))
    world.append("b", words(60, 3))
    world.fact("used", 7)


@story(
    "two forks write different tokens",
    "The last block is shared and not full: the first writer takes a copy, the second does not.",
)
def fork_and_write(world: Any) -> None:
    world.start("a", words(1, 6))
    world.fork("a", "b")
    world.fact("used", 2)
    world.append("a", [11])
    world.append("b", [12])
    world.append("a", [13, 14, 15])
    world.fact("copied", 1)
    world.fact("used", 4)


@story("three sequences share a block; one of them ends", "A reference was counted wrongly.")
def fork_of_a_fork(world: Any) -> None:
    world.start("a", words(1, 6))
    world.fork("a", "b")
    world.fork("b", "c")
    world.append("b", [20])
    world.free("a")
    world.append("c", [30])
    world.append("b", [21, 22])
    world.fact("copied", 1)
    world.fact("used", 4)


@story(
    "forks that share full blocks only", "A full block is never written again, so it needs no copy."
)
def full_blocks_are_not_copied(world: Any) -> None:
    world.start("a", words(1, 8))
    world.fork("a", "b")
    world.append("a", [11])
    world.append("b", [12])
    world.fact("copied", 0)
    world.fact("used", 4)


@story(
    "no block is free for the copy",
    "Count what the whole operation needs before you change anything.",
    num_blocks=4,
)
def exhaustion_in_copy_on_write(world: Any) -> None:
    world.start("a", words(1, 10))
    world.fork("a", "b")
    world.refused(OutOfBlocks, "append", "a", [20])
    world.refused(OutOfBlocks, "append", "b", [30, 31, 32, 33, 34])
    world.free("b")
    world.append("a", [20])


@story(
    "a prompt that does not fit, half of it in the cache",
    "Count what the whole operation needs before you change anything.",
    num_blocks=5,
)
def exhaustion_in_a_prompt(world: Any) -> None:
    world.start("a", words(1, 5))
    world.refused(OutOfBlocks, "start", "b", words(30, 9))
    world.refused(OutOfBlocks, "start", "b", [1, 2, 3, 4, *words(30, 9)])
    world.start("b", [1, 2, 3, 4, *words(30, 4)])


@story(
    "freed sequences are used again", "A freed sequence has no blocks; using it must be an error."
)
def freed_sequences(world: Any) -> None:
    world.start("a", words(1, 6))
    world.fork("a", "b")
    world.free("b")
    world.refused(UseAfterFree, "append", "b", [9])
    world.refused(UseAfterFree, "fork", "b", "c")
    world.refused(DoubleFree, "free", "b")
    world.append("a", [7])


@story(
    "prompts that begin with the same blocks",
    "Full blocks with the same prefix are shared, also after their sequence ended.",
)
def shared_prompt(world: Any) -> None:
    world.start("a", words(1, 10))
    world.start("b", [*words(1, 8), 40, 41])
    world.fact("last_cached", 8)
    world.fact("used", 4)
    world.free("a")
    world.start("c", [*words(1, 8), 60])
    world.fact("last_cached", 8)


@story(
    "a prompt that is in the cache as a whole",
    "Without the query of the last token there is no next token.",
)
def a_token_is_always_computed(world: Any) -> None:
    world.start("a", words(1, 8))
    world.start("b", words(1, 8))
    world.fact("last_cached", 7)
    world.fact("used", 2)
    world.append("b", [9])


@story(
    "equal tokens, other tokens before them",
    "K and V depend on the whole prefix: the hash must chain over it.",
)
def same_tokens_after_another_prefix(world: Any) -> None:
    world.start("a", [*words(1, 4), *words(50, 4)])
    world.start("b", [*words(20, 4), *words(50, 4)])
    world.start("c", words(50, 4))
    world.fact("last_cached", 0)
    world.fact("used", 5)


@story(
    "a block becomes equal to another one token by token",
    "A block that becomes full is looked up too.",
)
def decoding_into_a_known_block(world: Any) -> None:
    world.start("a", words(1, 8))
    world.start("b", words(1, 6))
    world.append("b", [7])
    world.append("b", [8])  # now it equals a block of a
    world.append("b", [9])
    world.fact("used", 3)


@story(
    "every block has the same hash",
    "A hash says where to look; the tokens must be compared.",
    hash_function=same_hash,
)
def hash_collision(world: Any) -> None:
    world.start("a", words(1, 9))
    world.start("b", words(30, 9))
    world.fact("last_cached", 0)
    world.start("c", words(1, 9))
    world.fact("last_cached", 4)


@story(
    "equal tokens under another extra key",
    "K and V depend on the extra key, an adapter's name for example.",
)
def other_extra_key(world: Any) -> None:
    world.start("a", words(1, 8), 1)
    world.start("b", words(1, 8), 2)
    world.fact("last_cached", 0)
    world.start("c", words(1, 8), 1)
    world.fact("last_cached", 7)


@story(
    "which cached block is given out first",
    "The block that was freed longest ago is evicted first.",
    num_blocks=4,
)
def oldest_is_evicted_first(world: Any) -> None:
    world.start("a", words(1, 4))
    world.start("b", words(20, 4))
    world.free("b")
    world.free("a")
    world.fact("cached", 2)
    world.start("c", words(40, 8))  # the third free block, then that of b
    world.start("d", words(1, 4))
    world.fact("last_cached", 3)
    world.fact("used", 3)


@story(
    "blocks of one sequence, freed together",
    "Ties: the block with the most tokens before it goes first, or the rest is of no use.",
    num_blocks=4,
)
def deepest_is_evicted_first(world: Any) -> None:
    world.start("a", words(1, 12))
    world.free("a")
    world.start("b", words(40, 4))  # takes the last of the three blocks of a
    world.free("b")
    world.start("c", words(1, 9))
    world.fact("last_cached", 8)


@story(
    "a cached block comes back to life",
    "A block that is found again must leave the list of blocks to evict.",
    num_blocks=4,
)
def a_block_in_use_is_not_evicted(world: Any) -> None:
    world.start("a", words(1, 8))
    world.free("a")
    world.start("b", [*words(1, 4), 30])  # brings the first block of a back to life
    world.start("c", words(40, 4))
    world.refused(OutOfBlocks, "start", "d", words(60, 4))
    world.fact("used", 3)


@story(
    "a sequence goes to the host pool and comes back",
    "Block numbers of one pool mean nothing in the other one.",
    num_blocks=8,
)
def swap_out_and_in(world: Any) -> None:
    world.start("a", words(1, 6))
    world.start("b", words(20, 7))
    world.swap("a", to_host=True)
    world.start("c", words(40, 9))
    world.append("b", [27, 28])
    world.free("c")
    world.swap("a", to_host=False)
    world.append("a", [7, 8, 9])
    world.fact("used", 6)


@story(
    "the pool is full when a sequence comes back",
    "Count what the whole operation needs before you change anything.",
    num_blocks=5,
)
def no_room_to_swap_in(world: Any) -> None:
    world.start("a", words(1, 7))
    world.swap("a", to_host=True)
    world.start("b", words(20, 12))
    world.refused(OutOfBlocks, "swap", "a", False)
    world.free("b")
    world.swap("a", to_host=False)


@story(
    "blocks slide out of a window of 6 tokens",
    "Only blocks that no later query can see may be let go.",
)
def sliding_window(world: Any) -> None:
    world.start("a", words(1, 6))
    for token in words(7, 11):
        world.append("a", [token])
        world.slide("a", 6)
    world.fact("used", 3)
    world.fork("a", "b")
    world.append("b", [40])
    world.fact("used", 4)


@story(
    "a batch that is too narrow for a table",
    "A table that is cut drops tokens silently.",
    num_blocks=6,
)
def a_table_that_does_not_fit(world: Any) -> None:
    world.start("a", words(1, 13))
    world.refused(TableTooLong, "make_batch", 3)
