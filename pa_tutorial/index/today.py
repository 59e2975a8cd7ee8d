"""The names of today's engines: vLLM's V1, and the kernels that it calls."""

from pa_tutorial.index.entry import Symbol, VllmFile, cells_of, lines_of

allocator = lines_of("pa_tutorial/paging/allocator.py")
prefix = lines_of("pa_tutorial/paging/prefix_cache.py")
append_only = lines_of("pa_tutorial/paging/append_only.py")
table = lines_of("pa_tutorial/paging/block_table.py")
scheduler = lines_of("pa_tutorial/engine/scheduler.py")
batch = lines_of("pa_tutorial/engine/batch.py")
flatten = lines_of("pa_tutorial/walk/paged_tiny_lm.py")
rows = lines_of("pa_tutorial/viz/query_rows.py")
online = lines_of("pa_tutorial/attention/online.py")
latent = lines_of("pa_tutorial/attention/latent.py")
latent_cache = lines_of("pa_tutorial/paging/latent_cache.py")
prepare = lines_of("pa_tutorial/kernels/prepare.py")
reduce = lines_of("pa_tutorial/kernels/reduce.py")
choose = lines_of("pa_tutorial/kernels/choose.py")
triton = lines_of("pa_tutorial/kernels/triton_decode.py")
nb03 = cells_of("03_blocks_and_block_tables")
nb12 = cells_of("12_partitions")
nb14 = cells_of("14_triton")
nb16 = cells_of("16_serving_engine")
nb18 = cells_of("18_what_came_after")

COPIES = nb18("show(append_only.draw_copies())", "for kind in (BlockTable, AppendOnlyTable):")
FOUND = nb18("of the prompt ABCDEFGH, in blocks of 4")
LATER = nb18("of 60 tokens in blocks of 4, 56 are found")
EVICTED = nb03('arrive("c", "ONE TWO TEN")')
NAMES = nb18("def names(tokens: bytes")
MIXED = nb18("flatten_queries(cache.block_tables", "starts = [0, *query_lens")
TILES = nb18("show(query_rows.draw_tiles(", "len(query_rows.tiles(step, group))")
PARTS = nb18("m, l, mean = ready.max_logits[0]")
MERGES = nb18('"softmax over the LSEs"')
NUM_SPLITS = nb18("def use(num_thread_blocks")
TWO_WAYS = nb18("show(latent.draw_two_ways())", "outs = [attend(**mla) for attend in")
LATENT_BLOCKS = nb18("write_rows(rows[:length], cache, slots)")

