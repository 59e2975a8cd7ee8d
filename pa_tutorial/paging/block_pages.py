"""Our Pages: block tables over one pool, whose full blocks can be found again."""

from collections.abc import Hashable, Sequence

from pa_tutorial.arguments import require, require_bool, whole_number
from pa_tutorial.paging.allocator import Admission, BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.pages import Appended, Pages
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator


class BlockPages(Pages):
    """A BlockTable for each sequence, all over one allocator.

    num_blocks      blocks in the pool, including the null block
    block_size      tokens per block
    prefix_caching  whether later sequences can reuse full blocks
    watermark       free blocks that must remain for the others when a sequence starts

    Raises TypeError or ValueError for impossible sizes.
    Source: vLLM, SelfAttnBlockSpaceManager in vllm/core/block_manager.py.
    """

    def __init__(
        self, num_blocks: int, block_size: int, prefix_caching: bool = True, watermark: int = 0
    ) -> None:
        require_bool("prefix_caching", prefix_caching)
        allocator_class = PrefixCachingAllocator if prefix_caching else BlockAllocator
        self.block_size = whole_number("block_size", block_size, least=1)
        self.allocator = allocator_class(num_blocks, watermark)
        self.num_blocks = self.allocator.num_blocks
        self.sequences: dict[Hashable, BlockTable] = {}

    @property
    def num_free(self) -> int:
        return self.allocator.num_free

    @property
    def num_usable(self) -> int:
        return self.allocator.num_usable - self.allocator.watermark

    @property
    def num_cached(self) -> int:
        return getattr(self.allocator, "num_cached", 0)

    def admit(self, token_ids: Sequence[int]) -> Admission:
        """Blocks that are found and in use already need not be free."""
        prospect = self._new_table().look_up(token_ids)
        return self.allocator.can_allocate(prospect.num_blocks)

    def append(self, name: Hashable, token_ids: Sequence[int]) -> Appended:
        """Raises OutOfBlocks, or TypeError for a token that isn't a whole number."""
        table = self.sequences.get(name) or self._new_table()
        appended = table.append(token_ids)
        self.sequences[name] = table  # last, because a new sequence may be refused
        return appended

    def fork(self, name: Hashable, new: Hashable) -> None:
        require(new not in self.sequences, "new", repr(new), "a name that no sequence has")
        self.sequences[new] = self.sequences[name].fork()

    def free(self, name: Hashable) -> None:
        self.sequences.pop(name).free()

    def table(self, name: Hashable) -> list[int]:
        return self.sequences[name].blocks.copy()

    def num_found(self, name: Hashable, token_ids: Sequence[int]) -> int:
        table = self.sequences.get(name) or self._new_table()
        return table.look_up(token_ids).num_cached

    def forget(self, name: Hashable) -> None:
        for block in self.sequences[name].blocks:
            self.allocator.forget(block)

    def _new_table(self) -> BlockTable:
        return BlockTable(self.allocator, self.block_size)
