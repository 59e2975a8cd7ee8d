"""The stories about prefix caching: what is found again, and what is not."""

from collections.abc import Hashable
from typing import Any

from pa_tutorial.checks.story import story, words

SHARE = "equal prompts share blocks"
OTHER = "equal tokens, but another prefix or key"
COLLIDE = "different blocks have the same hash"
COMPARE = "A hash says where to look; the tokens, what stands before, and the key are compared."


def same_hash(*content: object) -> int:
    """A hash function on purpose so bad that everything collides."""
    return 7


def hash_of_tokens(previous: int | None, tokens: tuple[int, ...], extra: Hashable) -> int:
    """Neither the chain nor the key."""
    return hash(tokens)


def hash_of_last_token(previous: int | None, tokens: tuple[int, ...], extra: Hashable) -> int:
    return tokens[-1]


@story(
    SHARE,
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
    SHARE,
    "Without the query of the last token there is no next token.",
)
def a_token_is_always_computed(world: Any) -> None:
    world.start("a", words(1, 8))
    world.start("b", words(1, 8))
    world.fact("last_cached", 7)
    world.fact("used", 2)
    world.append("b", [9])


@story(
    SHARE,
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
    SHARE,
    "A block that is held already takes nothing from the free ones.",
    num_blocks=4,
)
def shared_blocks_need_no_room(world: Any) -> None:
    world.start("a", words(1, 8))
    world.start("b", words(1, 9))
    world.fact("last_cached", 8)
    world.fact("cached", 0)


@story(
    SHARE,
    "When a block of the cache takes the place of the last one, that one is free for the rest.",
    num_blocks=4,
)
def given_back_on_the_way(world: Any) -> None:
    world.start("x", words(1, 4))
    world.start("y", words(1, 3))
    world.start("z", [99])
    world.append("y", [4, 9])
    world.fact("used", 3)


@story(
    OTHER,
    "K and V depend on the whole prefix: the hash must chain over it.",
)
def same_tokens_after_another_prefix(world: Any) -> None:
    world.start("a", [*words(1, 4), *words(50, 4)])
    world.start("b", [*words(20, 4), *words(50, 4)])
    world.start("c", words(50, 4))
    world.fact("last_cached", 0)
    world.fact("used", 5)


@story(
    OTHER,
    "A block is found only through the one before it; after an unknown block none is.",
)
def known_after_unknown(world: Any) -> None:
    world.start("a", words(1, 4))
    world.start("b", [*words(30, 4), *words(1, 4)])
    world.fact("last_cached", 0)
    world.fact("used", 3)


@story(
    OTHER,
    "K and V depend on the extra key, an adapter's name for example.",
)
def other_extra_key(world: Any) -> None:
    world.start("a", words(1, 8), 1)
    world.start("b", words(1, 8), 2)
    world.fact("last_cached", 0)
    world.start("c", words(1, 8), 1)
    world.fact("last_cached", 7)


@story(
    OTHER,
    "The hash must contain all that the comparison compares, or one hides the other.",
    num_blocks=20,
)
def both_are_found(world: Any) -> None:
    world.start("a", [*words(1, 4), *words(50, 4)], 1)
    world.start("b", [*words(20, 4), *words(50, 4)], 1)
    world.start("c", words(1, 8), 2)
    world.start("d", [4, 3, 2, 1])
    world.start("e", [1, 2, 3, 4])
    world.start("f", [*words(20, 4), *words(50, 4), 1], 1)
    world.fact("last_cached", 8)
    world.start("g", words(1, 8), 2)
    world.fact("last_cached", 7)
    world.start("h", [1, 2, 3, 4, 9])
    world.fact("last_cached", 4)


@story(
    COLLIDE,
    "A hash says where to look; the tokens must be compared.",
    hash_function=same_hash,
)
def hash_collision(world: Any) -> None:
    world.start("a", words(1, 9))
    world.start("b", words(30, 9))
    world.fact("last_cached", 0)
    world.start("c", words(1, 9))
    world.fact("last_cached", 4)


@story(COLLIDE, COMPARE, hash_function=hash_of_tokens)
def collision_of_prefixes(world: Any) -> None:
    world.start("a", [*words(1, 4), *words(50, 4)])
    world.start("b", words(20, 4))
    world.append("b", words(50, 4))
    world.fact("used", 4)


@story(COLLIDE, COMPARE, hash_function=hash_of_tokens)
def collision_of_extra_keys(world: Any) -> None:
    world.start("a", words(1, 4), 1)
    world.start("b", words(1, 5), 2)
    world.fact("last_cached", 0)


@story(COLLIDE, COMPARE, hash_function=same_hash)
def collision_of_order(world: Any) -> None:
    world.start("a", words(1, 4))
    world.start("b", words(30, 4))
    world.append("b", words(1, 4))
    world.fact("used", 3)
    world.start("c", [4, 3, 2, 1, 9])
    world.fact("last_cached", 0)
    world.start("d", [1, 9, 9, 9, 9])
    world.fact("last_cached", 0)


@story(
    COLLIDE,
    "After a collision a block has no name, and nothing behind it may get one.",
    hash_function=hash_of_last_token,
)
def nothing_after_an_unnamed_block(world: Any) -> None:
    world.start("a", words(1, 4))
    world.start("b", [9, 9, 9, 4, *words(50, 4)])
    world.start("c", [*words(50, 4), 7])
    world.fact("last_cached", 0)
