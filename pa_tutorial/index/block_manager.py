"""The names of vLLM's first block manager."""

from pa_tutorial.index.entry import Symbol, VllmFile, cells_of, lines_of

allocator = lines_of("pa_tutorial/paging/allocator.py")
table = lines_of("pa_tutorial/paging/block_table.py")
prefix = lines_of("pa_tutorial/paging/prefix_cache.py")
errors = lines_of("pa_tutorial/paging/errors.py")
nb03 = cells_of("03_blocks_and_block_tables")

# Cells that show several names.
POOL = nb03("pool = BlockAllocator(num_blocks=6)\nfirst")
ADMISSION = nb03("pool.can_allocate(num_blocks).value")
PROMPT = nb03('sequences = {"a": BlockTable(pool, block_size=4)}\nappended')
WRITING = nb03('step_b = sequences["b"].append(')
COPIES = nb03('print("copies (source, destination) when b wrote:"')
EXHAUSTED = nb03('b.append(tokens("!"))')
CHAIN = nb03('pool = PrefixCachingAllocator(num_blocks=9)\nfor prompt in ("ROSEBUSH"')
MERGED = nb03("b writes SA: slots")
EVICTED = nb03('arrive("c", "ONE TWO TEN")')
SWAPPED = nb03("swap_blocks(on_gpu, on_host, pairs)")
WINDOW = nb03('sequences["a"].slide(window=6)')

MANAGER = (
    Symbol(
        "`watermark_blocks`",
        "free blocks that new sequences may not touch",
        allocator("self.watermark = watermark"),
        nb03("It also has a *watermark*"),
    ),
    Symbol(
        "`can_allocate`",
        "may a new sequence start?",
        allocator("def can_allocate("),
        ADMISSION,
    ),
    Symbol(
        "`AllocStatus`: `OK`, `LATER`, `NEVER`",
        "now, later or never",
        allocator("class Admission(Enum)"),
        ADMISSION,
    ),
    Symbol(
        "`can_append_slots`",
        "are there enough free blocks? Ours asks inside of `append`",
        allocator("def require_free("),
        EXHAUSTED,
    ),
    Symbol(
        "`append_slots`",
        "returns the copies; ours the slots too",
        table("class Appended:"),
        COPIES,
    ),
    Symbol("`swap_in`, `swap_out`", "a whole sequence moves", table("def move_to("), SWAPPED),
)

BLOCK_TABLE = (
    Symbol(
        "`BlockTable`",
        "the blocks of one sequence; one table for all layers",
        table("class BlockTable:"),
        (*PROMPT, *nb03("k_cache of each layer:")),
    ),
    Symbol(
        "`allocate`, `append_token_ids`",
        "room for new tokens: a prompt at once, or one",
        table("def append(self"),
        (*PROMPT, *WRITING),
    ),
    Symbol(
        "`ensure_num_empty_slots`",
        "takes new blocks",
        table("block = self.allocator.allocate()"),
        WRITING,
    ),
    Symbol(
        "`null_block` in place of blocks that left the window",
        "a sliding window",
        table("def slide("),
        WINDOW,
    ),
    Symbol("`fork`", "the same blocks, one reference more each", table("def fork("), WRITING),
    Symbol("`free`", "ours gives the last block back first", table("def free("), COPIES),
    Symbol(
        "`physical_block_ids`",
        "logical block index to physical block number",
        table("self.blocks: list[int] = []"),
        nb03("show(draw_translation("),
    ),
    Symbol(
        "`get_num_blocks_touched_by_append_slots`",
        "how many blocks an append needs",
        table("def blocks_needed("),
        EXHAUSTED,
    ),
)

COMMON = (
    Symbol("`RefCounter`", "one count a block", allocator("self.ref_counts = [0]"), POOL),
    Symbol("`RefCounter.incr`", "one table more", allocator("self.ref_counts[block] += 1"), POOL),
    Symbol(
        "`RefCounter.decr`",
        "one table less; below 0 is an error",
        allocator("self.ref_counts[block] -= 1"),
        (*POOL, *ADMISSION),
    ),
    Symbol(
        "`CopyOnWriteTracker.is_appendable`",
        "a last block that is shared must be copied first",
        table("def must_copy("),
        (*WRITING, *nb03("a copy happens exactly when the last block is shared")),
    ),
    Symbol(
        "`record_cow`, `clear_cows`",
        "the pairs (source, destination)",
        table("copies += [(old, block)]"),
        COPIES,
    ),
)

