"""What can go wrong in the memory manager. Whenever one of these is raised, nothing has changed."""

from pa_tutorial.tracebacks import ShortInNotebooks


class PagingError(ShortInNotebooks):
    """The base of all errors below."""


class OutOfBlocks(PagingError):
    """More blocks are needed than are free."""


class UnknownBlock(PagingError):
    """A block number that isn't one of the pool's."""


class DoubleFree(PagingError):
    """A block or a sequence is freed that is already free."""


class UseAfterFree(PagingError):
    """A freed block is shared, or a freed sequence is used."""


class TableTooLong(PagingError):
    """A block table doesn't fit into the row of a batch; it is never cut."""


class BlocksInUse(PagingError):
    """The prefix cache is reset while sequences hold blocks."""
