"""The stories of the block manager: ours tells them right, and a wrong one is caught."""

from collections.abc import Hashable

import pytest

from pa_tutorial.checks import attempt
from pa_tutorial.checks.block_manager_check import (
    WIDTH,
    ListModel,
    World,
    prefix_numbers,
    story_trial,
)
from pa_tutorial.checks.running import judge
from pa_tutorial.checks.story import STORIES
from pa_tutorial.paging.errors import OutOfBlocks, UseAfterFree
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator


@pytest.mark.block_manager
@pytest.mark.parametrize("name", STORIES)
def test_block_manager_tells_the_story_as_plain_lists_do(name: str) -> None:
    case, comparisons = judge(story_trial(name), None)
    assert case.passed, case.report()
    assert comparisons[0].bound == 0


@pytest.mark.parametrize("name", STORIES)
def test_every_story_fits_into_the_comparison(name: str) -> None:
    model = ListModel()
    STORIES[name].tell(model)
    assert max([len(model.facts), *map(len, model.tokens.values())]) <= WIDTH
    assert STORIES[name].meaning.endswith(".")


def test_another_allocator_may_be_checked() -> None:
    class Forgetful(PrefixCachingAllocator):
        """Never shares a block again."""

        def find(self, previous: object, tokens: tuple[int, ...], extra: Hashable) -> None:
            return None

    result = attempt("block_manager", Forgetful)
    failed = {case.name for case in result.cases if not case.passed}
    assert {"shared_prompt", "hash_collision", "deepest_is_evicted_first"} <= failed
    assert "fork_and_write" not in failed


def test_a_block_that_is_given_out_twice_is_seen() -> None:
    class Twice(PrefixCachingAllocator):
        def allocate(self) -> int:
            block = super().allocate()
            if self.num_free > 4:
                self._free.append(block)
            return block

    assert not attempt("block_manager", Twice).ok


def test_prefix_numbers_tell_prefixes_apart() -> None:
    assert prefix_numbers([5, 6, 7], 0)[2] != prefix_numbers([6, 5, 7], 0)[2]
    assert prefix_numbers([5], 1) != prefix_numbers([5], 2)
    assert max(prefix_numbers([2**20, 3], 9)) < 2**16


def test_an_operation_that_is_not_refused_fails_the_story() -> None:
    world = World(num_blocks=5)
    world.start("a", [1, 2])
    world.refused(OutOfBlocks, "append", "a", [3])
    assert world.facts == [2]


def test_a_refused_operation_that_changes_something_fails_the_story() -> None:
    world = World(num_blocks=5)
    world.start("a", [1, 2])

    def spoil() -> None:
        world.tables["a"].token_ids.append(3)
        raise UseAfterFree

    world.spoil = spoil
    world.refused(UseAfterFree, "spoil")
    assert world.facts == [1]


def test_a_write_to_a_shared_block_is_counted() -> None:
    world = World(num_blocks=5)
    world.start("a", [1, 2])
    world.allocator.share(world.tables["a"].blocks[0])
    appended = world.tables["a"].append([])
    assert appended.slots == []
    table = world.tables["a"]
    table.token_ids.append(3)
    world._write(table, type(appended)([], [table.blocks[0] * 4 + 2]))
    assert world.shared_writes == 1
