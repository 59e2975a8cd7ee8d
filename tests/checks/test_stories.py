"""The stories of memory managers: ours tells them right, and a wrong one is told what is wrong."""

from collections.abc import Callable, Hashable

import pytest
import torch
from torch import Tensor

from pa_tutorial.checks import prefix_cache_check as ours
from pa_tutorial.checks.block_manager_check import STORIES, story_trial
from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.pages_at_work import PagesAtWork
from pa_tutorial.checks.running import Trial, judge
from pa_tutorial.exercises import pages as reader
from pa_tutorial.exercises.pages import Pages
from pa_tutorial.paging.pages import Appended

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


append, original = Pages.append, reader.Appended


def same_lists(pages: Pages, name: Hashable, token_ids: list[int]) -> Appended:
    """Each append fills the lists that the last one returned."""
    new, pages.last = append(pages, name, token_ids), getattr(pages, "last", Appended([], []))
    pages.last.copies[:], pages.last.slots[:] = new.copies, new.slots
    return pages.last


def clears_the_tokens(pages: Pages, name: Hashable, token_ids: list[int]) -> Appended:
    appended = append(pages, name, token_ids)
    token_ids.clear()
    return appended


def slot_per_token(pages: Pages, name: Hashable, token_ids: list[int]) -> Appended:
    """The slots are found again by their tokens."""
    appended = append(pages, name, token_ids)
    slots = dict(zip(token_ids, appended.slots, strict=True))
    return Appended(appended.copies, [slots[token] for token in token_ids])


def slot_off_by_a_block(table: Tensor, positions: Tensor, block_size: int) -> Tensor:
    return table[positions // block_size - 1] * block_size + positions % block_size


def spare_block(pages: Pages, name: Hashable) -> list[int]:
    return [*pages.sequences[name].blocks, 7]


# What stands in the place of a function of pages.py, in which story, and what that says.
WRONG = (
    ("release", lambda *_: None, "blocks_are_reused", "blocks [1, 2] left the tables but didn't"),
    ("release", lambda *_: None, "fork_and_write", "b copied block 2, although no other"),
    ("allocate", lambda pool: 0, "token_by_token", "a has block 0"),
    (
        "slot_mapping",
        slot_off_by_a_block,
        "prompts_and_tokens",
        "slot 8, which is block 2, offset 0; by its table [1, 2] it must go to slot 4, block 1",
    ),
    ("Pages.table", spare_block, "token_by_token", "a is longer than needed: [1, 7]; 1 token of 4"),
    ("Pages.append", clears_the_tokens, "token_by_token", "append changed the list of tokens"),
    ("Pages.append", same_lists, "prompts_and_tokens", "append changed what it had returned"),
    ("Pages.append", slot_per_token, "equal_tokens", "goes to slot"),
    ("Appended", lambda _, slots: original(None, slots), "token_by_token", "copies is None"),
    ("Appended", lambda c, slots: original(c, torch.tensor(slots)), "token_by_token", "slots is t"),
)


@pytest.mark.parametrize(("place", "function", "story", "says"), WRONG)
def test_what_is_wrong_is_named(
    place: str, function: Callable, story: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{reader.__name__}.{place}", function)
    case, _ = judge(story_trial(story), Pages)
    assert says in " ".join(case.diagnosis.split())


def test_integers_of_other_libraries_are_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "Appended", lambda c, slots: original(c, [*torch.tensor(slots)]))
    monkeypatch.setattr(
        Pages, "table", lambda self, name: torch.tensor(self.sequences[name].blocks)
    )
    assert judge(story_trial("fork_and_write"), Pages)[0].passed


def test_an_operation_that_is_not_refused_is_named() -> None:
    world = PagesAtWork(Pages, num_blocks=3)
    with pytest.raises(AnswerError, match="it wasn't refused; it must raise OutOfBlocks"):
        world.refused("OutOfBlocks", "append", "a", 1)
