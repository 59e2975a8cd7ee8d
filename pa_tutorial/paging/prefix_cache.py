"""Prefix caching: full blocks get a name, so that a later sequence can find and share them."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.errors import BlocksInUse


@dataclass(frozen=True, eq=False)
class FullBlock:
    """The name of a full block: its tokens and, through `previous`, all tokens before them.

    K and V of a token depend on every token before it, so equal tokens alone aren't enough.

    extra  what else K and V depend on, for example an adapter's name; blocks with different extras
           are different. The type counts too: see with_types
    hash   of the three; it says where to look, but never proves that two blocks are equal
    """

    block: int
    previous: "FullBlock | None" = field(repr=False)  # else a chain prints all of itself
    tokens: tuple[int, ...]
    extra: Hashable
    hash: int


def with_types(extra: Hashable) -> tuple[type, Hashable]:
    """extra with its type, also inside tuples and frozensets, because in Python 1 == True == 1.0,
    but an adapter 1 isn't an adapter True."""
    if isinstance(extra, tuple):
        return type(extra), tuple(map(with_types, extra))
    if isinstance(extra, frozenset):
        return type(extra), frozenset(map(with_types, extra))
    return type(extra), extra


def chained_hash(previous: int | None, tokens: tuple[int, ...], extra: Hashable) -> int:
    """The hash under which a full block is looked up.

    previous  the hash of the block before; None for the first block of a sequence
    extra     as returned by with_types

    Source: vLLM, hash_block_tokens in vllm/core/block/prefix_caching_block.py.
    """
    return hash((previous is None, previous, *tokens, extra))


class PrefixCachingAllocator(BlockAllocator):
    """A BlockAllocator whose full blocks can be found again, even after their last table is freed.

    A named block that no table holds stays in the cache. It is evicted (its name is forgotten)
    when a block is needed and no other is free; the one that was freed longest ago goes first.

    Tie rule: the blocks of one sequence are freed together; of these, the one with the most tokens
    before it is evicted first. BlockTable.free frees the last block first, so the order of freeing
    is the order of eviction, and eviction is O(1).

    Source: vLLM, PrefixCachingBlockAllocator (the rules) in vllm/core/block; FreeKVCacheBlockQueue
    (the order of freeing as the order of eviction) in vllm/v1/core.
    """

    def __init__(
        self,
        num_blocks: int,
        watermark: int = 0,
        hash_function: Callable[[int | None, tuple[int, ...], Hashable], int] = chained_hash,
    ) -> None:
        super().__init__(num_blocks, watermark)
        self._hash = hash_function
        self._by_hash: dict[int, FullBlock] = {}
        self._by_block: dict[int, FullBlock] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()  # freed longest ago first

    @property
    def num_free(self) -> int:
        """Blocks that no table holds, including cached ones, which can be allocated too."""
        return len(self._free) + len(self._evictable)

    @property
    def num_cached(self) -> int:
        """Named blocks that no table holds."""
        return len(self._evictable)

    def named_blocks(self) -> dict[int, FullBlock]:
        """The blocks that can be found, by number, whether held or not."""
        return dict(self._by_block)

    def allocate(self) -> int:
        """Take a block without a name if one is free, else evict one. Raises OutOfBlocks."""
        self.require_free(1)
        if not self._free:
            block, _ = self._evictable.popitem(last=False)
            self._forget(block)
            self._free.append(block)
        return super().allocate()

    def share(self, block: int) -> None:
        """One more table uses this block, which may be a cached one.

        Raises UnknownBlock, or UseAfterFree if the block is neither held nor in the cache.
        """
        self._require_known(block)
        if block in self._evictable:
            del self._evictable[block]
            self.ref_counts[block] = 1
        else:
            super().share(block)

    def find(
        self, previous: FullBlock | None, tokens: tuple[int, ...], extra: Hashable
    ) -> FullBlock | None:
        """The block with these tokens after this previous block, or None.

        The hash says where to look. Then everything is compared, because two different
        contents can have the same hash. `previous` is compared by identity; it was found
        in the same way, so by induction the whole prefix is equal.
        """
        found = self._by_hash.get(self._hash_of(previous, tokens, extra))
        if found is None:
            return None
        same_extra = with_types(found.extra) == with_types(extra)
        same = found.tokens == tokens and found.previous is previous and same_extra
        return found if same else None

    def name(
        self, block: int, previous: FullBlock | None, tokens: tuple[int, ...], extra: Hashable
    ) -> FullBlock | None:
        """Make a full block findable. Returns None if its hash is taken; then it gets no name.

        The hash may be taken by other content, or by the same content after a prefix that was
        evicted before it (which can only happen after BlockTable.slide).
        """
        key = self._hash_of(previous, tokens, extra)
        if key in self._by_hash:
            return None
        full = FullBlock(block, previous, tokens, extra, key)
        self._by_hash[key] = self._by_block[block] = full
        return full

    def forget(self, block: int) -> None:
        """Make a block unfindable, because its K and V aren't what its name says."""
        if block in self._by_block:
            self._forget(block)
        if block in self._evictable:
            self._evictable.pop(block)
            self._free.append(block)

    def reset(self) -> None:
        """Forget every name. Raises BlocksInUse while a sequence holds a block."""
        held = sum(count > 0 for count in self.ref_counts)
        if held:
            raise BlocksInUse(f"{held} blocks are held; free their sequences before the reset")
        self._free.extend(self._evictable)
        self._evictable.clear()
        self._by_hash.clear()
        self._by_block.clear()

    def _hash_of(self, previous: FullBlock | None, tokens: tuple[int, ...], extra: Hashable) -> int:
        before = None if previous is None else previous.hash
        return self._hash(before, tokens, with_types(extra))

    def _release(self, block: int) -> None:
        if block in self._by_block:
            self._evictable[block] = None
        else:
            super()._release(block)

    def _forget(self, block: int) -> None:
        full = self._by_block.pop(block)
        del self._by_hash[full.hash]
