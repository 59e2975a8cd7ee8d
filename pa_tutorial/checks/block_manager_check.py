"""Checks of the memory manager: short stories about sequences, also played with plain lists.

    check("block_manager")

Every story runs twice: on a World, with allocator, block tables and cache tensors, and on
a ListModel, which stores each sequence as a list of tokens. At the end, what each sequence
reads through its block table must equal its list.
"""

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from pa_tutorial.checks.running import Trial
from pa_tutorial.checks.script import Script, scripts
from pa_tutorial.paging import errors
from pa_tutorial.paging.allocator import NULL_BLOCK, Admission
from pa_tutorial.paging.block_table import Appended, BlockTable, padded_block_tables
from pa_tutorial.paging.kv_cache import PagedKVCache, swap_blocks
from pa_tutorial.paging.layouts import PAD_SLOT, VllmLayout
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator

BLOCK_MANAGER = "block_manager"
STORIES = scripts("stories.txt")
BLOCK_SIZE = 4
WIDTH = 32  # of a row in the comparison; also the longest sequence
NUM_LAYERS = 3  # the first, one in the middle, and the last
HEADS = (2, 8)  # num_kv_heads, head_size: two pieces of x = 4
# [num_kv_heads, head_size]; exact in float32 when added to a token or a prefix number
MARKS = 65536.0 * torch.arange(16.0).reshape(HEADS)


def same_hash(*content: object) -> int:
    """A hash function so bad, on purpose, that everything collides."""
    return 7


def hash_of_tokens(previous: int | None, tokens: tuple[int, ...], extra: Hashable) -> int:
    """A hash of neither the chain nor the key."""
    return hash(tokens)


def hash_of_last_token(previous: int | None, tokens: tuple[int, ...], extra: Hashable) -> int:
    return tokens[-1]


HASHES = {one.__name__: one for one in (same_hash, hash_of_tokens, hash_of_last_token)}


def prefix_numbers(tokens: list[int], extra: int) -> list[int]:
    """One number per token that depends on all tokens up to it, as K and V do; below 2 ** 16."""
    number, numbers = extra, []
    for token in tokens:
        number = (number * 31 + token + 1) % 65521
        numbers.append(number)
    return numbers


class ListModel:
    """The expected result, from plain lists: a story without any memory manager."""

    def __init__(self, num_blocks: int = 10, **options: object) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.extra: dict[str, int] = {}
        self.gone: dict[str, int] = {}  # how many tokens slid out of the window
        self.facts: list[float] = []

    def start(self, name: str, *tokens: int, extra: int = 0) -> None:
        """A new sequence with a prompt."""
        self.tokens[name], self.extra[name], self.gone[name] = list(tokens), extra, 0

    def append(self, name: str, *tokens: int) -> None:
        self.tokens[name] += tokens

    def fork(self, name: str, new: str) -> None:
        self.tokens[new] = self.tokens[name].copy()
        self.extra[new], self.gone[new] = self.extra[name], self.gone[name]

    def free(self, name: str) -> None:
        del self.tokens[name]

    def slide(self, name: str, window: int) -> None:
        outside = max(0, len(self.tokens[name]) - window)
        self.gone[name] = max(self.gone[name], outside - outside % BLOCK_SIZE)

    def swap(self, name: str, to: str) -> None:
        """Move a sequence to the host's pool, or back to the device's."""

    def reset(self) -> None:
        pass

    def fact(self, what: str, expected: int) -> None:
        """A number that must be right now; `what` is an attribute of World."""
        self.facts.append(expected)

    def may_start(self, num_blocks: int, expected: str) -> None:
        """What can_allocate must answer right now: now, later or never."""
        self.facts.append(list(Admission).index(Admission(expected)))

    def refused(self, error: str, operation: str, *arguments: object) -> None:
        """The operation must raise this error (of paging/errors.py, or ValueError) and change
        nothing."""
        self.facts.append(0)

    def rows(self) -> Tensor:
        """[rows, WIDTH] float64: tokens and prefix numbers of each sequence, facts, zeros."""
        rows = []
        for name, tokens in self.tokens.items():
            numbers = prefix_numbers(tokens, self.extra[name])
            for row in (tokens, numbers):
                rows.append([0] * self.gone[name] + row[self.gone[name] :])
        return as_rows([*rows, self.facts, []])

    def names(self) -> list[str]:
        """The names of the rows."""
        sides = ("K (its tokens)", "V (depends on all tokens before)")
        rows = [f"{side} of sequence {name}" for name in self.tokens for side in sides]
        return [*rows, "facts of the story", "extra references, lost blocks, shared writes"]