UNIFIED = (
    Symbol(
        "`kernel_unified_attention`, `BLOCK_M`",
        "rows of a tile: query tokens times the query heads of a group",
        rows("def tiles(query_lens"),
        TILES,
    ),
    Symbol(
        "`query_start_len_ptr`, `seq_lens_ptr`",
        "where the new tokens of each sequence begin, and how many tokens it has",
        batch("    query_lens    how many"),
        MIXED,
    ),
    Symbol(
        "`segm_idx`, `NUM_SEGMENTS_PER_SEQ`",
        "partition; how many each sequence has",
        prepare("grid=(num_heads, num_seqs, num_partitions)"),
        PARTS,
    ),
    Symbol(
        "`softmax_step`",
        "the rule of the online softmax",
        triton("m_new = tl.maximum(m, tl.max(qk, axis=1))"),
        nb14('print(piece(kernel, "m_new = tl.maximum"'),
    ),
    Symbol(
        "`segm_max`, `segm_expsum`, `segm_output`",
        "what a partition leaves: m, l and its accumulator",
        prepare("tmp_out = not_written(", '"exp_sums": flat(', '"max_logits": flat('),
        PARTS,
    ),
    Symbol(
        "`reduce_segments`",
        "the reduce kernel",
        reduce("def paged_attention_reduce_kernel("),
        MERGES,
    ),
    Symbol(
        "`unified_attention`",
        "one launch for prefill and decode; ours makes a sequence of each new token",
        flatten("def flatten_queries("),
        MIXED,
    ),
    Symbol(
        "`BLOCK_Q`",
        "query tokens of a tile",
        rows("# BLOCK_Q: query tokens in a tile"),
        TILES,
    ),
    Symbol(
        "`use_3d`",
        "are sequences split? Only in a step in which each of them decodes",
        choose("use_v1 = "),
        nb18("only in steps in which every sequence decodes"),
    ),
)
BLOCK_POOL = (
    Symbol(
        "`BlockPool`",
        "all blocks, those that are free, and those with a name",
        prefix("class PrefixCachingAllocator("),
        FOUND,
    ),
    Symbol(
        "`cached_block_hash_to_block`",
        "name to block; equal blocks stay apart, because tables only grow",
        append_only("class AppendOnlyTable("),
        COPIES,
    ),
    Symbol(
        "`null_block`",
        "block 0 belongs to nobody",
        allocator("NULL_BLOCK = 0"),
        nb03("pool = BlockAllocator(num_blocks=6)\nfirst"),
    ),
    Symbol("`get_cached_block`", "a block by its name", prefix("def find("), FOUND),
    Symbol(
        "`cache_full_blocks`",
        "a block that becomes full gets its name, and stays",
        append_only("def _name("),
        COPIES,
    ),
    Symbol(
        "`_maybe_evict_cached_block`",
        "a block that is given out anew loses its name",
        prefix("popitem(last=False)"),
        (*EVICTED, *LATER),
    ),
    Symbol(
        "`touch`",
        "one reference more; a free block with a name comes back to life",
        prefix("del self._evictable[block]"),
        EVICTED,
    ),
    Symbol(
        "`free_blocks`",
        "last block first; what has a name can still be found",
        (*table("for block in reversed(self._held):"), *prefix("self._evictable[block] = None")),
        LATER,
    ),
)
KV_CACHE_UTILS = (
    Symbol(
        "`KVCacheBlock.ref_cnt`",
        "one count a block",
        allocator("self.ref_counts = [0]"),
        nb03("pool = BlockAllocator(num_blocks=6)\nfirst"),
    ),
    Symbol(
        "`FreeKVCacheBlockQueue`",
        "free blocks in the order of eviction",
        (*prefix("self._evictable: OrderedDict"), *allocator("self._free = list(range(")),
        (*EVICTED, *LATER),
    ),
    Symbol(
        "`hash_block_tokens`",
        "the name of a block: the name before, its tokens, extra keys",
        prefix("def chained_hash("),
        NAMES,
    ),
    Symbol(
        "`generate_block_hash_extra_keys`, `cache_salt`",
        "whatever else K and V depend on, and a salt for the first block",
        prefix("def chained_hash("),
        NAMES,
    ),
)
SCHEDULER = (
    Symbol(
        "`max_num_scheduled_tokens`",
        "tokens that one step computes, at most",
        scheduler("        token_budget: int = 256,"),
        nb16("film = serve(num_blocks=64, token_budget=16)"),
    ),
    Symbol(
        "`waiting`, `running`",
        "sequences without blocks and with them; who runs may prefill or decode",
        scheduler("self.waiting: list", "self.running: list"),
        nb16("film = serve(num_blocks=64, token_budget=16)"),
    ),
)
MLA = (
    Symbol(
        "`kv_c`, `k_pe`",
        "the row of a token: a latent, and a piece for the position",
        latent("c, r = rows[:, :latent_size]"),
        nb18("show(latent.draw_two_ways())", "turned = rotate(k[..., :nope]"),
    ),
    Symbol(
        "`W_UK`, `W_UV`",
        "from a latent to k and v of a head",
        latent("def absorb(", "def values_of("),
        TWO_WAYS,
    ),
    Symbol(
        "`_forward_prefill`",
        "expanded: K and V are made",
        latent("def attend_expanded("),
        TWO_WAYS,
    ),
    Symbol(
        "`_forward_decode`",
        "absorbed: the rows serve as K and V of all heads",
        latent("def attend_absorbed(", "def paged_latent("),
        (*TWO_WAYS, *nb18("for stage in (paged_gather, paged_online):\n    out = paged_latent(")),
    ),
    Symbol(
        "`MLACommonBackend.get_kv_cache_shape`",
        "one row a token, and no heads",
        latent_cache("def latent_cache("),
        LATENT_BLOCKS,
    ),
)
MERGE = (
    Symbol(
        "`merge_attn_states`",
        "joins two outputs with their LSEs",
        online("def merge(one: Part"),
        MERGES,
    ),
)

