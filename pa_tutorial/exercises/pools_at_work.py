"""A reader's pool at work beside plain lists: who has which block, how often, and what is free.

A case is a pool with sequences in it, and operations on them. After each of them, what must hold is
looked over, and the first thing that is wrong is an AnswerError, in words for the reader.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.checks.calls import AnswerError
from pa_tutorial.exercises.reader_files import made
from pa_tutorial.paging.errors import OutOfBlocks

if TYPE_CHECKING:
    from pa_tutorial.viz.blocks import Frame

Before = Mapping[str, tuple[str, list[int]]]  # a sequence's name -> its text, its block table
Named = Mapping[str, int] | None  # a full block's text, which is its name here -> the block


class PoolAtWork:
    """Sequences over one pool; a token is a letter.

    texts   the plain strings: what each sequence must have
    copies  the pairs of blocks that were to be copied
    left    what a sequence that was freed still has: numbers of tokens and of blocks
    """

    def __init__(
        self, pages: ModuleType, size: int, before: Before, free: list[int], named: Named = None
    ) -> None:
        self.pages, self.size = pages, size
        self.copies: list[tuple[int, int]] = []
        self.left: list[int] = []
        tables = [table for _, table in before.values()]
        num_blocks = 1 + len(free) + len({block for table in tables for block in table})
        self.pool = (pages.Pool if named is None else pages.CachingPool)(num_blocks, size)
        self.pool.free_blocks = free.copy()
        for table in tables:
            for block in table:
                self.pool.ref_counts[block] += 1
        self.sequences = {
            name: pages.Sequence([*text.encode()], table.copy())
            for name, (text, table) in before.items()
        }
        self.texts = {name: text for name, (text, _) in before.items()}
        if named is not None:
            self.pool.named = dict(named)

    # The operations

    def drop(self, name: str) -> None:
        """Its last block."""
        before, block = self.state(), self.sequences[name].blocks.pop()
        self.texts[name] = self.texts[name][: self.size * len(self.sequences[name].blocks)]
        self.sequences[name].tokens = [*self.texts[name].encode()]
        self.pages.release(self.pool, block)
        self.require_all()
        self.require_freed(before, [block])

    def write(self, name: str, text: str) -> None:
        for letter in text:
            try:
                self.append(name, letter)
            except AnswerError as error:
                done = self.texts[name].removesuffix(letter)
                raise AnswerError(f'{name} appends "{letter}" to "{done}": {error}') from None

    def append(self, name: str, letter: str) -> None:
        sequence, before = self.sequences[name], self.state()
        old, has_room = sequence.blocks.copy(), len(self.texts[name]) % self.size > 0
        others = self.owners(old[-1], but=name) if has_room else []
        if (others or not has_room) and not self.pool.free_blocks:
            self.require_refused(before, sequence, letter)
            return
        self.texts[name] += letter
        copies = self.pages.append_token(self.pool, sequence, ord(letter))
        if not isinstance(copies, list):
            raise AnswerError(f"it returned {copies!r}; it must return a list of copies, or []")
        self.copies += copies
        self.require_tables()
        new = sequence.blocks
        kept = old[:-1] if has_room else old
        if new[: len(kept)] != kept:
            raise AnswerError(f"the full blocks of {name} were {kept}; its table now is {new}")
        if others and new == old:
            stale = f": the table of {name} still has it" if copies else ""
            raise AnswerError(
                f"{name} writes into block {new[-1]}, which {others[0]} reads too{stale}"
            )
        right = [(old[-1], new[-1])] if has_room and new != old else []
        if copies != right:
            table = f"the table was {old}, and is {new}"
            raise AnswerError(f"{table}, so the copies should be {right}; they are {copies}")
        if copies and not others:
            raise AnswerError(f"block {old[-1]} was copied in vain: only {name} reads it")
        self.require_all()

    def require_refused(self, before: dict[str, Any], sequence: Any, letter: str) -> None:
        try:
            self.pages.append_token(self.pool, sequence, ord(letter))
        except OutOfBlocks:
            for what, now in self.state().items():
                if now != before[what]:
                    changed = f"{what} changed from {before[what]} to {now}"
                    raise AnswerError(
                        f"no block is free, so it is refused; but {changed}"
                    ) from None
        else:
            raise AnswerError("no block is free, but it did not raise OutOfBlocks")

    def fork(self, name: str, new: str) -> None:
        self.texts[new], table = self.texts[name], self.sequences[name].blocks.copy()
        forked = self.pages.fork(self.pool, self.sequences[name])
        if not isinstance(forked, self.pages.Sequence):
            raise AnswerError(f"it returned {forked!r:.40}; it must return a Sequence")
        self.sequences[new] = forked
        if (found := forked.blocks) != table:
            raise AnswerError(f"{new} should have the blocks of {name}, {table}; it has {found}")
        self.require_all()

    def free(self, name: str) -> None:
        before, table = self.state(), self.sequences[name].blocks.copy()
        sequence = self.sequences[name]
        self.pages.free(self.pool, sequence)
        del self.sequences[name], self.texts[name]
        self.left += [len(sequence.tokens), len(sequence.blocks)]
        for block in table:
            count = self.pool.ref_counts[block]
            if count == before[f"the reference count of block {block}"]:
                left = f"its reference count still is {count}"
                raise AnswerError(f"block {block} of {name} wasn't released: {left}")
        self.require_all()
        self.require_freed(before, table[::-1])
        for what, rest in (("table", sequence.blocks), ("list of tokens", sequence.tokens)):
            if rest:
                raise AnswerError(f"{name} has ended, but its {what} still is {rest}")

    def share(self, name: str, text: str) -> None:
        """The block of that name becomes the next of a sequence."""
        block = self.pool.named[text]
        free = [other for other in self.pool.free_blocks if other != block]
        self.sequences[name].blocks.append(block)
        self.add(name, text)
        names, all_free = self.pool.named.copy(), self.pool.free_blocks.copy()
        self.pages.share(self.pool, block)
        if self.pool.free_blocks == all_free[:block] + all_free[block + 1 :] != free:
            place = f"item {block} of the free list, {all_free}"
            raise AnswerError(f"it took out {place}, and not block {block}: `remove` takes a value")
        if self.pool.named != names:
            raise AnswerError(f"block {block} must keep its name, {text!r}, for the next prompt")
        self.require_all()
        self.require_list(free)

    def take(self, name: str, text: str) -> None:
        """A free block for the next tokens of a sequence."""
        first, *rest = free = self.pool.free_blocks.copy()
        names = {one: block for one, block in self.pool.named.items() if block != first}
        block = self.pages.take_block(self.pool)
        if block != first:
            raise AnswerError(
                f"it took block {block}; of {free}, block {first} is free for longest"
            )
        self.sequences[name].blocks.append(block)
        self.add(name, text)
        self.require_all()
        self.require_list(rest)
        if stale := [one for one, other in self.pool.named.items() if other == block]:
            held = f"block {block} now belongs to {name}, but still has the name of {stale[0]!r}"
            raise AnswerError(f"{held}: found by it, it would give the K and V of other tokens")
        if lost := names.keys() - self.pool.named.keys():
            which = min(lost)
            raise AnswerError(f"block {names[which]} has lost its name, {which!r}, for no reason")

    def add(self, name: str, text: str) -> None:
        self.texts[name] += text
        self.sequences[name].tokens += text.encode()

    # What must hold

    def require_all(self) -> None:
        self.require_tables()
        self.require_tokens()
        self.require_counts()
        self.require_free()

    def require_tables(self) -> None:
        for name, text in self.texts.items():
            table, needed = self.sequences[name].blocks, -(-len(text) // self.size)
            if not isinstance(table, list):
                raise AnswerError(f"the block table of {name} is {table!r:.40}; it must be a list")
            if len(table) != needed:
                need = f"{plural(len(text), 'token')} need{'s' * (len(text) == 1)} {needed}"
                has = f"{plural(len(table), 'block')}, {table}"
                raise AnswerError(f"the table of {name} has {has}; {need}")
            if strange := [block for block in table if block not in range(1, self.num_blocks)]:
                known = f"there are blocks 1 to {self.num_blocks - 1}"
                raise AnswerError(f"the table of {name} has block {strange[0]}; {known}")
            if twice := [block for block in table if table.count(block) > 1]:
                raise AnswerError(f"block {twice[0]} is twice in the table of {name}, {table}")
        self.require_own_lists()

    def require_own_lists(self) -> None:
        for kind in ("blocks", "tokens"):
            owner: dict[int, str] = {}
            for name, sequence in self.sequences.items():
                other = owner.setdefault(id(getattr(sequence, kind)), name)
                if other != name:
                    same = f"{other} and {name} have the same list of {kind}, not two equal ones"
                    raise AnswerError(f"{same}: what {other} appends, {name} gets too")

    def require_tokens(self) -> None:
        for name, text in self.texts.items():
            found = "".join(map(chr, self.sequences[name].tokens))
            if found != text:
                raise AnswerError(f'the tokens of {name} are "{found}"; they should be "{text}"')

    def require_counts(self) -> None:
        for block in range(1, self.num_blocks):
            tables, count = len(self.owners(block)), self.pool.ref_counts[block]
            if count != tables:
                where = plural(tables, "table") if tables else "no table"
                raise AnswerError(
                    f"block {block} is in {where}, and its reference count is {count}"
                )

    def require_free(self) -> None:
        for block in range(1, self.num_blocks):
            owners, times = self.owners(block), self.pool.free_blocks.count(block)
            if times > 1:
                raise AnswerError(f"block {block} is in the free list {times} times")
            if owners and times:
                where = f"block {block} is in the table of {owners[0]}"
                raise AnswerError(f"{where}, and in the free list too")
            if not owners and not times:
                where = f"block {block} is in no table and not in the free list"
                raise AnswerError(f"{where}: it is lost")

    def require_freed(self, before: dict[str, Any], blocks: list[int]) -> None:
        freed = [block for block in blocks if not self.owners(block)]
        self.require_list([*before["the free list"], *freed])

    def require_list(self, right: list[int]) -> None:
        if (found := self.pool.free_blocks) != right:
            raise AnswerError(f"the free list is {found}; it should be {right}")

    # What can be asked

    @property
    def num_blocks(self) -> int:
        return len(self.pool.ref_counts)

    def owners(self, block: int, but: str = "") -> list[str]:
        """The sequences whose tables have a block."""
        owners = [name for name, one in self.sequences.items() if block in one.blocks]
        return [name for name in owners if name != but]

    def state(self) -> dict[str, Any]:
        """What a refused append must leave as it is, and what it is called."""
        found = {f"the table of {name}": one.blocks.copy() for name, one in self.sequences.items()}
        for name, one in self.sequences.items():
            text = "".join(map(chr, one.tokens))
            found[f"the text of {name}"] = f'"{text}"'
        for block, count in enumerate(self.pool.ref_counts):
            found[f"the reference count of block {block}"] = count
        return found | {"the free list": self.pool.free_blocks.copy()}

    def as_numbers(self) -> Tensor:
        """All that an answer may have changed or returned: a grader compares it with ours."""
        named = [block for _, block in sorted(getattr(self.pool, "named", {}).items())]
        copies = [block for pair in self.copies for block in pair]
        lists = [self.pool.ref_counts, self.pool.free_blocks, named, copies, self.left]
        for _, one in sorted(self.sequences.items()):
            lists += [one.tokens, one.blocks]
        return torch.tensor([number for some in lists for number in (len(some), *some)])

    def frame(self) -> "Frame":
        from pa_tutorial.viz.blocks import frame_of  # only for a picture

        parts = {name: (one.tokens, one.blocks) for name, one in self.sequences.items()}
        pool, named = self.pool, getattr(self.pool, "named", {})
        cached = {block: text.encode() for text, block in named.items()}
        return frame_of("", self.size, pool.ref_counts, parts, cached, pool.free_blocks)

    def play(self, operations: Sequence[str]) -> None:
        """The operations: an act, a sequence, and with what, as in "write a THE CAT"."""
        for one in operations:
            act, *arguments = one.split(" ", 2)
            getattr(self, act)(*arguments)


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# For `graded`: of a case's (size, before, free, operations, named) --------------------------------


def played(
    pages: ModuleType, size: int, before: Before, free: list[int], operations: Sequence[str],
    named: Named = None,
) -> Tensor:  # fmt: skip
    work = PoolAtWork(pages, size, before, free, named)
    work.play(operations)
    return work.as_numbers()


def our_pages(
    size: int, before: Before, free: list[int], operations: Sequence[str], named: Named = None
) -> Tensor:
    return played(made("pages"), size, before, free, operations, named)


def pool_after(
    pages: ModuleType, size: int, before: Before, free: list[int], operations: Sequence[str],
    named: Named = None,
) -> "Frame":  # fmt: skip
    """After all operations, whatever went wrong."""
    work = PoolAtWork(pages, size, before, free, named)
    for one in operations:
        with suppress(Exception):  # the verdict tells it
            work.play([one])
    return work.frame()


def costs(
    pages: ModuleType, size: int, before: Before, free: list[int], operations: Sequence[str],
    named: Named = None,
) -> dict[str, int]:  # fmt: skip
    work = PoolAtWork(pages, size, before, free, named)
    work.play(operations)
    in_use = sum(count > 0 for count in work.pool.ref_counts)
    return {"copies made": len(work.copies), "blocks in use": in_use}


def other_blocks(
    rng: np.random.Generator, _: str, size: int, before: Before, free: list[int], *rest: Any
) -> tuple:
    """The same case, with other block numbers."""
    used = {block for _, table in before.values() for block in table}
    old = sorted(used | {*free})
    new = dict(zip(old, rng.permutation(old).tolist(), strict=True))
    tables = {name: (text, [new[b] for b in table]) for name, (text, table) in before.items()}
    operations, *named = rest
    names = [{text: new[block] for text, block in one.items()} for one in named]
    return None, size, tables, [new[block] for block in free], operations, *names
