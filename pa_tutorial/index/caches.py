"""The names of the cache: writing, copying, layouts, slots."""

from pa_tutorial.index.entry import Symbol, VllmFile, cells_of, lines_of

layouts = lines_of("pa_tutorial/paging/layouts.py")
kv_cache = lines_of("pa_tutorial/paging/kv_cache.py")
kernels = lines_of("pa_tutorial/kernels/cache.py")
nb03 = cells_of("03_blocks_and_block_tables")
nb04 = cells_of("04_cache_layouts")

WRITTEN = nb04("prefill = slot_mapping(block_table, range(10), block_size)")

CACHE_KERNELS = (
    Symbol(
        "`swap_blocks`",
        "blocks from one pool to another: to the host and back",
        kv_cache("def swap_blocks("),
        nb03("swap_blocks(on_gpu, on_host, pairs)"),
    ),
    Symbol(
        "`block_mapping`",
        "pairs (source, destination)",
        kv_cache("Pairs = Sequence["),
        nb03("swap_blocks(on_gpu, on_host, pairs)"),
    ),
    Symbol(
        "`copy_blocks`, `copy_blocks_kernel`",
        "copies inside of the pool, in every layer",
        (*kv_cache("def copy_blocks("), *kernels("    def copy_blocks_kernel(")),
        nb03("cache.copy_blocks(appended.copies)", "def attention_of_both("),
    ),
    Symbol(
        "`reshape_and_cache`, `reshape_and_cache_kernel`",
        "K and V of new tokens go to their slots",
        (*layouts("def reshape_and_cache("), *kernels("    def reshape_and_cache_kernel(")),
        (*nb04("k_cache, v_cache = vllm.empty()"), *WRITTEN),
    ),
    Symbol(
        "`slot_mapping`",
        "argument: one slot a token",
        layouts("slot_mapping  [num_tokens] int64"),
        (*nb03('print("prefill, all 11 tokens:"'), *WRITTEN),
    ),
    Symbol(
        "`if (slot_idx < 0)`",
        "padding is not written",
        (*layouts("written = slot_mapping != PAD_SLOT"), *kernels("if slot < 0:")),
        WRITTEN,
    ),
    Symbol(
        "`block_idx`, `block_offset`",
        "slot / block_size and the rest: block and offset in front",
        (*layouts("def by_token("), *kernels("block_ptr = slot // BLOCK_SIZE")),
        nb04("block, offset = divmod(int(slots[9]), block_size)"),
    ),
    Symbol(
        "`x_idx`, `x_offset`",
        "which piece of x elements, and where in it",
        (
            *layouts("return (block, head, dim // self.x, token, dim % self.x)"),
            *kernels("k_place = head_ptr + d // X"),
        ),
        nb04("print(body(vllm.k_element))"),
    ),
    Symbol(
        "`tgt_key_idx`",
        "the place of one number of K",
        layouts("+ dim // self.x * self.block_size * self.x"),
        nb04("print(body(vllm.k_element))", "figures.draw_token("),
    ),
    Symbol(
        "`tgt_value_idx`",
        "the place of one number of V",
        layouts("+ dim * self.block_size"),
        nb04("k_cache, v_cache = vllm.empty()", "figures.draw_token("),
    ),
)

PAGED_ATTN = (
    Symbol(
        "`PagedAttention.get_kv_cache_shape`",
        "one tensor a layer, K and V",
        layouts("kv_cache  [2, num_blocks, block_size * num_kv_heads * head_size]"),
        nb04("split_kv_cache(kv_cache"),
    ),
    Symbol(
        "`PagedAttention.split_kv_cache`",
        "K and V as views of it",
        layouts("def split_kv_cache("),
        nb04("split_kv_cache(kv_cache"),
    ),
    Symbol(
        "`x = 16 // kv_cache.element_size()`",
        "x comes from the type of the cache alone",
        layouts("return 16 // self.dtype.itemsize"),
        nb04("x = {VllmLayout(1, 1, 32, 8, dtype).x}"),
    ),
)

UTILS = (
    Symbol(
        "`PAD_SLOT_ID`",
        "-1: not written",
        layouts("PAD_SLOT = -1"),
        WRITTEN,
    ),
    Symbol(
        "`compute_slot_mapping`",
        "physical block number · block_size + offset",
        layouts("def slot_mapping("),
        nb03("show(draw_translation(", 'print("prefill, all 11 tokens:"'),
    ),
)

CACHES = (
    VllmFile("csrc/cache_kernels.cu", "commit 693083ae", CACHE_KERNELS),
    VllmFile("vllm/attention/ops/paged_attn.py", "commit 5da3a322", PAGED_ATTN),
    VllmFile("vllm/attention/backends/utils.py", "", UTILS),
)
