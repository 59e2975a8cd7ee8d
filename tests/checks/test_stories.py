"""The stories of memory managers: ours tells them right, and a wrong one is told what is wrong."""

from collections.abc import Callable, Hashable

import pytest

from pa_tutorial.checks import check
from pa_tutorial.checks import prefix_cache_check as ours
from pa_tutorial.checks.block_manager_check import STORIES, story_trial
from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.pages_at_work import PagesAtWork
from pa_tutorial.checks.running import Trial, judge
from pa_tutorial.exercises import pages as reader
from pa_tutorial.paging.block_pages import BlockPages
from pa_tutorial.paging.pages import Appended
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator

ALL_STORIES = [(story_trial, name) for name in STORIES]
ALL_STORIES += [(ours.prefix_trial, name) for name in ours.STORIES]


@pytest.mark.block_manager
@pytest.mark.parametrize(("trial", "name"), ALL_STORIES, ids=[name for _, name in ALL_STORIES])
def test_our_pages_tell_the_story_as_plain_lists_do(
    trial: Callable[[str], Trial], name: str
) -> None:
    case, comparisons = judge(trial(name), None)
    assert case.passed, case.report()
    assert comparisons[0].bound == 0
    assert case.meaning.endswith(".")


@pytest.mark.block_manager
def test_what_a_reader_writes_in_01_to_06_tells_all_stories_right() -> None:
    assert check("block_manager", reader.Pages).passed == len(STORIES)


class Forgetful(PrefixCachingAllocator):
    """Never shares a block again."""

    def find(self, previous: object, tokens: tuple[int, ...], extra: Hashable) -> None:
        return None


def test_an_allocator_that_shares_nothing_fails_only_where_sharing_is_asked_for() -> None:
    cases = check("prefix_cache", Forgetful, raises=False).cases
    failed = {case.name for case in cases if not case.passed}
    assert {"shared_prompt", "hash_collision", "deepest_is_evicted_first"} <= failed
    assert "sliding_window" not in failed


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


@pytest.mark.parametrize(
    ("allocator", "story", "says"),
    [
        (Leaking, "blocks_are_reused", "blocks [1, 2] left the tables but didn't become free"),
        (Overcounting, "fork_and_write", "b copied block 2, although no other sequence has it"),
        (Unshared, "fork_and_write", "a wrote into block 2, which b reads too"),
    ],
)
def test_a_lost_block_an_extra_reference_and_a_shared_write_are_named(
    allocator: type, story: str, says: str
) -> None:
    def make_pages(num_blocks: int, block_size: int) -> BlockPages:
        pages = BlockPages(num_blocks, block_size)
        pages.allocator = allocator(num_blocks)
        return pages

    case, _ = judge(story_trial(story), make_pages)
    assert says in " ".join(case.diagnosis.split())


class NamedByRequest(reader.Pages):
    """Of a pair, only the first number counts."""

    def append(self, name: Hashable, token_ids: list[int]) -> Appended:
        return super().append(first_of(name), token_ids)

    def fork(self, name: Hashable, new: Hashable) -> None:
        super().fork(first_of(name), first_of(new))

    def free(self, name: Hashable) -> None:
        super().free(first_of(name))

    def table(self, name: Hashable) -> list[int]:
        return super().table(first_of(name))


def first_of(name: Hashable) -> Hashable:
    return name[0] if isinstance(name, tuple) else name


class SequencePerBlock(reader.Pages):
    """There is room for as many sequences as blocks."""

    def fork(self, name: Hashable, new: Hashable) -> None:
        if len(self.sequences) == self.num_blocks:
            raise IndexError("no row is left")
        super().fork(name, new)


class ShortTables(reader.Pages):
    """A table has 64 places."""

    def table(self, name: Hashable) -> list[int]:
        return super().table(name)[:64]


class SlotPerToken(reader.Pages):
    """The slots are found again by their tokens."""

    def append(self, name: Hashable, token_ids: list[int]) -> Appended:
        appended = super().append(name, token_ids)
        slots = dict(zip(token_ids, appended.slots, strict=True))
        return Appended(appended.copies, [slots[token] for token in token_ids])


@pytest.mark.parametrize(
    ("pages", "story"),
    [
        (NamedByRequest, "names_of_an_engine"),
        (SequencePerBlock, "many_forks"),
        (ShortTables, "long_tables"),
        (SlotPerToken, "equal_tokens"),
    ],
)
def test_only_this_story_tells_what_is_wrong(pages: type, story: str) -> None:
    cases = check("block_manager", pages, raises=False).cases
    assert [case.name for case in cases if not case.passed] == [story]


class SameLists(reader.Pages):
    """Each append fills the lists that the last one returned."""

    def append(self, name: Hashable, token_ids: list[int]) -> Appended:
        new, self.last = super().append(name, token_ids), getattr(self, "last", Appended([], []))
        self.last.copies[:], self.last.slots[:] = new.copies, new.slots
        return self.last


def test_what_append_returned_must_stay_as_it_was() -> None:
    case, _ = judge(story_trial("prompts_and_tokens"), SameLists)
    assert "append changed what it had returned before" in " ".join(case.diagnosis.split())


class Spoiled(BlockPages):
    """An operation that is refused, but has changed something."""

    def append(self, name: Hashable, token_ids: list[int]) -> object:
        if len(token_ids) > 1:
            super().append(name, token_ids[:1])
        return super().append(name, token_ids)


def test_an_operation_that_is_not_refused_or_changes_something_is_noticed() -> None:
    world = PagesAtWork(Spoiled, num_blocks=3)
    world.append("a", 1)
    with pytest.raises(AnswerError, match="it wasn't refused; it must raise OutOfBlocks"):
        world.refused("OutOfBlocks", "append", "a", 2)
    world = PagesAtWork(Spoiled, num_blocks=2)
    for token in range(1, 5):
        world.append("a", token)
    world = PagesAtWork(Spoiled, num_blocks=3)
    for token in range(1, 5):
        world.append("a", token)
    with pytest.raises(AnswerError, match=r"it was refused, but the table of a changed from \[1\]"):
        world.refused("OutOfBlocks", "append", "a", *range(9))
