"""Physical blocks: a fixed pool, a free list, and one reference count per block."""

from collections.abc import Hashable
from enum import Enum

from pa_tutorial.arguments import require, require_memory, whole_number
from pa_tutorial.paging.errors import DoubleFree, OutOfBlocks, UnknownBlock, UseAfterFree
from pa_tutorial.paging.layouts import MAX_BLOCKS

# Block 0 is never allocated. Block tables are padded with it, so a kernel may read it, but it
# never holds a token.
NULL_BLOCK = 0
BYTES_OF_A_BLOCK = 48  # of Python's memory: a place in both lists, and its number


class Admission(Enum):
    """Whether a new sequence can have its blocks."""

    NOW = "now"
    LATER = "later"
    NEVER = "never"


class BlockAllocator:
    """Allocates the blocks 1 to num_blocks - 1. Every operation on a block is O(1).

    num_blocks  blocks in the pool, including the null block
    watermark   free blocks that admitting a new sequence must leave for the running ones

    Source: vLLM, NaiveBlockAllocator in vllm/core/block/naive_block.py;
    the null block is from today's BlockPool in vllm/v1/core/block_pool.py.
    """

    def __init__(self, num_blocks: int, watermark: int = 0) -> None:
        num_blocks = whole_number("num_blocks", num_blocks)
        watermark = whole_number("watermark", watermark)
        allowed = f"at least 2, the null block and one more, and at most {MAX_BLOCKS:,}"
        require(2 <= num_blocks <= MAX_BLOCKS, "num_blocks", num_blocks, allowed)
        allowed = f"0 to {num_blocks - 1} blocks"
        require(0 <= watermark < num_blocks, "watermark", watermark, allowed)
        require_memory(BYTES_OF_A_BLOCK * num_blocks, num_blocks=num_blocks)
        self.num_blocks = num_blocks
        self.watermark = watermark
        self.ref_counts = [0] * num_blocks
        # The last one is allocated first: low numbers at the start, then what was freed last.
        self._free = list(range(num_blocks - 1, 0, -1))

    @property
    def num_usable(self) -> int:
        """All blocks except the null block."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that aren't held."""
        return len(self._free)

    def allocate(self) -> int:
        """Take a free block; its reference count becomes 1. Raises OutOfBlocks."""
        self.require_free(1)
        block = self._free.pop()
        self.ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more table uses this block: its reference count goes up by 1.

        Raises UnknownBlock, or UseAfterFree if the block isn't held.
        """
        self._require_known(block)
        if self.ref_counts[block] == 0:
            raise UseAfterFree(f"block {block} is free; only a block in use can be shared")
        self.ref_counts[block] += 1

    def free(self, block: int) -> None:
        """One table fewer uses this block; at a reference count of 0 it becomes free.

        Raises UnknownBlock, or DoubleFree if the block isn't held.
        """
        self._require_known(block)
        if self.ref_counts[block] == 0:
            raise DoubleFree(f"block {block} is already free")
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self._release(block)

    def is_shared(self, block: int) -> bool:
        """Whether more than one table uses this block."""
        self._require_known(block)
        return self.ref_counts[block] > 1

    def find(self, previous: object, tokens: tuple[int, ...], extra: Hashable) -> None:
        """The full block with these tokens after `previous`. This allocator never has one.

        See prefix_cache.py for an allocator that does.
        """

    def name(self, block: int, previous: object, tokens: tuple[int, ...], extra: Hashable) -> None:
        """Make a full block findable. This allocator doesn't."""

    def forget(self, block: int) -> None:
        """Make a block unfindable. In this allocator, every block already is."""

    def can_allocate(self, num_blocks: int) -> Admission:
        """Whether a new sequence that needs this many blocks can start: now, later or never.

        Raises ValueError if num_blocks is negative.
        Source: vLLM, SelfAttnBlockSpaceManager.can_allocate in vllm/core/block_manager.py.
        """
        num_blocks = whole_number("num_blocks", num_blocks, least=0)
        if self.num_usable - num_blocks < self.watermark:
            return Admission.NEVER
        if self.num_free - num_blocks < self.watermark:
            return Admission.LATER
        return Admission.NOW

    def require_free(self, num_blocks: int) -> None:
        """Raise OutOfBlocks unless this many blocks are free; negative if some are returned."""
        if num_blocks > self.num_free:
            raise OutOfBlocks(
                f"blocks needed: {num_blocks}; free: {self.num_free} of {self.num_usable}"
            )

    def _release(self, block: int) -> None:
        self._free.append(block)

    def _require_known(self, block: int) -> None:
        if not 1 <= whole_number("block", block) < self.num_blocks:
            raise UnknownBlock(f"block is {block}; it must be 1 to {self.num_blocks - 1}")
