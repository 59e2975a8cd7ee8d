"""Checks of a memory manager: short stories about sequences, also played with plain lists.

    check("block_manager")
    check("block_manager", make_pages)  # of num_blocks and block_size: an object of Pages

After each operation of a story, what each sequence reads through its block table must equal its
list, and the blocks that are in no table must be free.
"""

from collections.abc import Callable
from functools import partial

import torch

from pa_tutorial.checks.pages_at_work import MakePages, PagesAtWork, play
from pa_tutorial.checks.running import Trial
from pa_tutorial.checks.script import Script, scripts
from pa_tutorial.paging.block_pages import BlockPages

BLOCK_MANAGER = "block_manager"
STORIES = scripts("stories.txt")
# Nothing that these stories tell is found in a prefix cache, so it must not matter.
OURS = (partial(BlockPages, prefix_caching=False), BlockPages)


def trial_of(name: str, story: Script, num_right: Callable[[object], int]) -> Trial:
    """num_right plays the story with what is tried, and returns how many operations went right."""
    num_operations = sum(one.method not in ("fact", "may_start") for one in story.operations)
    return Trial(
        name=name,
        isolates=story.isolates,
        meaning=story.meaning,
        run=lambda tried: {"out": torch.tensor([num_right(tried)])},
        references={"plain lists": lambda: {"out": torch.tensor([num_operations])}},
        bounds={"out": 0.0},
        axes=("operations",),
    )


def story_trial(name: str) -> Trial:
    """The trial of one story."""
    story = STORIES[name]

    def num_right(make_pages: MakePages | None) -> int:
        tried = OURS if make_pages is None else (make_pages,)
        return min(play(PagesAtWork(make, **story.options), story.operations) for make in tried)

    return trial_of(name, story, num_right)


def story_trials() -> list[Trial]:
    return [story_trial(name) for name in STORIES]
