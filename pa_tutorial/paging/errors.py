"""What can go wrong in the memory manager. Whenever one of these is raised, nothing has changed."""

from pa_tutorial.tracebacks import ShortInNotebooks


class PagingError(ShortInNotebooks):
    """The base of all errors below."""


class OutOfBlocks(PagingError):
    """More blocks are needed than are free."""


class UnknownBlock(PagingError):
    """A block number that the pool does not give out."""


class DoubleFree(PagingError):
    """A block is freed that nobody holds."""


class UseAfterFree(PagingError):
    """A freed block is shared, or a freed sequence is used."""


class TableTooLong(PagingError):
    """A block table does not fit into the row of a batch; it is never cut."""


class BlocksInUse(PagingError):
    """The prefix cache is reset while sequences hold blocks."""
