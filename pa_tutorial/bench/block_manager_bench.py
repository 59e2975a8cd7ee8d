"""What the memory manager costs: time per operation by pool size, and bytes per block."""

import gc
import tracemalloc
from collections.abc import Callable

from pa_tutorial.bench.timing import interleaved
from pa_tutorial.paging.allocator import BlockAllocator
from pa_tutorial.paging.block_table import BlockTable
from pa_tutorial.paging.prefix_cache import PrefixCachingAllocator

BLOCK_SIZE = 16
NUM_SEQS = 256
MAX_TOKENS = 48
PROMPT_LEN = 4096
NUM_ALLOCATIONS = 10_000
AT_ONCE = 500  # blocks held at the same time, so that the smallest pool is enough

# Operation -> how many of it one call makes, and what one is.
OPERATIONS = {
    "append_token": (NUM_SEQS, "token appended to a sequence"),
    "allocate_and_free": (NUM_ALLOCATIONS, "block taken and given back"),
    "look_up_prompt": (PROMPT_LEN // BLOCK_SIZE, "block of a cached prompt found and let go"),
}


class AppendTokens:
    """One more token for each of 256 sequences, which start with 1 to 16 tokens.

    At 48 tokens they start anew: the smallest pool has room for no more. The one call in
    thirty that does so does not show in a median.
    """

    def __init__(self, num_blocks: int) -> None:
        self.allocator = PrefixCachingAllocator(num_blocks)
        self.tables: list[BlockTable] = []
        self.token = 0
        self.start_anew()

    def __call__(self) -> None:
        if self.tables[-1].num_tokens == MAX_TOKENS:
            self.start_anew()
        self.token += 1
        for index, table in enumerate(self.tables):
            table.append([self.token * NUM_SEQS + index])

    def start_anew(self) -> None:
        """Fresh sequences of different lengths."""
        for table in self.tables:
            table.free()
        self.tables = [BlockTable(self.allocator, BLOCK_SIZE) for _ in range(NUM_SEQS)]
        for index, table in enumerate(self.tables):
            self.token += 1
            table.append([self.token * NUM_SEQS + index] * (1 + index % BLOCK_SIZE))


class AllocateAndFree:
    """10,000 blocks, 500 at a time."""

    def __init__(self, num_blocks: int) -> None:
        self.allocator = PrefixCachingAllocator(num_blocks)

    def __call__(self) -> None:
        for _ in range(NUM_ALLOCATIONS // AT_ONCE):
            blocks = [self.allocator.allocate() for _ in range(AT_ONCE)]
            for block in blocks:
                self.allocator.free(block)


class LookUpPrompt:
    """A prompt of 4,096 tokens arrives that is in the cache, and ends at once."""

    def __init__(self, num_blocks: int) -> None:
        self.allocator = PrefixCachingAllocator(num_blocks)
        self.prompt = list(range(PROMPT_LEN))
        self()

    def __call__(self) -> None:
        table = BlockTable(self.allocator, BLOCK_SIZE)
        table.append(self.prompt)
        table.free()


def time_per_operation(pool_sizes: tuple[int, ...], rounds: int) -> list[dict[str, object]]:
    """One row for each operation and pool size, microseconds; all measured in one run."""
    rows = []
    makers: dict[str, Callable] = dict(
        zip(OPERATIONS, (AppendTokens, AllocateAndFree, LookUpPrompt), strict=True)
    )
    for name, maker in makers.items():
        count, what = OPERATIONS[name]
        workers = {str(num_blocks): maker(num_blocks) for num_blocks in pool_sizes}
        gc.collect()
        times = interleaved(workers, rounds)
        micros = {size: 1e3 * time["median_ms"] / count for size, time in times.items()}
        smallest = micros[str(pool_sizes[0])]
        for size, value in micros.items():
            ratio = round(value / smallest, 2)
            rows.append(
                {"operation": name, "num_blocks": int(size), "us": round(value, 3), "ratio": ratio}
            )
        shown = ", ".join(f"{value:.2f} µs at {int(size):,}" for size, value in micros.items())
        print(f"  {what}: {shown} blocks", flush=True)
    return rows


def bytes_per_block(num_blocks: int) -> dict[str, float]:
    """Python's memory for the pool, divided by its blocks: without names, and with all named."""
    sizes = {}
    for name, make in (
        ("plain", lambda: BlockAllocator(num_blocks)),
        ("all blocks named", lambda: all_named(num_blocks)),
    ):
        gc.collect()
        tracemalloc.start()
        allocator = make()
        sizes[name] = round(tracemalloc.get_traced_memory()[0] / num_blocks, 1)
        tracemalloc.stop()
        del allocator
    return sizes


def all_named(num_blocks: int) -> PrefixCachingAllocator:
    """Every block in the cache, named by 16 tokens; no sequence holds one."""
    allocator = PrefixCachingAllocator(num_blocks)
    per_prompt = 64
    for start in range(0, num_blocks - 1, per_prompt):
        blocks = min(per_prompt, num_blocks - 1 - start)
        table = BlockTable(allocator, BLOCK_SIZE)
        first = start * BLOCK_SIZE
        table.append([first, *range(1000, 999 + blocks * BLOCK_SIZE)])
        table.free()
    return allocator
