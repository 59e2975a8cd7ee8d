"""The scenes of append_in_window: what happens to sequences in a small pool, drawn anew."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

Draw = Callable[[int, int], int]  # draw(a, b): one of a, a + 1, …, b


class Step(NamedTuple):
    """One thing that happens to a sequence.

    does    "append" tokens, "refuse" them (OutOfBlocks), "fork" it, "free" it; or "find": a
            new sequence with these tokens would find all of them but the last in the cache
    other   of a fork: the name of the new sequence
    """

    does: str
    name: str
    tokens: tuple[int, ...] = ()
    other: str = ""


@dataclass(frozen=True)
class Scene:
    """What happens in a pool.

    num_usable  blocks of the pool without the null block
    cached      there is a prefix cache
    exact       after each append, the blocks that were let go are counted; else it is enough that
                long sequences have let go of their first block in the end
    evicts      the cache loses blocks: those with a name are not counted
    """

    window: int
    block_size: int
    num_usable: int
    steps: tuple[Step, ...]
    cached: bool = False
    exact: bool = True
    evicts: bool = False

    def words_of(self, number: int) -> str:
        """What the step with this number does, for a message."""
        lengths: dict[str, int] = {}
        for step in self.steps[:number]:
            if step.does == "append":
                lengths[step.name] = lengths.get(step.name, 0) + len(step.tokens)
            elif step.does == "fork":
                lengths[step.other] = lengths[step.name]
        step = self.steps[number]
        words = "in the end" if step.does == "find" else f"{step.does} of sequence {step.name}"
        if step.does in ("append", "refuse"):
            length = lengths.get(step.name, 0)
            words = f"sequence {step.name} has {length} tokens and {len(step.tokens)} new"
        return f"{words} (window {self.window}, blocks of {self.block_size})"


def fitting(window: int, block_size: int) -> int:
    """Blocks that `window` tokens touch at most."""
    return -(-(window - 1) // block_size) + 1


def tokens(n: Draw, count: int) -> tuple[int, ...]:
    return tuple(n(0, 10_000) for _ in range(count))


def one_a_step(n: Draw, window: int, block_size: int) -> Scene:
    """One token a step, in the smallest pool in which that goes on for ever."""
    many = tokens(n, window + 4 * block_size + n(1, block_size))
    steps = tuple(Step("append", "a", (token,)) for token in many)
    return Scene(window, block_size, fitting(window, block_size), steps)


def smallest_pool(n: Draw) -> Scene:
    block_size = n(3, 6)
    return one_a_step(n, block_size * n(2, 3) + 1, block_size)


def any_window(n: Draw) -> Scene:
    block_size = n(3, 6)
    return one_a_step(n, n(2, 3 * block_size), block_size)


def window_of_one(n: Draw) -> Scene:
    return one_a_step(n, 1, n(3, 6))


def chunk(n: Draw) -> Scene:
    block_size = n(3, 5)
    window = n(2, 2 * block_size)
    sizes = [n(3, 5) * block_size, *(n(block_size + 1, 2 * block_size) for _ in range(3))]
    steps = tuple(Step("append", "a", tokens(n, size)) for size in sizes)
    return Scene(window, block_size, 20, steps)


def fork(n: Draw) -> Scene:
    block_size = n(3, 5)
    window = block_size + n(1, 4)
    prompt = Step("append", "a", tokens(n, 3 * block_size + n(1, block_size - 1)))
    on = [Step("append", "a", tokens(n, 1)) for _ in range(2 * block_size)]
    late = [Step("append", "b", tokens(n, 1)) for _ in range(2 * block_size)]
    steps = (prompt, Step("fork", "a", other="b"), *on, *late)
    return Scene(window, block_size, 12, steps, exact=False)


def prefix_cache(n: Draw) -> Scene:
    block_size = n(3, 4)
    window = n(2, 2 * block_size)
    many = tokens(n, 7 * block_size)
    prompt, rest = many[: 2 * block_size], many[2 * block_size :]
    alike = many[4 * block_size : 6 * block_size]  # tokens of blocks of `a`, with no tokens before
    steps = (
        Step("append", "a", prompt),
        *(Step("append", "a", (token,)) for token in rest),
        Step("append", "b", alike + tokens(n, 1)),
        Step("append", "c", many[: 3 * block_size] + tokens(n, 1)),
        *(Step("append", "c", tokens(n, 1)) for _ in range(block_size)),
    )
    return Scene(window, block_size, 30, steps, cached=True, exact=False)


def last_one_first(n: Draw) -> Scene:
    """Blocks are let go together; then one of them is evicted."""
    block_size, blocks = n(3, 4), n(4, 6)
    prompt = tokens(n, block_size * blocks)
    steps = (
        Step("append", "a", prompt),
        Step("append", "a", tokens(n, 1)),  # all but the last block or two go
        Step("append", "x", tokens(n, block_size + 1)),  # the free one, and one that is evicted
        Step("find", "a", prompt[: block_size * (blocks - 3) + 1]),
    )
    return Scene(n(2, block_size), block_size, blocks + 2, steps, True, exact=False, evicts=True)


def no_room(n: Draw) -> Scene:
    block_size, blocks, other_blocks, spare = n(3, 5), n(3, 5), n(1, 2), n(0, 1)
    free = spare + blocks - 1  # once the blocks before the window are let go
    big = tokens(n, block_size * free + 1)
    steps = (
        Step("append", "a", tokens(n, block_size * blocks)),
        Step("append", "x", tokens(n, block_size * other_blocks)),
        Step("refuse", "a", big),
        Step("free", "x"),
        Step("append", "a", big),
        Step("append", "a", tokens(n, 1)),
    )
    return Scene(n(2, block_size), block_size, blocks + other_blocks + spare, steps, exact=False)


_BEFORE = (
    "The new token's query sees `window` tokens, itself included: window - 1 before it. Blocks "
    "before these go first, so that the new token can take one of them."
)
_FIRST = "Of several new tokens, the query of the first one looks back furthest: it decides."
_SHARED = "A table gives back its own reference; the block is free when nobody names it."
_NAMES = "A block that was let go keeps its name, and those after it are named after it."
SCENES = (
    # a scene, what it isolates, what its failure means
    (smallest_pool, "one token a step, in the smallest pool", _BEFORE),
    (any_window, "one token a step, another window", _BEFORE),
    (window_of_one, "a window of one token, in a pool of one block",
     "With a window of one token, all full blocks go: nothing before the new token is seen."),
    (chunk, "several tokens at once", _FIRST),
    (fork, "two sequences share blocks", _SHARED),
    (prefix_cache, "full blocks are found by their names", _NAMES),
    (last_one_first, "blocks that are let go together: the first of them is evicted last",
     "Give the last block back first, as BlockTable.free does: a block is of use to others only "
     "with all blocks before it."),
    (no_room, "OutOfBlocks: no new token is in the table", "All new tokens go in by one append."),
)  # fmt: skip