CPU_GPU = (
    Symbol("`swap`", "frees on one side, takes on the other", table("def move_to("), SWAPPED),
    Symbol(
        "`NullBlock`",
        "belongs to nobody; ours is block 0",
        allocator("NULL_BLOCK = 0"),
        (*POOL, *WINDOW),
    ),
)

NAIVE = (
    Symbol("`NaiveBlockAllocator`", "a pool of blocks", allocator("class BlockAllocator:"), POOL),
    Symbol(
        "`_free_block_indices`",
        "freed last, given out first",
        allocator("self._free = list(range("),
        (*POOL, *COPIES),
    ),
    Symbol(
        "`allocate_mutable_block`",
        "takes a free block",
        allocator("def allocate(self)"),
        POOL,
    ),
    Symbol("`NoFreeBlocksError`", "none is left", errors("class OutOfBlocks("), EXHAUSTED),
    Symbol(
        "`free`",
        "with the last reference the block is free",
        allocator("def free(self"),
        (*POOL, *ADMISSION),
    ),
    Symbol("`fork`", "one reference more", allocator("def share(self"), POOL),
    Symbol("`get_num_free_blocks`", "blocks that nobody holds", allocator("def num_free("), POOL),
    Symbol(
        "`cow_block_if_not_appendable`",
        "ours takes the new block before it drops the old one",
        table("self.allocator.free(old)"),
        nb03("small.free(block)  # wrong order"),
    ),
)

PREFIX = (
    Symbol(
        "`PrefixCachingBlockAllocator`",
        "full blocks are found again",
        prefix("class PrefixCachingAllocator("),
        nb03("BE NICE. "),
    ),
    Symbol(
        "`_cached_blocks`",
        "hash to block",
        prefix("self._by_hash: dict["),
        nb03("hash_function=lambda *content: 7"),
    ),
    Symbol(
        "`allocate_immutable_block`",
        "a full block: share it if it is there",
        (*prefix("def find("), *table("twins = self._find_twins(contents)")),
        CHAIN,
    ),
    Symbol(
        "`_incr_refcount_cached_block`",
        "a block in the cache comes back to life",
        prefix("del self._evictable[block]"),
        EVICTED,
    ),
    Symbol(
        "`_decr_refcount_cached_block`",
        "a named block that nobody holds stays in the cache",
        prefix("self._evictable[block] = None"),
        nb03('arrive("b", "FOUR FIVE SIX")'),
    ),
    Symbol(
        "`_allocate_block_id`",
        "first a block without a name, then evict one",
        prefix("def allocate(self)"),
        EVICTED,
    ),
    Symbol(
        "`get_num_free_blocks`",
        "those in the cache count as free",
        prefix("def num_free("),
        nb03('arrive("b", "FOUR FIVE SIX")'),
    ),
    Symbol(
        "`reset_prefix_cache`",
        "forget every name",
        prefix("def reset(self)"),
        nb03("tells little stories like these to our code"),
    ),
    Symbol(
        "`promote_to_immutable_block`",
        "a block becomes full: name it, or take its twin",
        (*prefix("def name("), *table("self._names.append(twin or")),
        MERGED,
    ),
    Symbol(
        "`hash_block_tokens`",
        "tokens, the hash before them, and an extra key",
        prefix("def chained_hash("),
        CHAIN,
    ),
)

EVICTOR = (
    Symbol(
        "`LRUEvictor`",
        "freed longest ago, evicted first",
        prefix("self._evictable: OrderedDict"),
        EVICTED,
    ),
    Symbol(
        "`num_hashed_tokens`",
        "tie: of one sequence, its last block goes first",
        table("for block in reversed(self._held):"),
        nb03("Of these, its last block is evicted first", 'arrive("c", "ONE TWO TEN")'),
    ),
    Symbol("`evict`", "forgets the name, gives the block", prefix("popitem(last=False)"), EVICTED),
)

BLOCK_MANAGER = (
    VllmFile("vllm/core/block_manager.py", "commit 9a4b60a4", MANAGER),
    VllmFile("vllm/core/block/block_table.py", "commit 47c0ebf2", BLOCK_TABLE),
    VllmFile("vllm/core/block/common.py", "commit 51eab636", COMMON),
    VllmFile("vllm/core/block/cpu_gpu_block_allocator.py", "commit bed874fa", CPU_GPU),
    VllmFile("vllm/core/block/naive_block.py", "commit 9fc24cf9", NAIVE),
    VllmFile("vllm/core/block/prefix_caching_block.py", "about version 0.7 or 0.8", PREFIX),
    VllmFile("vllm/core/evictor.py", "commit 630fe7e7", EVICTOR),
)
