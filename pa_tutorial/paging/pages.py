"""What an engine asks of its memory manager. Ours is in block_pages.py; a reader's is another."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor

from pa_tutorial.arguments import require_memory, whole_number
from pa_tutorial.paging.allocator import NULL_BLOCK, Admission
from pa_tutorial.paging.errors import TableTooLong
from pa_tutorial.paging.layouts import PAD_SLOT

BYTES_OF_A_PLACE = 12  # of a padded row: as an item of a list, then as an int32


@dataclass(frozen=True)
class Appended:
    """What must happen to K and V after appending tokens, in this order.

    copies  (source, destination) blocks to copy, in every layer, before anything is written
    slots   where to store K and V of each new token; -1 if they are already in the cache
    """

    copies: list[tuple[int, int]]
    slots: list[int]

    @property
    def num_cached(self) -> int:
        """How many of the first new tokens need not be computed.

        At least one is always computed, because without a query there is no next token.
        """
        found = sum(1 for _ in takewhile(lambda slot: slot == PAD_SLOT, self.slots))
        return max(0, min(found, len(self.slots) - 1))


class Pages(ABC):
    """Which blocks each sequence has, in a pool of num_blocks blocks of block_size tokens.

    A sequence is known by its name, which may be anything hashable; any other name is a KeyError,
    except in `append`. Block 0 is the null block: tables are padded with it, and no sequence has
    it. An operation that raises an error changes nothing.

    Source: vLLM, BlockSpaceManager in vllm/core/interfaces.py.
    """

    num_blocks: int
    block_size: int

    @property
    @abstractmethod
    def num_free(self) -> int:
        """Blocks that no sequence has."""

    @abstractmethod
    def admit(self, token_ids: Sequence[int]) -> Admission:
        """Whether a new sequence with these tokens can start: now, later or never."""

    @abstractmethod
    def append(self, name: Hashable, token_ids: Sequence[int]) -> Appended:
        """Make room for the next tokens of a sequence; a new name starts one.

        Raises OutOfBlocks.
        """

    @abstractmethod
    def fork(self, name: Hashable, new: Hashable) -> None:
        """A second sequence with the same tokens; it takes no block.

        Raises ValueError if a sequence has the new name.
        """

    @abstractmethod
    def free(self, name: Hashable) -> None:
        """End a sequence, and give back the blocks that no other sequence has."""

    @abstractmethod
    def table(self, name: Hashable) -> list[int]:
        """The physical block numbers of a sequence, in its order."""

    # What follows from these, unless blocks can be found again: see block_pages.py.

    @property
    def num_usable(self) -> int:
        """The most blocks that one sequence can have."""
        return self.num_blocks - 1

    @property
    def num_cached(self) -> int:
        """Free blocks whose K and V can be found again."""
        return 0

    def num_found(self, name: Hashable, token_ids: Sequence[int]) -> int:
        """How many of the first of these tokens `append` would find in the cache."""
        return 0

    def forget(self, name: Hashable) -> None:  # noqa: B027, because here none is ever found
        """Let no other sequence find the blocks of this one: their K and V may be wrong."""

    def tables(self, names: Sequence[Hashable], width: int | None = None) -> Tensor:
        """The block tables of a step's sequences, each row padded with the null block.

        width    max_num_blocks_per_seq; the default is the length of the longest table
        returns  [num_seqs, width] int32

        Raises TableTooLong if one doesn't fit: cutting it would silently drop tokens.
        """
        return padded([self.table(name) for name in names], width)


def padded(tables: Sequence[Sequence[int]], width: int | None = None) -> Tensor:
    """Block tables, padded with the null block to the same length: see Pages.tables."""
    longest = max(map(len, tables), default=0)
    width = longest if width is None else whole_number("width", width, least=0)
    if longest > width:
        raise TableTooLong(f"a table has {longest} blocks, which don't fit into width {width}")
    require_memory(BYTES_OF_A_PLACE * width * len(tables), width=width)
    rows = [[*table, *[NULL_BLOCK] * (width - len(table))] for table in tables]
    return torch.from_numpy(np.array(rows, dtype=np.int32).reshape(len(tables), width))
