"""The stories that the memory manager must tell as plain lists do; blocks hold 4 tokens."""

from typing import Any

from pa_tutorial.checks.story import story, words
from pa_tutorial.paging.allocator import Admission
from pa_tutorial.paging.errors import (
    DoubleFree,
    OutOfBlocks,
    TableTooLong,
    UnknownBlock,
    UseAfterFree,
)

NOW, LATER, NEVER = Admission

# What a story isolates; stories that isolate the same share a row in the table of results.
GROW = "sequences grow and end, and their blocks serve others"
FORK = "forks share blocks until they write"
NO_ROOM = "there are too few blocks, so nothing may change"
START = "may a sequence start: now, later or never"
SWAP = "a sequence goes to the host pool and comes back"
WINDOW = "blocks slide out of a window"
MISUSE = "misuse is refused"


@story(GROW, "A slot is block number * block_size + offset in the block.")
def token_by_token(world: Any) -> None:
    world.start("a", [1])
    for token in words(2, 9):
        world.append("a", [token])
    world.fact("used", 3)


@story(
    GROW,
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
    GROW,
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
    FORK,
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


@story(FORK, "A reference was counted wrongly.")
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
    FORK,
    "A reference count of 3 is shared too; the last writer needs no copy.",
)
def three_writers(world: Any) -> None:
    world.start("a", words(1, 6))
    world.fork("a", "b")
    world.fork("a", "c")
    for name, token in (("b", 20), ("c", 21), ("a", 22)):
        world.append(name, [token])
    world.fact("copied", 2)
    world.fact("used", 4)


@story(FORK, "A full block is never written again, so it needs no copy.")
def full_blocks_are_not_copied(world: Any) -> None:
    world.start("a", words(1, 8))
    world.fork("a", "b")
    world.append("a", [11])
    world.append("b", [12])
    world.fact("copied", 0)
    world.fact("used", 4)


@story(FORK, "Without new tokens nothing is taken, and nothing is copied.")
def an_empty_append(world: Any) -> None:
    world.start("a", words(1, 6))
    world.fork("a", "b")
    world.append("b", [])
    world.fact("last_cached", 0)
    world.fact("copied", 0)
    world.fact("used", 2)


@story(
    NO_ROOM,
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
    NO_ROOM,
    "Count what the whole operation needs before you change anything.",
    num_blocks=5,
)
def exhaustion_after_the_copy(world: Any) -> None:
    world.start("a", words(1, 10))
    world.fork("a", "b")
    world.refused(OutOfBlocks, "append", "b", words(30, 5))
    world.append("b", [30])


@story(
    NO_ROOM,
    "Count what the whole operation needs before you change anything.",
    num_blocks=5,
)
def exhaustion_in_a_prompt(world: Any) -> None:
    world.start("a", words(1, 5))
    world.refused(OutOfBlocks, "start", "b", words(30, 9))
    world.refused(OutOfBlocks, "start", "b", [1, 2, 3, 4, *words(30, 9)])
    world.start("b", [1, 2, 3, 4, *words(30, 4)])


@story(
    NO_ROOM,
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
    START,
    "Starting must leave `watermark` blocks free; never: it could not even in an empty pool.",
    num_blocks=10,
    watermark=2,
)
def admission(world: Any) -> None:
    world.start("a", words(1, 12))
    for num_blocks, expected in ((4, NOW), (5, LATER), (7, LATER), (8, NEVER)):
        world.may_start(num_blocks, expected)
    world.free("a")
    world.may_start(7, NOW)


@story(
    SWAP,
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
    WINDOW,
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


@story(WINDOW, "Count the blocks that lie wholly before it.")
def a_window_that_leaps(world: Any) -> None:
    world.start("a", words(1, 17))
    world.slide("a", 6)
    world.fact("used", 3)
    world.start("b", words(40, 10))
    world.slide("b", 6)
    world.fact("used", 5)
    world.free("a")
    world.free("b")
    world.fact("used", 0)


@story(MISUSE, "A freed sequence has no blocks; using it must be an error.")
def freed_sequences(world: Any) -> None:
    world.start("a", words(1, 6))
    world.fork("a", "b")
    world.free("b")
    world.refused(UseAfterFree, "append", "b", [9])
    world.refused(UseAfterFree, "fork", "b", "c")
    world.refused(DoubleFree, "free", "b")
    world.append("a", [7])


@story(
    MISUSE,
    "A block that is free, or is not in the pool, cannot be freed or shared.",
)
def blocks_that_nobody_holds(world: Any) -> None:
    world.start("a", words(1, 4))
    for block in (0, -1, 10):
        world.refused(UnknownBlock, "free_block", block)
        world.refused(UnknownBlock, "share_block", block)
    world.refused(DoubleFree, "free_block", 5)
    world.refused(UseAfterFree, "share_block", 5)


@story(MISUSE, "What slid out cannot be moved; a window has a token.")
def slide_and_swap_refused(world: Any) -> None:
    world.start("a", words(1, 9))
    world.refused(ValueError, "slide", "a", 0)
    world.slide("a", 2)
    world.refused(ValueError, "swap", "a", True)


@story(
    MISUSE,
    "A table that is cut drops tokens silently.",
    num_blocks=6,
)
def a_table_that_does_not_fit(world: Any) -> None:
    world.start("a", words(1, 13))
    world.refused(TableTooLong, "make_batch", 3)
