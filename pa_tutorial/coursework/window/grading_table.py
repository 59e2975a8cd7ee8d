"""Grading of append_in_window: sequences are told step by step, and every query asks its tokens."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial, describe
from pa_tutorial.coursework.window.files import solution
from pa_tutorial.coursework.window.table_scenes import SCENES, Scene, Step
from pa_tutorial.paging.allocator import NULL_BLOCK, BlockAllocator
from pa_tutorial.paging.block_table import Appended, BlockTable
from pa_tutorial.paging.errors import OutOfBlocks
from pa_tutorial.paging.layouts import PAD_SLOT
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from pa_tutorial.walk.calls import AnswerError, require_written

NOTHING = -1  # what a slot holds that nobody may read


def append_in_window_trials(draw: int = 0) -> list[Trial]:
    trials = []
    for number, (scene_of, isolates, meaning) in enumerate(SCENES):
        rng = np.random.default_rng((draw, number))
        scene = scene_of(lambda a, b, rng=rng: int(rng.integers(a, b + 1)))
        trials.append(
            Trial(
                name=scene_of.__name__,
                isolates=isolates,
                meaning=meaning,
                run=partial(played, scene),
                references={"plain lists of tokens": partial(told, scene)},
                bounds={"out": 0.0},
                axes=(
                    "|".join(
                        scene.words_of(i)
                        for i in range(len(scene.steps))
                        if scene.steps[i].does == "append"
                    ),
                    "the number of entries of the table|the number of null blocks in it|"
                    "the number of blocks with a name",
                ),
            )
        )
    return trials


def told(scene: Scene) -> dict[str, Tensor]:
    """[appends, 3] from plain lists of tokens."""
    lists: dict[str, tuple[int, ...]] = {}
    named: set[tuple[int, ...]] = set()
    rows = []
    for step in scene.steps:
        if step.does == "fork":
            lists[step.other] = lists[step.name]
        if step.does != "append":
            continue
        before = lists.get(step.name, ())
        lists[step.name] = after = before + step.tokens
        size = scene.block_size
        named |= {after[:end] for end in range(size, len(after) + 1, size) if scene.cached}
        gone = max(0, len(before) - scene.window + 1) // size if scene.exact else 0
        rows.append((-(-len(after) // size), gone, 0 if scene.evicts else len(named)))
    return {"out": torch.tensor(rows)}


def played(scene: Scene, answer: Callable | None) -> dict[str, Tensor]:
    """[appends, 3] as an answer does it. AnswerError if a query does not see its tokens."""
    world = World(scene, solution()["append_in_window"] if answer is None else answer)
    for number, step in enumerate(scene.steps):
        try:
            world.do(step)
        except Exception as error:
            raise AnswerError(f"{scene.words_of(number)}: {describe(error)}") from error
    for name, table in world.tables.items():
        long = table.num_tokens > scene.window + 2 * scene.block_size
        if not scene.exact and long and table.blocks[0] != NULL_BLOCK:
            raise AnswerError(f"sequence {name} has not let go of its first block")
    return {"out": torch.tensor(world.rows)}


class World:
    """Sequences, with tokens in the place of their K and V.

    held  [num_blocks, block_size] the token in each slot; NOTHING where nobody may read
    """

    def __init__(self, scene: Scene, answer: Callable[..., Appended]) -> None:
        self.window, self.block_size = scene.window, scene.block_size
        self.exact, self.evicts = scene.exact, scene.evicts
        self.answer = answer
        kind = PrefixCachingAllocator if scene.cached else BlockAllocator
        self.allocator = kind(scene.num_usable + 1)
        self.held = np.full((scene.num_usable + 1, scene.block_size), NOTHING)
        self.tables: dict[str, BlockTable] = {}
        self.rows: list[tuple[int, int, int]] = []

    @property
    def names(self) -> dict:
        cached = isinstance(self.allocator, PrefixCachingAllocator)
        return self.allocator.named_blocks() if cached else {}

    def do(self, step: Step) -> None:
        if step.does == "fork":
            self.tables[step.other] = self.tables[step.name].fork()
        elif step.does == "free":
            self.tables.pop(step.name).free()
        elif step.does == "refuse":
            self.refuse(step)
        elif step.does == "find":
            self.find(step)
        else:
            self.append(step)
        for name, table in self.tables.items():
            self.require_seen(name, table, table.num_tokens)
        self.require_counts()
        self.require_names()
        for block, count in enumerate(self.allocator.ref_counts):
            if count == 0 and block not in self.names:
                self.held[block] = NOTHING

    def append(self, step: Step) -> None:
        table = self.tables.setdefault(step.name, BlockTable(self.allocator, self.block_size))
        before = list(table.token_ids)
        appended = require_written(self.answer(table, list(step.tokens), self.window))
        if not isinstance(appended, Appended):
            raise AnswerError(f"it returned {appended!r:.60}; it must return what append returns")
        if table.token_ids != [*before, *step.tokens] or len(appended.slots) != len(step.tokens):
            raise AnswerError("the new tokens are not in the table, or have no slot each")
        for source, destination in appended.copies:
            self.held[destination] = self.held[source]
        for slot, token in zip(appended.slots, step.tokens, strict=True):
            if slot != PAD_SLOT:
                self.held.reshape(-1)[slot] = token
        for position in range(len(before), table.num_tokens):
            self.require_seen(step.name, table, position)
        null = table.blocks.count(NULL_BLOCK)
        named = 0 if self.evicts else len(self.names)
        self.rows.append((len(table.blocks), null if self.exact else 0, named))

    def refuse(self, step: Step) -> None:
        table = self.tables[step.name]
        before = list(table.token_ids)
        try:
            require_written(self.answer(table, list(step.tokens), self.window))
        except OutOfBlocks as error:
            if table.token_ids != before:
                raise AnswerError("it raised OutOfBlocks, with new tokens in the table") from error
        else:
            raise AnswerError("there is no room, but it did not raise OutOfBlocks")

    def find(self, step: Step) -> None:
        found = BlockTable(self.allocator, self.block_size).look_up(step.tokens).num_cached
        if found != len(step.tokens) - 1:
            raise AnswerError(
                f"a new sequence begins like {step.name}, and finds {found} tokens in the cache "
                f"where {len(step.tokens) - 1} could still be there: a block that is given back "
                "first is evicted first, and without it nobody finds those behind it"
            )

    def require_seen(self, name: str, table: BlockTable, position: int) -> None:
        """A query at this position must find its tokens, those before it and, if there is one,
        the one at its own position."""
        end = min(position + 1, table.num_tokens)
        for seen in range(max(0, position - self.window + 1), end):
            where = f"sequence {name}: the query at position {position} sees position {seen}"
            index, offset = divmod(seen, self.block_size)
            if index >= len(table.blocks) or table.blocks[index] == NULL_BLOCK:
                raise AnswerError(f"{where}, whose block was let go")
            if self.held[table.blocks[index], offset] != table.token_ids[seen]:
                raise AnswerError(f"{where}; block {table.blocks[index]} does not hold its token")

    def require_counts(self) -> None:
        """Every block has as many references as tables name it."""
        named = [block for table in self.tables.values() for block in table.blocks]
        for block in range(1, len(self.held)):
            count, found = named.count(block), self.allocator.ref_counts[block]
            if count != found:
                raise AnswerError(
                    f"block {block} stands in tables {count} times, and has {found} references"
                )

    def require_names(self) -> None:
        """The name of a block tells all tokens up to its end."""
        for name, table in self.tables.items():
            for index, block in enumerate(table.blocks):
                full = self.names.get(block)
                wanted = table.token_ids[: (index + 1) * self.block_size]
                if full is not None and told_by(full) != wanted:
                    raise AnswerError(
                        f"sequence {name}: the name of block {block} does not tell all tokens "
                        "before it; others will find it who must not"
                    )


def told_by(full: object) -> Sequence[int]:
    """The tokens of a name and of all names before it."""
    found: list[int] = []
    while full is not None:
        found = [*full.tokens, *found]
        full = full.previous
    return found