class World:
    """The real memory manager, with the operations of ListModel.

    K holds the token and V its prefix number, plus a different number for each layer, head
    and dimension, so that no exchange goes unnoticed.
    """

    def __init__(
        self,
        allocator_class: Callable[..., PrefixCachingAllocator] = PrefixCachingAllocator,
        num_blocks: int = 10,
        **options: object,
    ) -> None:
        self.allocator = allocator_class(num_blocks, **options)
        self.host = PrefixCachingAllocator(num_blocks)
        self.caches = {
            allocator: PagedKVCache(VllmLayout(num_blocks, *HEADS, BLOCK_SIZE), NUM_LAYERS)
            for allocator in (self.allocator, self.host)
        }
        self.tables: dict[str, BlockTable] = {}
        self.freed: dict[str, BlockTable] = {}
        self.facts: list[float] = []
        self.last_cached = 0  # tokens of the last append that need not be computed
        self.copied = 0  # blocks, so far
        self.shared_writes = 0  # tokens written to a block that another table also uses

    @property
    def used(self) -> int:
        """Blocks of the pool that tables use."""
        return sum(count > 0 for count in self.allocator.ref_counts)

    @property
    def cached(self) -> int:
        return self.allocator.num_cached

    def start(self, name: str, *tokens: int, extra: int = 0) -> None:
        table = BlockTable(self.allocator, BLOCK_SIZE, extra)
        appended = table.append(tokens)  # first, because it may be refused
        self.tables[name] = table
        self._write(table, appended)

    def append(self, name: str, *tokens: int) -> None:
        table = self._table(name)
        self._write(table, table.append(tokens))

    def fork(self, name: str, new: str) -> None:
        self.tables[new] = self._table(name).fork()

    def free(self, name: str) -> None:
        self._table(name).free()
        self.freed[name] = self.tables.pop(name)

    def slide(self, name: str, window: int) -> None:
        self.tables[name].slide(window)

    def swap(self, name: str, to: str) -> None:
        table, target = self.tables[name], {"host": self.host, "device": self.allocator}[to]
        source = self.caches[table.allocator]
        pairs = table.move_to(target)
        self.shared_writes += sum(target.ref_counts[new] > 1 for _, new in pairs)
        swap_blocks(source, self.caches[target], pairs)

    def make_batch(self, width: int) -> None:
        """The padded block tables of all sequences."""
        padded_block_tables(list(self.tables.values()), width)

    def reset(self) -> None:
        self.allocator.reset()

    def free_block(self, block: int) -> None:
        self.allocator.free(block)

    def share_block(self, block: int) -> None:
        self.allocator.share(block)

    def fact(self, what: str, expected: int) -> None:
        self.facts.append(getattr(self, what))

    def may_start(self, num_blocks: int, expected: str) -> None:
        self.facts.append(list(Admission).index(self.allocator.can_allocate(num_blocks)))

    def refused(self, error: str, operation: str, *arguments: object) -> None:
        before = self._numbers()
        try:
            getattr(self, operation)(*arguments)
        except getattr(errors, error, ValueError):
            self.facts.append(float(self._numbers() != before))
        else:
            self.facts.append(2)  # not refused
            self.tables = {name: self.tables[name] for name in before[-1]}

    def rows(self) -> Tensor:
        rows = [row for table in self.tables.values() for row in self._read(table)]
        return as_rows([*rows, self.facts, self._balance()])

    def _table(self, name: str) -> BlockTable:
        return self.tables[name] if name in self.tables else self.freed[name]

    def _write(self, table: BlockTable, appended: Appended) -> None:
        """Copies first, then the new tokens, in every layer."""
        self.last_cached, self.copied = appended.num_cached, self.copied + len(appended.copies)
        cache = self.caches[table.allocator]
        cache.copy_blocks(appended.copies)
        numbers = prefix_numbers(table.token_ids, table.extra)
        first = table.num_tokens - len(appended.slots)
        self.shared_writes += sum(
            slot != PAD_SLOT and table.allocator.ref_counts[slot // BLOCK_SIZE] > 1
            for slot in appended.slots
        )
        for layer in range(cache.num_layers):
            k, v = (
                torch.tensor(row[first:]).float().reshape(-1, 1, 1) + MARKS + layer
                for row in (table.token_ids, numbers)
            )
            cache.write(layer, k, v, torch.tensor(appended.slots, dtype=torch.int64))

    def _read(self, table: BlockTable) -> list[list[float]]:
        """Tokens and prefix numbers, through the padded block table; 0 where they slid out."""
        gone = BLOCK_SIZE * table.blocks.count(NULL_BLOCK)
        together = [t for t in self.tables.values() if t.allocator is table.allocator]
        batch = padded_block_tables(together)
        row = batch[together.index(table)]
        if batch.dtype != torch.int32 or row[len(table.blocks) :].any():
            return [[torch.nan], [torch.nan]]  # padding must be the null block, and int32
        cache = self.caches[table.allocator]
        layers = [cache.read(layer, row, table.num_tokens) for layer in range(NUM_LAYERS)]
        both = []
        for side in (0, 1):  # K holds the tokens, V the prefix numbers
            numbers = torch.stack([layer[side] - MARKS - n for n, layer in enumerate(layers)])
            agree = (numbers == numbers[:1, :, :1, :1]).all(dim=(0, 2, 3))
            values = torch.where(agree, numbers[0, :, 0, 0], torch.nan)
            values[:gone] = 0
            both.append(values.tolist())
        return both

    def _balance(self) -> list[float]:
        """Three numbers that must be 0: reference counts minus the tables that use each block,
        blocks that are neither free nor in use, and tokens that were written to a shared block."""
        named = [0] * self.allocator.num_blocks
        for table in self.tables.values():
            for block in table.blocks:
                if table.allocator is self.allocator and block != NULL_BLOCK:
                    named[block] += 1
        pairs = zip(self.allocator.ref_counts, named, strict=True)
        lost = self.allocator.num_usable - self.allocator.num_free - self.used
        return [*(count - number for count, number in pairs), lost, self.shared_writes]

    def _numbers(self) -> tuple:
        """Everything that a refused operation must leave unchanged."""
        tables = [(t.blocks.copy(), t.token_ids.copy()) for t in self.tables.values()]
        pools = [
            (a.ref_counts.copy(), a.num_free, a.num_cached) for a in (self.allocator, self.host)
        ]
        return tables, pools, list(self.tables)


def as_rows(rows: list[list[float]]) -> Tensor:
    """Rows of different lengths, padded with 0."""
    return torch.tensor([[*row, *[0] * (WIDTH - len(row))] for row in rows], dtype=torch.float64)


def pool_options(story: Script) -> dict[str, object]:
    """The allocator's options; a story gives its hash function by name."""
    return {name: HASHES.get(value, value) for name, value in story.options.items()}


def story_trial(name: str) -> Trial:
    """The trial of one story; the function to test is a class like PrefixCachingAllocator."""
    story = STORIES[name]
    model = ListModel(**story.options)
    story.play(model)

    def run(allocator_class: Callable | None) -> dict[str, Tensor]:
        world = World(allocator_class or PrefixCachingAllocator, **pool_options(story))
        story.play(world)
        return {"out": world.rows()}

    return Trial(
        name=name,
        isolates=story.isolates,
        meaning=story.meaning,
        run=run,
        references={"plain lists": lambda: {"out": model.rows()}},
        bounds={"out": 0.0},
        axes=("|".join(model.names()), "place"),
    )


def story_trials() -> list[Trial]:
    return [story_trial(name) for name in STORIES]
