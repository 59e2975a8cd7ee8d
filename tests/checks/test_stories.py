"""The stories of the block manager: ours tells them right, and a wrong one is caught."""

from collections.abc import Hashable

import pytest

from pa_tutorial.checks import check
from pa_tutorial.checks.block_manager_check import STORIES, WIDTH, ListModel, World, story_trial
from pa_tutorial.checks.running import judge
from pa_tutorial.paging.errors import UseAfterFree
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator


@pytest.mark.block_manager
@pytest.mark.parametrize("name", STORIES)
def test_block_manager_tells_the_story_as_plain_lists_do(name: str) -> None:
    case, comparisons = judge(story_trial(name), None)
    assert case.passed, case.report()
    assert comparisons[0].bound == 0
    model = ListModel()
    STORIES[name].play(model)
    assert max([len(model.facts), *map(len, model.tokens.values())]) <= WIDTH, "it is cut"
    assert case.meaning.endswith(".")


class Forgetful(PrefixCachingAllocator):
    """Never shares a block again."""

    def find(self, previous: object, tokens: tuple[int, ...], extra: Hashable) -> None:
        return None


def test_an_allocator_that_shares_nothing_fails_only_where_sharing_is_asked_for() -> None:
    cases = check("block_manager", Forgetful, raises=False).cases
    failed = {case.name for case in cases if not case.passed}
    assert {"shared_prompt", "hash_collision", "deepest_is_evicted_first"} <= failed
    assert "fork_and_write" not in failed


class Leaking(PrefixCachingAllocator):
    """A block that nobody holds any more is never free again."""

    def _release(self, block: int) -> None:
        pass


class Overcounting(PrefixCachingAllocator):
    """A table that shares a block counts twice."""

    def share(self, block: int) -> None:
        super().share(block)
        super().share(block)


class Unshared(PrefixCachingAllocator):
    """A table thinks that it may write into each of its blocks."""

    def is_shared(self, block: int) -> bool:
        return False


NUM_BLOCKS = 10  # of each story below: the row begins with a number for each


@pytest.mark.parametrize(
    ("allocator", "story", "wrong"),
    [
        (Leaking, "blocks_are_reused", NUM_BLOCKS),
        (Overcounting, "an_empty_append", 1),
        (Unshared, "fork_and_write", NUM_BLOCKS + 1),
    ],
)
def test_a_lost_block_an_extra_reference_and_a_shared_write_are_seen(
    allocator: type, story: str, wrong: int
) -> None:
    """In the last row, whatever else goes wrong; how much is what the allocator did."""
    (comparison,) = judge(story_trial(story), allocator)[1]
    last_row = comparison.actual[-1]
    assert last_row[wrong] > 0
    assert not comparison.expected[-1].any()


def test_the_story_notes_an_operation_that_is_not_refused_or_changes_something() -> None:
    world = World(num_blocks=5)
    world.start("a", 1, 2)

    def spoil() -> None:
        world.tables["a"].token_ids.append(3)
        raise UseAfterFree

    world.spoil = spoil  # an operation of its own
    world.refused("UseAfterFree", "spoil")
    world.refused("OutOfBlocks", "append", "a", 3)
    assert world.facts == [1, 2]
