"""From logical to physical: which blocks hold a sequence's tokens, and who may write to them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from pa_tutorial.arguments import require_type, whole_number, whole_numbers
from pa_tutorial.paging.allocator import NULL_BLOCK, BlockAllocator
from pa_tutorial.paging.errors import DoubleFree, UseAfterFree
from pa_tutorial.paging.layouts import PAD_SLOT
from pa_tutorial.paging.pages import Appended
from pa_tutorial.paging.prefix_cache import FullBlock


@dataclass(frozen=True)
class Prospect:
    """What appending some tokens would find and take right now.

    num_cached  how many of the first new tokens need not be computed
    num_blocks  free blocks that it would take; a block held only by the prefix cache is free too
    """

    num_cached: int
    num_blocks: int


class BlockTable:
    """The blocks of one sequence, in order. One table serves every layer and every head.

    extra   what else K and V depend on (see FullBlock)
    blocks  logical block index -> physical block number

    A full block is never written again, so any number of tables may share it. While the last block
    isn't full, only one sequence may write to it: if it is shared when tokens are appended, the
    sequence takes a copy first (copy-on-write).

    Source: vLLM, BlockTable in vllm/core/block/block_table.py.
    """

    def __init__(self, allocator: BlockAllocator, block_size: int, extra: Hashable = None) -> None:
        require_pool(allocator)
        try:
            hash(extra)
        except TypeError as error:
            raise TypeError(f"extra is {extra!r}; it must be hashable") from error
        self.allocator = allocator
        self.block_size = whole_number("block_size", block_size, least=1)
        self.extra = extra
        self.token_ids: list[int] = []
        self.blocks: list[int] = []
        self._names: list[FullBlock | None] = []  # of the full blocks
        self._freed = False

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def must_copy(self) -> bool:
        """Whether the next append starts with a copy: the last block is shared and not full."""
        return self._filled > 0 and self.allocator.is_shared(self.blocks[-1])

    def look_up(self, token_ids: Sequence[int]) -> Prospect:
        """What `append` would do with these tokens; nothing changes. Raises as append does."""
        self._require_alive()
        new_tokens = whole_numbers("token_ids", token_ids)
        if not new_tokens:
            return Prospect(0, 0)
        twins = self._find_twins(self._contents(new_tokens))
        found = sum(1 for _ in takewhile(lambda twin: twin is not None, twins))
        num_cached = min(found * self.block_size - self._filled, len(new_tokens) - 1)
        return Prospect(max(0, num_cached), self._blocks_taken(twins))

    def append(self, token_ids: Sequence[int]) -> Appended:
        """Make room for new tokens: a whole prompt, or one token.

        Every block that becomes full is looked up. If there is a block with the same prefix and
        tokens, the table shares it, and its K and V need not be written again. From then on other
        tables can find it too, so only append tokens whose K and V are written in this same step,
        before any attention reads them.

        Raises OutOfBlocks, UseAfterFree, or TypeError for a token that isn't a whole number,
        before anything changes.
        """
        self._require_alive()
        copies: list[tuple[int, int]] = []
        slots: list[int] = []
        new_tokens = whole_numbers("token_ids", token_ids)
        if not new_tokens:
            return Appended(copies, slots)
        filled = self._filled
        contents = self._contents(new_tokens)
        twins = self._find_twins(contents)
        self.allocator.require_free(self._blocks_taken(twins))

        must_copy = self.must_copy
        for twin in twins:  # before anything is allocated: that could evict them
            if twin is not None:
                self.allocator.share(twin.block)
        for index, (content, twin) in enumerate(zip(contents, twins, strict=True)):
            first_new = filled if index == 0 else 0
            old = self.blocks[-1] if first_new else None
            if twin is not None:
                block = twin.block
            elif old is None or must_copy:
                block = self.allocator.allocate()
            else:
                block = old
            if old is None:
                self.blocks.append(block)
            elif block != old:
                copies += [(old, block)] if twin is None else []
                self.blocks[-1] = block
                self.allocator.free(old)  # last, when the new block is already held
            if len(content) == self.block_size:
                self._names.append(twin or self._name(block, content))
            first_slot = block * self.block_size
            slots += [
                PAD_SLOT if twin is not None else first_slot + offset
                for offset in range(first_new, len(content))
            ]
        self.token_ids += new_tokens
        return Appended(copies, slots)

    def fork(self) -> "BlockTable":
        """A second sequence with the same tokens; it takes no block. Raises UseAfterFree."""
        self._require_alive()
        other = BlockTable(self.allocator, self.block_size, self.extra)
        other.token_ids = self.token_ids.copy()
        other.blocks = self.blocks.copy()
        other._names = self._names.copy()
        for block in self._held:
            self.allocator.share(block)
        return other

    def free(self) -> None:
        """Let go of every block, the last one first. Raises DoubleFree the second time."""
        if self._freed:
            raise DoubleFree("the sequence was already freed")
        for block in reversed(self._held):
            self.allocator.free(block)
        self.token_ids, self.blocks, self._names = [], [], []
        self._freed = True

    def slide(self, window: int) -> None:
        """Free the blocks that no later query sees when attention reaches `window` tokens back.

        Their places in the table point to the null block; a kernel skips them.

        Source: vLLM, BlockTable with max_block_sliding_window in vllm/core/block/block_table.py.
        """
        self._require_alive()
        window = whole_number("window", window, least=1)
        # The newest query is at num_tokens - 1 and sees the tokens from num_tokens - window on.
        outside = max(0, self.num_tokens - window) // self.block_size
        for index in reversed(range(outside)):
            if self.blocks[index] != NULL_BLOCK:
                self.allocator.free(self.blocks[index])
                self.blocks[index] = NULL_BLOCK

    def move_to(self, allocator: BlockAllocator) -> list[tuple[int, int]]:
        """Swap the sequence to another pool; returns (source, destination) blocks to copy.

        Blocks that the other pool already has under the same name are shared, not copied. A last
        block that isn't full stops being shared: two forks that move copy it twice.
        Raises OutOfBlocks or UseAfterFree, before anything changes, and ValueError if slide has
        freed blocks, because then there is nothing to copy.
        """
        self._require_alive()
        require_pool(allocator)
        if NULL_BLOCK in self.blocks:
            raise ValueError("the sequence has freed blocks (slide); it cannot be moved")
        moved = BlockTable(allocator, self.block_size, self.extra)
        appended = moved.append(self.token_ids)
        first_slots = appended.slots[:: self.block_size]
        moves = zip(self.blocks, moved.blocks, first_slots, strict=True)
        pairs = [(old, new) for old, new, slot in moves if slot != PAD_SLOT]
        for block in reversed(self.blocks):
            self.allocator.free(block)
        self.allocator, self.blocks, self._names = allocator, moved.blocks, moved._names
        return pairs

    @property
    def _filled(self) -> int:
        """Tokens in the last block if it isn't full; else 0."""
        return self.num_tokens % self.block_size

    @property
    def _held(self) -> list[int]:
        return [block for block in self.blocks if block != NULL_BLOCK]

    def _contents(self, new_tokens: Sequence[int]) -> list[tuple[int, ...]]:
        """What the last block (if it isn't full) and the new blocks will hold."""
        tokens = (*self.token_ids[self.num_tokens - self._filled :], *new_tokens)
        starts = range(0, len(tokens), self.block_size)
        return [tokens[start : start + self.block_size] for start in starts]

    def _find_twins(self, contents: list[tuple[int, ...]]) -> list[FullBlock | None]:
        """For each block content, the block that already has it, or None."""
        twins: list[FullBlock | None] = []
        previous = self._names[-1] if self._names else None
        unknown = bool(self._names) and previous is None  # the block before has no name
        for content in contents:
            twin = None
            if not unknown and len(content) == self.block_size:
                twin = self.allocator.find(previous, content, self.extra)
            twins.append(twin)
            previous, unknown = twin, twin is None
        return twins

    def _name(self, block: int, content: tuple[int, ...]) -> FullBlock | None:
        if self._names and self._names[-1] is None:
            return None  # the block before has no name
        previous = self._names[-1] if self._names else None
        return self.allocator.name(block, previous, content, self.extra)

    def _blocks_taken(self, twins: list[FullBlock | None]) -> int:
        """Free blocks that an append with these twins takes."""
        keeps_last = self._filled > 0 and twins[0] is None and not self.must_copy
        new = sum(twin is None for twin in twins) - keeps_last
        # A twin that only the cache holds counts as free; sharing it uses up a free block.
        revived = sum(
            twin is not None and self.allocator.ref_counts[twin.block] == 0 for twin in twins
        )
        # A last block that only we hold is freed when a twin takes its place.
        given_back = self._filled > 0 and twins[0] is not None and not self.must_copy
        return new + revived - given_back

    def _require_alive(self) -> None:
        if self._freed:
            raise UseAfterFree("the sequence was freed; it no longer has blocks")


def require_pool(allocator: BlockAllocator) -> None:
    """Raise TypeError unless it is a BlockAllocator or a class like it."""
    require_type(hasattr(allocator, "allocate"), "allocator", allocator, "a BlockAllocator")
