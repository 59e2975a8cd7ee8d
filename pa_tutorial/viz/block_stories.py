"""The strips of frames that `make figures` draws: real operations on a real pool, drawn."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.layouts import PlainLayout, VllmLayout
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator
from pa_tutorial.viz.blocks import Frame, draw_frames, draw_translation, snapshot
from pa_tutorial.viz.layouts import draw_neighbours
from pa_tutorial.viz.slots import SlotWrite, draw_slot_write, write_chunk
from pa_tutorial.walk.cases import WORKED_EXAMPLE


class Strip:
    """A pool, its sequences, and the frames kept so far."""

    def __init__(self, pool: BlockAllocator, block_size: int = 4) -> None:
        self.pool = pool
        self.block_size = block_size
        self.sequences: dict[str, BlockTable] = {}
        self.frames: list[Frame] = []

    def append(self, name: str, tokens: str | Sequence[int]) -> None:
        """New tokens of a sequence, which begins with the first of them: letters or numbers."""
        if name not in self.sequences:
            self.sequences[name] = BlockTable(self.pool, self.block_size)
        self.sequences[name].append(tokens.encode() if isinstance(tokens, str) else tokens)

    def keep(self, caption: str) -> None:
        self.frames.append(snapshot(caption, self.pool, self.sequences))


def draw_grow_fork_finish() -> Figure:
    """Two sequences: one is forked, both write, one ends, and a third takes its blocks."""
    strip = Strip(BlockAllocator(num_blocks=8))
    strip.append("a", "THE CAT S")
    strip.keep("a arrives with a prompt of 9 tokens")
    strip.sequences["b"] = strip.sequences["a"].fork()
    strip.keep("b is forked from a: no block is taken, nothing is copied")
    strip.append("b", "A")
    strip.keep("b appends a token: its last block is shared and not full, so b takes a copy")
    strip.append("a", "ITS ")
    strip.keep("a appends four tokens: three in its own last block, one in a new block")
    strip.sequences.pop("a").free()
    strip.keep("a ends: what b reads too stays, the rest is free")
    strip.append("c", "DOGS RUN")
    strip.keep("c arrives and takes the blocks that a gave back")
    return draw_frames(
        strip.frames, "Sequences grow block by block, share what is equal, and leave no gap"
    )


def draw_shared_prompt() -> Figure:
    """Three requests that begin with the same system prompt."""
    strip = Strip(PrefixCachingAllocator(num_blocks=9))
    for name, question in zip("abc", ("WHO?", "WHY ME?", "WHEN"), strict=True):
        strip.append(name, "BE NICE. " + question)
        strip.keep(f"{name} arrives")
    alone = sum(len(table.blocks) for table in strip.sequences.values())
    used = strip.frames[-1].num_used
    return draw_frames(
        strip.frames, f"Three users, one system prompt: {used} blocks, without sharing {alone}"
    )


def draw_worked_example() -> Figure:
    """Token 9 of the worked example, from its position to its slot."""
    ((table,), num_blocks) = WORKED_EXAMPLE.block_tables()
    tokens = [str(token) for token in range(WORKED_EXAMPLE.seq_lens[0])]
    return draw_translation(tokens, table, WORKED_EXAMPLE.block_size, num_blocks, position=9)


def _layouts() -> tuple[VllmLayout, PlainLayout]:
    """Both layouts, with the sizes of the worked example."""
    example = WORKED_EXAMPLE
    _, num_blocks = example.block_tables()
    sizes = (num_blocks, example.num_kv_heads, example.head_size, example.block_size)
    return VllmLayout(*sizes, example.dtype), PlainLayout(*sizes, example.dtype)


def draw_neighbours_in_layouts() -> Figure:
    return draw_neighbours(*_layouts())


def small_slot_write() -> SlotWrite:
    """Tokens 3 to 6 of a sequence in the blocks 5 and 2, which are smaller than in the example."""
    layout = VllmLayout(num_blocks=7, num_kv_heads=1, head_size=8, block_size=4)
    return write_chunk([5, 2], 2, 6, layout)


def draw_small_slot_write() -> Figure:
    return draw_slot_write(small_slot_write(), followed=4)
