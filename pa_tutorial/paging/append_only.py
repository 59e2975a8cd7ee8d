"""A block table that only grows, as in vLLM since its V1 engine."""

from itertools import takewhile

from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.prefix_cache import FullBlock


class AppendOnlyTable(BlockTable):
    """A BlockTable whose entries never change: a block is looked up only before it has a number.

    The blocks of a new sequence's first tokens are looked up, as far as they are known without a
    gap. The block of the last token is not: this token must be computed, and a block is computed
    as a whole. A block that becomes full later stays, though another with the same content may
    be there: then there are two copies. Who comes later finds the first.

    Source: vLLM, docs/design/prefix_caching.md, "Duplicated blocks", commit 01ff8bff; and
    get_computed_blocks in vllm/v1/core/kv_cache_manager.py, commit 003df296.
    """

    def _find_twins(self, contents: list[tuple[int, ...]]) -> list[FullBlock | None]:
        if self.token_ids:
            return [None] * len(contents)
        twins = super()._find_twins(contents)
        known = list(takewhile(lambda twin: twin is not None, twins[:-1]))
        return [*known, *[None] * (len(contents) - len(known))]

    def _name(self, block: int, content: tuple[int, ...]) -> FullBlock | None:
        """The name that the content has already, if there is one: the chain goes on from there."""
        previous = self._names[-1] if self._names else None
        if self._names and previous is None:
            return None
        return self.allocator.find(previous, content, self.extra) or super()._name(block, content)
