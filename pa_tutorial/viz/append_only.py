"""Two requests with the same tokens, with tables that may change and with tables that only grow."""

from matplotlib.figure import Figure

from pa_tutorial.paging.append_only import AppendOnlyTable
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from pa_tutorial.viz.blocks import Frame, draw_frames, snapshot

BLOCK_SIZE = 4
PROMPT, ANSWER = "ABCDEF", "GHI"  # the example of vLLM's document on prefix caching


def serve(kind: type[BlockTable], num_requests: int = 2) -> tuple[PrefixCachingAllocator, dict]:
    """The same request several times, one after the other; none has ended."""
    pool = PrefixCachingAllocator(num_blocks=3 * num_requests + 1)
    tables: dict[str, BlockTable] = {}
    for name in "abcdef"[:num_requests]:
        tables[name] = kind(pool, BLOCK_SIZE)
        tables[name].append(PROMPT.encode())
        for token in ANSWER.encode():
            tables[name].append([token])
    return pool, tables


def frames() -> list[Frame]:
    words = {
        BlockTable: "a table may change: when b fills EFGH, it takes over the block of a",
        AppendOnlyTable: "append-only: b keeps its own EFGH, a second copy",
    }
    return [snapshot(caption, *serve(kind)) for kind, caption in words.items()]


def draw_copies() -> Figure:
    found = frames()
    joined, grown = (frame.num_used for frame in found)
    return draw_frames(
        found, f"The same request twice takes {joined} blocks, or {grown} if tables only grow"
    )
