"""Checks of what is ours alone: the prefix cache, swapping, sliding windows, the watermark.

check("prefix_cache")
check("prefix_cache", MyAllocator)  # a class like PrefixCachingAllocator
"""

from collections.abc import Callable, Hashable
from typing import Any

from pa_tutorial.checks.block_manager_check import trial_of
from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.pages_at_work import PagesAtWork, Tables, play, prefix_numbers
from pa_tutorial.checks.running import Trial
from pa_tutorial.checks.script import scripts
from pa_tutorial.paging.allocator import NULL_BLOCK
from pa_tutorial.paging.block_pages import BlockPages
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.kv_cache import swap_blocks
from pa_tutorial.paging.pages import Appended, padded
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator

PREFIX_CACHE = "prefix_cache"
STORIES = scripts("prefix_stories.txt")


def same_hash(*content: object) -> int:
    """A hash function so bad, on purpose, that everything collides."""
    return 7


def hash_of_tokens(previous: int | None, tokens: tuple[int, ...], extra: Hashable) -> int:
    """A hash of neither the chain nor the key."""
    return hash(tokens)


def hash_of_last_token(previous: int | None, tokens: tuple[int, ...], extra: Hashable) -> int:
    return tokens[-1]


HASHES = {one.__name__: one for one in (same_hash, hash_of_tokens, hash_of_last_token)}


class OursAtWork(PagesAtWork):
    """BlockPages with a second pool on the host, and the operations of its parts."""

    def __init__(
        self,
        allocator_class: Callable[..., PrefixCachingAllocator],
        num_blocks: int = 10,
        **options: Any,
    ) -> None:
        super().__init__(BlockPages, num_blocks)
        self.pages.allocator = self.device = allocator_class(num_blocks, **options)
        self.host = PrefixCachingAllocator(num_blocks)
        self.caches = {self.device: self.cache, self.host: self._new_cache()}
        self.extra: dict[str, int] = {}
        self.gone: dict[str, int] = {}  # blocks that slid out of the window
        self.last_cached = 0  # tokens of the last append that need not be computed

    @property
    def cached(self) -> int:
        return self.pages.num_cached

    def start(self, name: str, *tokens: int, extra: int = 0) -> None:
        self.extra[name] = extra
        self.pages.sequences[name] = BlockTable(self.device, self.block_size, extra)
        self.append(name, *tokens)

    def fork(self, name: str, new: str) -> None:
        self.extra[new], self.gone[new] = self.extra[name], self.gone.get(name, 0)
        super().fork(name, new)

    def slide(self, name: str, window: int) -> None:
        before = self.tables()
        self._table(name).slide(window)
        outside = max(0, len(self.tokens[name]) - window) // self.block_size
        self.gone[name] = max(self.gone.get(name, 0), outside)
        self._require_tables(before, name)
        self._require_counts(before, name)

    def swap(self, name: str, to: str) -> None:
        """Move a sequence to the host's pool, or back to the device's."""
        before, table = self.tables(), self._table(name)
        target = {"host": self.host, "device": self.device}[to]
        source = self.caches[table.allocator]
        swap_blocks(source, self.caches[target], table.move_to(target))
        self._require_read(name, padded([table.blocks])[0], self.caches[target])
        self._require_counts(before, name)
        self._require_reads()

    def reset(self) -> None:
        self.device.reset()

    def free_block(self, block: int) -> None:
        self.device.free(block)

    def share_block(self, block: int) -> None:
        self.device.share(block)

    def tables(self) -> Tables:
        """Only those of the device's pool."""
        here = super().tables()
        return {name: here[name] for name in here if self._table(name).allocator is self.device}

    def _table(self, name: str) -> BlockTable:
        return self.pages.sequences[name]

    def _state(self) -> dict[str, object]:
        counts = {
            f"the reference counts of {pool}": allocator.ref_counts.copy()
            for pool, allocator in (("the device", self.device), ("the host", self.host))
        }
        return {**super()._state(), **counts, "num_cached": self.cached}

    def _without_gone(self, name: str, table: list[int]) -> list[int]:
        gone = self.gone.get(name, 0)
        if table[:gone] != [NULL_BLOCK] * gone:
            raise AnswerError(f"{gone} blocks of {name} slid out, but its table is {table}")
        return table[gone:]

    def _numbers(self, name: str) -> list[int]:
        return prefix_numbers(self.tokens[name], self.extra.get(name, 0))

    def _write(self, name: str, appended: Appended) -> None:
        self.last_cached = appended.num_cached
        super()._write(name, appended)


def prefix_trial(name: str) -> Trial:
    """The trial of one story."""
    story = STORIES[name]
    options = {option: HASHES.get(value, value) for option, value in story.options.items()}

    def num_right(allocator_class: Callable[..., PrefixCachingAllocator] | None) -> int:
        world = OursAtWork(allocator_class or PrefixCachingAllocator, **options)
        return play(world, story.operations)

    return trial_of(name, story, num_right)


def prefix_trials() -> list[Trial]:
    return [prefix_trial(name) for name in STORIES]
