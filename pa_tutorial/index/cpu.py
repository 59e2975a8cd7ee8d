"""The names of vLLM's CPU backend, and of how many blocks there are."""

from pa_tutorial.index.entry import Symbol, VllmFile, cells_of, lines_of

steps = lines_of("pa_tutorial/kernels/cpu_steps.py")
kernel = lines_of("pa_tutorial/kernels/cpu.py")
layouts = lines_of("pa_tutorial/paging/layouts.py")
kv_cache = lines_of("pa_tutorial/paging/kv_cache.py")
waste = lines_of("pa_tutorial/paging/waste.py")
nb02 = cells_of("02_memory_waste")
nb03 = cells_of("03_blocks_and_block_tables")
nb04 = cells_of("04_cache_layouts")
nb06 = cells_of("06_paged_attention_in_torch")
nb13 = cells_of("13_cpu_kernel")

FIRST_PASS = nb13('piece(cpu_steps.two_passes_vllm, "for task in prange"')
SOFTMAX_AND_VALUE = nb13('piece(cpu_steps.two_passes_vllm, "# Softmax"')
SHARES = nb13("for num_shares in (2, 3, 10):")

ATTENTION = (
    Symbol(
        "`reduceSoftmax`",
        "maximum, exp and division; slots behind the sequence get the weight 0",
        steps("# Softmax. What stands behind the last token is not read."),
        SOFTMAX_AND_VALUE,
    ),
    Symbol(
        "`reducePartitonSoftmax` (so it is spelt)",
        "v2: brings the partitions of a sequence to one maximum",
        kernel("# below the maximum of all, a partition counts"),
        SHARES,
    ),
    Symbol(
        "`reduceQKBlockKernel`",
        "the scores of one block; x elements of all its tokens at a time",
        steps("chunk = k[d]  # X dimensions of all tokens"),
        (*FIRST_PASS, *nb13("for layout in (VllmLayout(1, 1, 128, 16)")),
    ),
    Symbol(
        "`reduceValueBlock`",
        "weights times V of one block, with its empty slots; ours ends at `num_tokens`",
        steps("row = v[d]  # one dimension of all tokens"),
        (*SOFTMAX_AND_VALUE, *nb06('print("acc, V as it is:')),
    ),
    Symbol(
        "`vec_op::prefetch`",
        "asks for memory before it is used",
        kernel("def prefetch(", "def ask_ahead("),
        nb13("print(body(cpu.ask_ahead.py_func))"),
    ),
    Symbol(
        "`paged_attention_v1_impl`",
        "all scores, softmax, all values, one head of one sequence after the other",
        steps("def two_passes_vllm("),
        (*FIRST_PASS, *SOFTMAX_AND_VALUE, *nb13("show(pictures.draw_steps())")),
    ),
    Symbol(
        "`static_assert(BLOCK_SIZE == 16)`",
        "no other size; ours takes 8, 16 and 32",
        kernel("    BLOCK_SIZE: int"),
        nb13('check("cpu", short=True)'),
    ),
    Symbol(
        "`logits`, `thread_block_logits`",
        "a place for each token of the longest table, for each thread",
        steps("logits = np.zeros(num_blocks * BLOCK_SIZE"),
        FIRST_PASS,
    ),
    Symbol(
        "`#pragma omp parallel for collapse(2)`",
        "the pairs of sequence and head are dealt out over the cores; ours deals out blocks",
        kernel("for share in prange(num_shares):"),
        (*FIRST_PASS, *nb13("show(pictures.draw_shares_of_mixed_batch())")),
    ),
    Symbol(
        "`paged_attention_v2_impl`, `PARTITION_SIZE`",
        "partitions of 512 tokens; ours are as long as makes all cores equal",
        kernel("# Share i ends where share i + 1 starts"),
        SHARES,
    ),
)
CACHE = (
    Symbol(
        "`copy_blocks_cpu_impl`",
        "copies inside of the pool, in every layer",
        kv_cache("def copy_blocks("),
        nb03("cache.copy_blocks(appended.copies)"),
    ),
    Symbol(
        "`reshape_and_cache_cpu_impl`",
        "K and V of new tokens go to their slots",
        layouts("def reshape_and_cache("),
        nb04("prefill = slot_mapping(block_table, range(10), block_size)"),
    ),
)
CPU_WORKER = (
    Symbol(
        "`CPUCacheEngine._allocate_kv_cache`",
        "one tensor for each layer",
        kv_cache("class PagedKVCache:"),
        (*nb03('print("k_cache of each layer:"'), *nb04("split_kv_cache(kv_cache")),
    ),
    Symbol(
        "`CPUCacheEngine.get_cache_block_size`",
        "bytes of a block in all layers",
        waste("def bytes_per_block("),
        nb02("num_available_blocks(40_000_000_000"),
    ),
    Symbol(
        "`layer_cache.fill_(0)`",
        "ours fills with NaN, so that reading an empty slot shows",
        layouts("k_cache and v_cache, filled with NaN"),
        (*nb13("for name, step in STEPS.items():\n    given"), *nb06('print("acc, V as it is:')),
    ),
)
WORKER = (
    Symbol(
        "`determine_num_available_blocks`",
        "how many blocks fit beside the model",
        waste("def num_available_blocks("),
        nb02("num_available_blocks(40_000_000_000"),
    ),
)

CPU = (
    VllmFile("csrc/cpu/attention.cpp", "commit 08f1781d", ATTENTION),
    VllmFile("csrc/cpu/cache.cpp", "commit 1e2b2034", CACHE),
    VllmFile("vllm/worker/cpu_worker.py", "commit 00a3633f", CPU_WORKER),
    VllmFile("vllm/worker/worker.py", "version 0", WORKER),
)
