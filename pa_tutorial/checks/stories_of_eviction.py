"""The stories about names that go: evicted, moved to another pool, slid out, or reset."""

from typing import Any

from pa_tutorial.checks.stories_of_prefixes import hash_of_last_token
from pa_tutorial.checks.story import story, words
from pa_tutorial.paging.errors import BlocksInUse, OutOfBlocks

EVICT = "which block is evicted, and that it is forgotten"
MOVED = "names after a fork, a swap or a slide"
FREED_IN_ORDER = "Blocks are let go last first: a later one is of no use without the earlier ones."


@story(
    EVICT,
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
    EVICT,
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
    EVICT,
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
    EVICT,
    "Sharing a cached block must not change its name; letting go makes it the newest.",
    num_blocks=4,
)
def found_again_and_again(world: Any) -> None:
    world.start("a", words(1, 4))
    world.start("b", words(20, 4))
    world.free("a")
    world.free("b")
    world.start("c", words(1, 4))
    world.free("c")
    world.start("d", words(40, 8))  # evicts the block of b
    world.start("e", words(1, 4))
    world.fact("last_cached", 3)


@story(
    EVICT,
    "With the block its name must go, from every place where it is kept.",
    num_blocks=3,
)
def evicted_and_forgotten(world: Any) -> None:
    world.start("a", words(1, 4))
    world.free("a")
    world.start("b", words(20, 5))
    world.free("b")
    world.fact("cached", 1)
    world.start("c", words(40, 8))
    world.free("c")
    world.start("d", words(1, 5))
    world.fact("last_cached", 0)


@story(
    MOVED,
    "Each fork has its own names and the extra key of its parent.",
    num_blocks=12,
)
def forks_have_their_own_names(world: Any) -> None:
    world.start("a", words(1, 6), 1)
    world.fork("a", "b")
    world.append("b", [7, 8])
    world.append("a", [17, 18])
    world.start("c", words(1, 9), 1)
    world.fact("last_cached", 8)
    world.start("d", words(5, 4), 1)
    world.fact("last_cached", 0)
    world.start("e", [*words(1, 6), 17, 18, 9], 1)
    world.fact("last_cached", 8)


@story(MOVED, FREED_IN_ORDER, num_blocks=4)
def swapped_out_last_block_first(world: Any) -> None:
    world.start("a", words(1, 12))
    world.swap("a", to_host=True)
    world.start("b", words(40, 4))
    world.free("b")
    world.start("c", words(1, 9))
    world.fact("last_cached", 8)


@story(MOVED, "After a swap the blocks have names in the new pool only.", num_blocks=4)
def names_after_a_swap(world: Any) -> None:
    world.start("a", words(1, 6))
    world.swap("a", to_host=True)
    world.start("b", words(40, 12))
    world.free("b")
    world.swap("a", to_host=False)
    world.append("a", [7, 8])
    world.start("c", words(1, 9))
    world.fact("last_cached", 8)
    world.free("c")
    world.start("c", words(5, 4))
    world.fact("last_cached", 0)


@story(MOVED, "The extra key moves with its sequence.")
def extra_keys_after_a_swap(world: Any) -> None:
    world.start("a", words(1, 8), 1)
    world.start("b", words(1, 8), 2)
    world.swap("a", to_host=True)
    world.swap("b", to_host=True)


@story(MOVED, FREED_IN_ORDER, num_blocks=7)
def slid_out_last_block_first(world: Any) -> None:
    world.start("a", words(1, 17))
    world.slide("a", 6)
    world.start("b", words(90, 5))
    world.free("a")
    world.start("c", [*words(1, 4), 30])
    world.fact("last_cached", 4)


@story(
    MOVED,
    "A name must not point at a block number: after an eviction, the number means something else.",
    num_blocks=5,
)
def a_number_given_out_again(world: Any) -> None:
    world.start("a", words(1, 9))
    world.slide("a", 2)
    world.start("b", [7])
    world.start("c", words(30, 4))  # the block that a let go
    world.free("b")
    world.append("c", words(5, 4))  # what stands behind that block in a
    world.fact("used", 4)


@story(
    MOVED,
    "Equal hashes are no proof that the same block stood before.",
    num_blocks=5,
    hash_function=hash_of_last_token,
)
def a_number_and_a_hash_again(world: Any) -> None:
    world.start("a", words(1, 9))
    world.slide("a", 2)
    world.start("b", [7])
    world.start("c", [30, 31, 32, 4])  # the same block number, and the same hash
    world.free("b")
    world.append("c", words(5, 4))
    world.fact("used", 4)


@story(
    "the cache is forgotten as a whole",
    "reset forgets every name and loses no block; not while a sequence holds one.",
    num_blocks=6,
)
def reset_forgets_all(world: Any) -> None:
    world.start("a", words(1, 8))
    world.refused(BlocksInUse, "reset")
    world.free("a")
    world.reset()
    world.fact("cached", 0)
    world.start("b", words(1, 9))
    world.fact("last_cached", 0)
    world.free("b")
    world.fact("cached", 2)
    world.start("c", words(30, 20))
    world.fact("used", 5)