TODAY = (
    VllmFile("vllm/v1/attention/ops/triton_unified_attention.py", "commit 00139433", UNIFIED),
    VllmFile("vllm/v1/attention/backends/mla/common.py", "commit 00a817ad", MLA),
    VllmFile("csrc/libtorch_stable/attention/merge_attn_states.cu", "", MERGE),
    VllmFile("vllm/v1/core/block_pool.py", "commit 002f3491", BLOCK_POOL),
    VllmFile("vllm/v1/core/kv_cache_utils.py", "commit 001cabc1", KV_CACHE_UTILS),
    VllmFile("vllm/v1/core/sched/scheduler.py", "commit 00024d31", SCHEDULER),
)

HEURISTICS = (
    Symbol(
        "`num_splits`",
        "how many partitions; chosen so that rounds of the GPU are full",
        choose("VLLM_PARTITION_SIZE = 512"),
        NUM_SPLITS,
    ),
)
PACK_GQA = (
    Symbol(
        "`PackGQA`",
        "the query heads of a group together, as rows of a tile",
        triton("is_row = row < NUM_QUERIES_PER_KV"),
        (*nb18('print(f"v1 asks for {v1:,}'), *nb14('piece(kernel, "row = tl.arange"')),
    ),
)
COMBINE = (
    Symbol(
        "`FlashAttnFwdCombine`, `LSE_partial`, `O_partial`",
        "joins the parts; one number, m + log l, in place of two",
        reduce("def paged_attention_reduce_kernel("),
        (*MERGES, *nb12("partitions.draw_shares(")),
    ),
)
FLASHINFER_SCHEDULER = (
    Symbol(
        "`split_kv`",
        "are sequences split? The *plan*, made on the CPU before each step, says it",
        choose("use_v1 = "),
        nb18("FlashInfer makes a *plan* on the CPU"),
    ),
)
CASCADE = (
    Symbol(
        "`MergeStates`, `S`, `V`",
        "joins the parts; `S` is the LSE to the base 2, `V` the output of a part",
        online("def merge(one: Part"),
        MERGES,
    ),
)
RADIX = (
    Symbol(
        "`RadixCache`",
        "a tree of prefixes, where vLLM has a chain of hashes",
        prefix("class PrefixCachingAllocator("),
        nb18("SGLang keeps a tree of prefixes instead"),
    ),
)

OTHERS = (
    VllmFile("hopper/heuristics.h", "commit 13d0fd9c", HEURISTICS, "FlashAttention"),
    VllmFile("hopper/pack_gqa.h", "commit 14894c57", PACK_GQA, "FlashAttention"),
    VllmFile("hopper/flash_fwd_combine_kernel.h", "commit 000090d0", COMBINE, "FlashAttention"),
    VllmFile(
        "include/flashinfer/attention/scheduler.cuh",
        "commit 00b1eec4",
        FLASHINFER_SCHEDULER,
        "FlashInfer",
    ),
    VllmFile("include/flashinfer/attention/cascade.cuh", "commit 00b57feb", CASCADE, "FlashInfer"),
    VllmFile("python/sglang/srt/mem_cache/radix_cache.py", "commit 95769b28", RADIX, "SGLang"),
)
