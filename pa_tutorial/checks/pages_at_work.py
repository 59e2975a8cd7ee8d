"""A memory manager at work beside plain lists: who has which block, and what each sequence reads.

A PagesAtWork carries out each operation on an object of the protocol Pages (paging/pages.py), and
then looks it over. The first thing that is wrong is an AnswerError, in words for its author.
"""

import builtins
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import index
from textwrap import wrap

import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.checks.running import describe
from pa_tutorial.checks.script import Operation
from pa_tutorial.paging import errors
from pa_tutorial.paging.allocator import NULL_BLOCK
from pa_tutorial.paging.kv_cache import PagedKVCache
from pa_tutorial.paging.layouts import PAD_SLOT, VllmLayout
from pa_tutorial.paging.pages import Appended, Pages

MakePages = Callable[[int, int], Pages]  # of num_blocks and block_size
Tables = dict[Hashable, list[int]]  # the block table of each sequence

WIDTH = 110  # of what a failure shows
NUM_LAYERS = 3  # the first, one in the middle, and the last
HEADS = (2, 8)  # num_kv_heads, head_size: two pieces of x = 4
# [num_kv_heads, head_size]; exact in float32 when added to a token or a prefix number
MARKS = 65536.0 * torch.arange(16.0).reshape(HEADS)
# What facts count, for messages.
FACTS = {
    "used": "blocks in use",
    "copied": "blocks copied so far",
    "cached": "blocks in the prefix cache that no sequence has",
    "last_cached": "tokens of the last append that need not be computed",
}


def prefix_numbers(tokens: list[int], extra: int = 0) -> list[int]:
    """One number per token that depends on all tokens up to it, as K and V do; below 2 ** 16."""
    number, numbers = extra, []
    for token in tokens:
        number = (number * 31 + token + 1) % 65521
        numbers.append(number)
    return numbers


def they(names: Sequence[Hashable], does: str, do: str) -> str:
    """a reads; a and b read"""
    return f"{' and '.join(map(str, names))} {does if len(names) == 1 else do}"


def whole(numbers: Sequence[int], what: str) -> list[int]:
    """NumPy's and torch's integers are whole numbers, too."""
    try:
        return [index(numbers[place]) for place in range(len(numbers))]
    except TypeError:
        must = "it must be a list of whole numbers"
        raise AnswerError(f"{what} is {numbers!r:.60}; {must}") from None


def these(blocks: list[int], number: int) -> str:
    """So many of these blocks."""
    if not 0 < len(blocks) <= number:
        return f"{number} of the blocks {blocks}" if blocks else plural(number, "block")
    return f"block {blocks[0]}" if len(blocks) == 1 else f"blocks {blocks}"


