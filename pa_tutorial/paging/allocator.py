"""Physical blocks: a fixed pool, a free list, and a reference count a block."""

from collections.abc import Hashable
from enum import Enum

from pa_tutorial.arguments import require, require_memory, whole_number
from pa_tutorial.paging.errors import DoubleFree, OutOfBlocks, UnknownBlock, UseAfterFree
from pa_tutorial.paging.layouts import MAX_BLOCKS

# Block 0 is never given out. Padding in block tables names it, so a kernel may read it,
# but no token lives there.
NULL_BLOCK = 0
BYTES_OF_A_BLOCK = 48  # of Python's memory: a place in both lists, and its number


class Admission(Enum):
    """Whether a new sequence can have its blocks."""

    NOW = "now"
    LATER = "later"
    NEVER = "never"


class BlockAllocator:
    """Gives out the blocks 1 to num_blocks - 1. Every operation on a block is O(1).

    num_blocks  blocks in the pool, the null block included
    watermark   free blocks that admitting a new sequence must leave to the running ones

    Source: vLLM, NaiveBlockAllocator in vllm/core/block/naive_block.py;
    the null block is that of today's BlockPool in vllm/v1/core/block_pool.py.
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
        # The last one is given out first: low numbers at the start, then what was freed last.
        self._free = list(range(num_blocks - 1, 0, -1))

    @property
    def num_usable(self) -> int:
        """All blocks but the null block."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def allocate(self) -> int:
        """Take a free block; its reference count becomes 1. Raises OutOfBlocks."""
        self.require_free(1)
        block = self._free.pop()
        self.ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more table names this block.

        Raises UnknownBlock, or UseAfterFree if nobody holds it.
        """
        self._require_known(block)
        if self.ref_counts[block] == 0:
            raise UseAfterFree(f"block {block} is held by nobody; only a held block can be shared")
        self.ref_counts[block] += 1

    def free(self, block: int) -> None:
        """One table less names this block; with the last one it becomes free.

        Raises UnknownBlock, or DoubleFree if nobody holds it.
        """
        self._require_known(block)
        if self.ref_counts[block] == 0:
            raise DoubleFree(f"block {block} is held by nobody: it is free already")
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self._release(block)

    def is_shared(self, block: int) -> bool:
        """Whether more than one table names this block."""
        self._require_known(block)
        return self.ref_counts[block] > 1

    def find(self, previous: object, tokens: tuple[int, ...], extra: Hashable) -> None:
        """A full block with these tokens after `previous`: here there is never one.

        See prefix_cache.py for an allocator that has some.
        """

    def name(self, block: int, previous: object, tokens: tuple[int, ...], extra: Hashable) -> None:
        """Make a full block findable: not here."""

    def forget(self, block: int) -> None:
        """Nobody finds this block any more: here nobody ever does."""

    def can_allocate(self, num_blocks: int) -> Admission:
        """Whether a new sequence that needs so many blocks can start: now, later or never.

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
        """Raise OutOfBlocks unless so many blocks are free; fewer than 0 if some are given back."""
        if num_blocks > self.num_free:
            raise OutOfBlocks(
                f"blocks needed: {num_blocks}; free: {self.num_free} of {self.num_usable}"
            )

    def _release(self, block: int) -> None:
        self._free.append(block)

    def _require_known(self, block: int) -> None:
        if not 1 <= whole_number("block", block) < self.num_blocks:
            raise UnknownBlock(
                f"block is {block}; the pool gives out blocks 1 to {self.num_blocks - 1}"
            )