def plural(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


class PagesAtWork:
    """The operations of a story, on an object of the protocol.

    K holds the token and V its prefix number, plus a different number for each layer, head
    and dimension, so that no exchange goes unnoticed.

    spell  a token as its author reads it
    """

    def __init__(
        self,
        make_pages: MakePages,
        num_blocks: int = 10,
        block_size: int = 4,
        spell: Callable[[int], str] = str,
    ) -> None:
        self.num_blocks, self.block_size, self.spell = num_blocks, block_size, spell
        self.pages = make_pages(num_blocks, block_size)
        self.cache = self._new_cache()
        self.tokens: dict[Hashable, list[int]] = {}  # the plain lists: what each sequence must read
        self.copied = 0
        self.last: tuple[Appended, Appended] | None = None  # what append returned, and a copy of it

    def _new_cache(self) -> PagedKVCache:
        return PagedKVCache(VllmLayout(self.num_blocks, *HEADS, self.block_size), NUM_LAYERS)

    # The operations

    def start(self, name: Hashable, *tokens: int) -> None:
        """A new sequence with a prompt."""
        self.append(name, *tokens)

    def append(self, name: Hashable, *tokens: int) -> None:
        before, needed = self.tables(), self.blocks_needed(name, len(tokens))
        unused, given = self._num_unused(), list(tokens)
        try:
            appended = self.pages.append(name, given)
        except errors.OutOfBlocks as error:
            if needed <= unused:
                raise AnswerError(
                    f"it was refused, although it needs {plural(needed, 'block')} and "
                    f"{unused} are free: OutOfBlocks: {error}"
                ) from error
            raise
        if not isinstance(appended, Appended):
            raise AnswerError(f"append returned {appended!r}; it must be Appended(copies, slots)")
        if given != list(tokens):
            raise AnswerError("append changed the list of tokens that it was given")
        self._require_last_unchanged()
        self.last = appended, plain(appended)
        appended = self.last[1]
        self.tokens[name] = [*self.tokens.get(name, []), *tokens]
        self._require_tables(before, name)
        self._require_copies(before, name, appended.copies)
        self._require_slots(before, name, appended.slots, len(tokens))
        self._write(name, appended)
        self._require_counts(before, name)
        self._require_reads()

    def fork(self, name: Hashable, *new: Hashable) -> None:
        for one in new:
            self._fork(name, one)

    def _fork(self, name: Hashable, new: Hashable) -> None:
        before = self.tables()
        self.pages.fork(name, new)
        self.tokens[new] = self.tokens[name].copy()
        self._require_tables(before, new)
        table = self.tables()[new]
        if table != before[name]:
            raise AnswerError(f"{new} has blocks {table}; {name}, which it copies, {before[name]}")
        self._require_counts(before, new)

    def free(self, name: Hashable) -> None:
        before = self.tables()
        self.pages.free(name)
        del self.tokens[name]
        self._require_tables(before, name)
        self._require_counts(before, name)
        self._require_reads()

    def make_batch(self, width: int) -> None:
        """The padded block tables of all sequences."""
        self.pages.tables(list(self.tokens), width)

    def fact(self, what: str, expected: int) -> None:
        """A number that must be right now; `what` is one of FACTS."""
        found = getattr(self, what)
        if found != expected:
            raise AnswerError(f"{FACTS[what]}: {found}; it must be {expected}")

    def may_start(self, num_tokens: int, expected: str) -> None:
        """What admit must answer right now, for as many unknown tokens: now, later or never."""
        answer = self.pages.admit(list(range(1000, 1000 + num_tokens)))
        if getattr(answer, "value", None) != expected:
            raise AnswerError(
                f"may a sequence of {num_tokens} tokens start? admit says {answer}; it must be "
                f"Admission.{expected.upper()}, since {self._num_unused()} blocks are free"
            )

    def refused(self, error: str, operation: str, *arguments: object) -> None:
        """The operation must raise this error (of paging/errors.py, or Python's) and change
        nothing."""
        expected = getattr(errors, error, None) or getattr(builtins, error)
        before, tokens = self._state(), {name: [*old] for name, old in self.tokens.items()}
        try:
            getattr(self, operation)(*arguments)
        except expected:
            self.tokens = tokens
        else:
            raise AnswerError(f"it wasn't refused; it must raise {error}")
        for (what, was), now in zip(before.items(), self._state().values(), strict=True):
            if was != now:
                raise AnswerError(f"it was refused, but {what} changed from {was} to {now}")

    # What can be asked

    @property
    def used(self) -> int:
        """Blocks that sequences have, by the count of free ones."""
        return self.num_blocks - 1 - self.pages.num_free

    def tables(self) -> Tables:
        return {n: whole(self.pages.table(n), f"the table of {n}") for n in self.tokens}

    def blocks_needed(self, name: Hashable, num_tokens: int) -> int:
        """What appending so many tokens takes, if none is found in a cache."""
        tables, length = self.tables(), len(self.tokens.get(name, []))
        table = tables.get(name, [])
        must_copy = length % self.block_size > 0 and len(owners(table[-1], tables)) > 1
        return self._num_blocks_of(length + num_tokens) - len(table) + must_copy

    def has_room(self, name: Hashable, num_tokens: int) -> bool:
        return self.blocks_needed(name, num_tokens) <= self._num_unused()

    def in_words(self) -> str:
        """Each sequence with its blocks, and how many blocks are free."""
        tables = [f"{name}: blocks {table}" for name, table in self.tables().items()]
        return "; ".join([*tables, f"free: {self.pages.num_free}"])

    def _num_blocks_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)  # rounded up

    def _num_unused(self) -> int:
        """Blocks that are in no table."""
        return self.num_blocks - 1 - len(set().union(*self.tables().values()) - {NULL_BLOCK})

    def _state(self) -> dict[str, object]:
        """Everything that a refused operation must leave unchanged, and what it is called."""
        tables = {f"the table of {name}": table for name, table in self.tables().items()}
        return {**tables, "num_free": self.pages.num_free}

    # What must hold

    def _require_tables(self, before: Tables, changed: Hashable) -> None:
        """Each table is as long as it should be, with blocks of the pool."""
        for name, table in self.tables().items():
            if name != changed and table != before[name]:
                raise AnswerError(f"the table of {name} changed too, from {before[name]}: {table}")
            length = len(self.tokens[name])
            needed = self._num_blocks_of(length)
            if len(table) != needed:
                than = "longer" if len(table) > needed else "shorter"
                raise AnswerError(
                    f"the table of {name} is {than} than needed: {table}; "
                    f"{plural(length, 'token')} of {self.block_size} to a block need "
                    f"{plural(needed, 'block')}"
                )
            self._require_blocks(name, table)

    def _require_blocks(self, name: Hashable, table: list[int]) -> None:
        for block in self._without_gone(name, table):
            if block == NULL_BLOCK:
                raise AnswerError(
                    f"{name} has block 0: blocks {table}; block 0 is the null block, which pads "
                    "tables and is never allocated"
                )
            if not 1 <= block < self.num_blocks:
                raise AnswerError(
                    f"{name} has block {block}: blocks {table}; the pool has 1 to "
                    f"{self.num_blocks - 1}"
                )
            if table.count(block) > 1:
                raise AnswerError(
                    f"{name} has block {block} twice: blocks {table}; it was allocated twice"
                )

    def _without_gone(self, name: Hashable, table: list[int]) -> list[int]:
        """The blocks that a table must have: all of them, unless some slid out of a window."""
        return table

    def _require_last_unchanged(self) -> None:
        """An engine appends to all sequences of a step before it copies and writes."""
        if self.last and plain(self.last[0]) != self.last[1]:
            raise AnswerError(
                "append changed what it had returned before; each append must return new lists"
            )

    def _require_copies(
        self, before: Tables, name: Hashable, copies: list[tuple[int, int]]
    ) -> None:
        table = self.tables()[name]
        for old, new in copies:
            if old not in before.get(name, []):
                raise AnswerError(f"block {old} is to be copied, which {name} didn't have")
            if new not in table:
                raise AnswerError(
                    f"the table of {name} is stale: block {old} is to be copied to block {new}, "
                    f"but the table is {table}"
                )
            if owners(old, before) == [name]:
                raise AnswerError(
                    f"{name} copied block {old}, although no other sequence has it: its reference "
                    "count is too high"
                )

    def _require_slots(
        self, before: Tables, name: Hashable, slots: list[int], num_tokens: int
    ) -> None:
        """The new tokens go where the table says, and no other sequence reads there."""
        if len(slots) != num_tokens:
            raise AnswerError(
                f"append returned {plural(len(slots), 'slot')} for {plural(num_tokens, 'token')}"
            )
        tables, first = self.tables(), len(self.tokens[name]) - num_tokens
        for position, slot in enumerate(slots, first):
            if slot == PAD_SLOT:  # found in the cache
                continue
            block, offset = self._place(tables[name], position)
            right = block * self.block_size + offset
            if slot != right:
                raise AnswerError(
                    f"token {position} of {name} goes to slot {slot}, which is block "
                    f"{slot // self.block_size}, offset {slot % self.block_size}; by its table "
                    f"{tables[name]} it must go to slot {right}, block {block}, offset {offset}"
                )
            others = [other for other in owners(block, tables) if other != name]
            if others and block in before.get(name, []):
                raise AnswerError(
                    f"{name} wrote into block {block}, which {they(others, 'reads', 'read')} too "
                    f"(its reference count must be {len(others) + 1})"
                )
            if others:
                raise AnswerError(
                    f"{name} was given block {block}, which {they(others, 'has', 'have')}: "
                    "it was allocated twice"
                )

    def _place(self, table: list[int], position: int) -> tuple[int, int]:
        return table[position // self.block_size], position % self.block_size

    def _require_counts(self, before: Tables, changed: Hashable) -> None:
        """The blocks that are in no table are free, and no others are."""
        free, unused, after = self.pages.num_free, self._num_unused(), self.tables()
        if free == unused:
            return
        had, has = (set(tables.get(changed, [])) - {NULL_BLOCK} for tables in (before, after))
        left, gained = sorted(had - has), sorted(has - had)
        kept = [block for block in left if owners(block, after)]
        if free < unused:
            lost = these(left, unused - free)
            why = f"{lost} left the tables but didn't become free: a reference count is too high"
        elif kept:
            have = they(owners(kept[0], after), "has", "have")
            why = f"block {kept[0]} is free, although {have} it: a reference was lost"
        elif gained:
            why = f"{changed} was given {these(gained, free - unused)}, still among the free ones"
        else:
            why = f"freed twice: {these(left, free - unused)}"
        raise AnswerError(f"{why} (num_free is {free}; {plural(unused, 'block')} are in no table)")

    def _require_reads(self) -> None:
        """Each sequence reads its own tokens through its table."""
        tables = self.tables()
        for name, row in zip(tables, self.pages.tables(list(tables)), strict=True):
            self._require_read(name, row, self.cache)

    def _require_read(self, name: Hashable, row: Tensor, cache: PagedKVCache) -> None:
        tokens = self.tokens[name]
        k, v = read(cache, row, len(tokens))
        numbers = self._numbers(name)
        for position, (token, number) in enumerate(zip(tokens, numbers, strict=True)):
            block, offset = self._place(row.tolist(), position)
            if block == NULL_BLOCK or (k[position], v[position]) == (token, number):
                continue
            where = f"in block {block}, offset {offset}"
            if not (k[position] >= 0 and v[position] >= 0):  # NaN
                raise AnswerError(
                    f"{name} reads nothing for its token {position}, {self.spell(token)}, {where}: "
                    "its K and V were not written there, or not copied"
                )
            if k[position] != token:
                raise AnswerError(
                    f"{name} reads {self.spell(int(k[position]))} for its token {position}, "
                    f"{self.spell(token)}, {where}"
                )
            raise AnswerError(
                f"{name} reads K and V of {self.spell(token)}, its token {position}, after other "
                f"tokens than its own, {where}"
            )

    # K and V

    def _numbers(self, name: Hashable) -> list[int]:
        return prefix_numbers(self.tokens[name])

    def _write(self, name: Hashable, appended: Appended) -> None:
        """Copies first, then the new tokens, in every layer."""
        self.copied += len(appended.copies)
        self.cache.copy_blocks(appended.copies)
        first = len(self.tokens[name]) - len(appended.slots)
        slots = torch.tensor(appended.slots, dtype=torch.int64)
        k, v = (
            torch.tensor(row[first:]).float().reshape(-1, 1, 1) + MARKS
            for row in (self.tokens[name], self._numbers(name))
        )
        for layer in range(NUM_LAYERS):
            self.cache.write(layer, k + layer, v + layer, slots)


def plain(appended: Appended) -> Appended:
    """The same in ints. AnswerError if it has something else, which an engine couldn't use."""
    copies, slots = appended.copies, appended.slots
    if not isinstance(copies, list) or not all(map(is_pair, copies)):
        raise AnswerError(f"copies is {copies!r:.60}; it must be a list of pairs of blocks")
    if not isinstance(slots, list):
        raise AnswerError(f"slots is {slots!r:.60}; it must be a list of whole numbers")
    return Appended([tuple(whole(pair, "a copy")) for pair in copies], whole(slots, "slots"))


def is_pair(copy: object) -> bool:
    return isinstance(copy, list | tuple) and len(copy) == 2


def owners(block: int, tables: Tables) -> list[Hashable]:
    """The sequences whose tables have a block."""
    return [name for name, table in tables.items() if block in table]


def read(cache: PagedKVCache, row: Tensor, num_tokens: int) -> list[list[float]]:
    """Tokens and prefix numbers through a block table; NaN where layers or heads disagree."""
    layers = [cache.read(layer, row, num_tokens) for layer in range(NUM_LAYERS)]
    both = []
    for side in (0, 1):
        numbers = torch.stack([layer[side] - MARKS - n for n, layer in enumerate(layers)])
        agree = (numbers == numbers[:1, :, :1, :1]).all(dim=(0, 2, 3))
        both.append(torch.where(agree, numbers[0, :, 0, 0], torch.nan).tolist())
    return both


def play(world: PagesAtWork, operations: Iterable[Operation]) -> int:
    """Carry them out, and return how many there were. If one goes wrong, the AnswerError shows all
    up to there, with the state after each."""
    lines: list[tuple[str, str]] = []
    for one in operations:
        try:
            getattr(world, one.method)(*one.arguments, **one.options)
            state = world.in_words()
        except (Exception, SystemExit) as error:
            raise AnswerError(in_columns([*lines, (one.text, describe(error))])) from error
        if one.method not in ("fact", "may_start"):
            refused = "refused; " if one.method == "refused" else ""
            lines.append((one.text, refused + state))
    return len(lines)


def in_columns(lines: list[tuple[str, str]]) -> str:
    """The operations, and on their right the state after each."""
    indent = max(len(text) for text, _ in lines) + 4
    rows = []
    for text, state in lines:
        right = [part for line in state.splitlines() for part in wrap(line, WIDTH - indent)]
        rows.append(f"  {text}".ljust(indent) + right[0])
        rows += [" " * indent + part for part in right[1:]]
    return "\n".join(rows)
