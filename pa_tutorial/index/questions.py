"""What people ask about this kernel and around it, and the cells that answer."""

from pa_tutorial.index.entry import Question, cells_of

nb01 = cells_of("01_kv_cache")
nb02 = cells_of("02_memory_waste")
nb03 = cells_of("03_blocks_and_block_tables")
nb04 = cells_of("04_cache_layouts")
nb07 = cells_of("07_cuda_in_the_simulator")
nb08 = cells_of("08_first_paged_kernel")
nb09 = cells_of("09_query_and_key")
nb10 = cells_of("10_softmax_and_value")
nb11 = cells_of("11_vector_loads")
nb12 = cells_of("12_partitions")
nb13 = cells_of("13_cpu_kernel")
nb14 = cells_of("14_triton")
nb15 = cells_of("15_measuring")
nb16 = cells_of("16_serving_engine")
nb17 = cells_of("17_many_devices")
nb18 = cells_of("18_what_came_after")

QUESTIONS = (
    Question(
        "What is `x`, and why do K and V have different shapes?",
        "x is how many elements of the cache fit into 16 bytes; a score sums over the elements of "
        "one token and an output over the tokens of one element, so K and V are laid out for "
        "different reads.",
        (
            *nb04("x = {VllmLayout(1, 1, 32, 8, dtype).x}", "figures.draw_neighbours("),
            *nb09("x, group_times_vec = "),
            *nb10("The reason is the direction of the sum."),
            *nb11("now we can say again **what x is**"),
        ),
    ),
    Question(
        "How many elements does a thread own, and which?",
        "HEAD_SIZE / THREAD_GROUP_SIZE elements, in vecs that go round: vec 0 to thread 0 of the "
        "group, vec 1 to thread 1, and so on.",
        nb09("of a group owns {len(elements)} elements", "vecs = [list(range(first"),
    ),
    Question(
        "Which address does thread t read at iteration j?",
        "A sum of five terms: the block, the KV head, the token's offset, the piece of x elements, "
        "and the vec in the piece.",
        nb09(
            "keys.draw_key_address(",
            "keys.key_offsets(",
            "keys.draw_key_owners(",
            'run_microscope(run, at=run.trace.only(array="k_cache"',
        ),
    ),
    Question(
        "What is the shape of logits?",
        "In v1 it is the longest seq_len of the batch, rounded up to whole blocks; in v2 it is "
        "PARTITION_SIZE.",
        nb10("num_bytes = geometry.dynamic_shared_bytes(", "So the shape of logits is"),
    ),
    Question(
        "How do I call v2 on my own q, k, v?",
        "Write K and V into blocks with `reshape_and_cache`, make a block table for each sequence, "
        "and call `paged_attention_v2`.",
        nb12("slots = slot_mapping(", "out = paged_attention_v2("),
    ),
    Question(
        "Is there a bank conflict when q_vecs is written or read?",
        "Yes, of degree 2 with float16, heads of 128 and blocks of 16, element by element or a vec "
        "at once; other sizes have 1, 2 or 4. One vec of padding in each row ends it.",
        (
            *nb09(
                'run.trace.only(array="q_vecs")',
                "query.draw_query_banks(",
                "query.query_reads(g, padding)",
                'run_microscope(run, at=run.trace.only(array="q_vecs"',
            ),
            *nb11("query.query_reads(g, padding, vector_loads)", 'array="q_vecs", kind=does'),
        ),
    ),
    Question(
        "Where in the figure is `x`?",
        "In the picture of the address: the width of a token in one row, here 8 elements.",
        nb09("A column is a vec of 2 elements", "keys.draw_key_address("),
    ),
    Question(
        "What is a minimal test of this kernel?",
        "Plain attention in float64 beside two sequences of different length, shuffled blocks, a "
        "tail and fewer KV heads, with numbers of N(0, 1).",
        nb08("tables = [[3, 1], [5, 0]]", "error = (out - plain(", "mean_of_v):"),
    ),
    Question(
        "Why are tail slots of V zeroed and not those of K?",
        "A bad K gives one bad score, which the mask replaces; a bad V meets a weight of 0, and "
        "0 · NaN is NaN.",
        (
            *nb09("qk is NaN in the threads"),
            *nb10('print("0 * NaN ="', 'run.trace.only("v_vec[j]"'),
        ),
    ),
    Question(
        "When is v1 used and when v2?",
        "v1 up to 8,192 tokens, if there is one partition or if it has more than 512 thread "
        "blocks; else v2. Where both were measured, the faster one.",
        nb12("chosen = [choose(num_seqs", "measured = ["),
    ),
    Question(
        "Is `PARTITION_SIZE` the number of GPUs?",
        "No: it is a number of tokens, those of a sequence that one thread block takes in v2. How "
        "many GPUs share a model is tensor parallelism, which gives each of them some heads.",
        nb17("for size, out in outs.items():", "outs = ranks.run(stories.attend_with_own_heads"),
    ),
)

MORE_QUESTIONS = (
    Question(
        "How many bytes does a token take in the cache?",
        "K and V of each KV head in each layer: 2 · num_layers · num_kv_heads · head_size numbers; "
        "with a latent cache one row in each layer.",
        (*nb01("def bytes_per_token(num_layers"), *nb18("total = kept.num_layers * size")),
    ),
    Question(
        "How many blocks does my GPU have room for?",
        "What weights and activations leave of the memory, divided by the bytes of a block in all "
        "layers.",
        nb02("num_available_blocks(40_000_000_000"),
    ),
    Question(
        "Which blocks do two sequences share, and when is one copied?",
        "Those that a fork or an equal beginning gave them; a block is copied when one writes into "
        "it while the other holds it.",
        nb03(
            'print("copies (source, destination) when b wrote:"',
            'pool = PrefixCachingAllocator(num_blocks=9)\nfor prompt in ("ROSEBUSH"',
        ),
    ),
    Question(
        "What happens when the blocks run out?",
        "The youngest sequence gives up its blocks and waits; later it is computed again, but for "
        "the blocks that are still found.",
        nb16("film = serve(num_blocks=13, token_budget=16)"),
    ),
    Question(
        "Do answers change when requests share a batch?",
        "The tokens are those of one request after the other; the check compares them.",
        nb16("same tokens as alone:", "plays scenes like those above"),
    ),
    Question(
        "How do I look at what each thread reads?",
        "Run the kernel in the simulator with a trace, and open the microscope.",
        (
            *nb07("microscope(report, at=report.findings[0]"),
            *nb09('run_microscope(run, at=run.trace.only(array="k_cache"'),
        ),
    ),
    Question(
        "Which layout suits a CPU?",
        "The plain one: 8 neighbours in memory are 8 elements of one token, and a block of all "
        "heads is one piece.",
        nb13(
            "for layout in (VllmLayout(1, 1, 128, 16)", "show(pictures.draw_order_of_reference())"
        ),
    ),
    Question(
        "Why not `fastmath=True`?",
        "It also promises that there is no NaN and no infinity, and here are both.",
        nb13("for permission in (False, True, cpu.REORDER):"),
    ),
    Question(
        "Where are the threads, the shared memory and the barriers in Triton?",
        "The compiler places them; what it chose can be read without a GPU.",
        nb14("print(compiled.layout_of_tile(16, 128))", "show(tiles.draw_reference_threads())"),
    ),
    Question(
        "Why does my Triton kernel refuse heads of 80?",
        "A tile must be a power of two long: pad it, and mask what is too much.",
        nb14("def as_long_as_a_head(", "show(tiles.draw_masks_of_worked_example())"),
    ),
    Question(
        "Why is my Triton kernel compiled again and again?",
        "Each value of a constant is a compilation of its own; so are, of a number, the value 1 "
        "and the multiples of 16.",
        nb14("compilations for 8 widths"),
    ),
    Question(
        "How fast can a decode step be?",
        "As fast as memory brings K and V once; with many query heads a KV head, computing may "
        "become the limit.",
        nb15("for gb_per_s in (20, 35, 100):", "show(roofline.draw_roofline())"),
    ),
    Question(
        "How do I time such a kernel?",
        "With cold caches, interleaved with what it is compared with, and by the median of the "
        "ratios of each round.",
        nb15("show(noise.draw_noise())", "fastest B over fastest A"),
    ),
    Question(
        "What does it cost to gather the blocks first?",
        "Memory moves three to five times the bytes.",
        (*nb15("for way, moved in"), *nb16("engine_measured.draw_step_ways()")),
    ),
    Question(
        "Does vLLM still use this kernel?",
        "Not on NVIDIA's GPUs: by default it has not been called since March 2025, and the notes "
        "of v0.25.0 (July 2026) say that it has been removed.",
        nb18("show(time_line.draw_time_line())"),
    ),
    Question(
        "How does one kernel do prefill and decode?",
        "Its tiles have rows: query tokens times the query heads of a group; a sequence that "
        "decodes is a tile with few rows.",
        nb18("starts = [0, *query_lens", "show(query_rows.draw_tiles("),
    ),
    Question(
        "What are split-KV and an LSE?",
        "Split-KV is v2 by another name. An LSE is m + log l, one number in place of the maximum "
        "and the sum of a part.",
        nb18('"softmax over the LSEs"', "def use(num_thread_blocks"),
    ),
    Question(
        "Why are equal blocks not merged any more?",
        "In V1 tables only grow, so that whoever has a copy of one needs only what is new.",
        nb18("show(append_only.draw_copies())", "for kind in (BlockTable, AppendOnlyTable):"),
    ),
    Question(
        "Is it better to swap a sequence out or to compute it again?",
        "By bytes alone, to swap; but each block and layer is a copy of its own, and what starting "
        "a copy costs decides.",
        nb18('print(f"{copies:,} copies of'),
    ),
    Question(
        "What do blocks hold in a model with MLA?",
        "One row a token for all heads; block tables and stages stay as they are.",
        nb18(
            "write_rows(rows[:length], cache, slots)",
            "for stage in (paged_gather, paged_online):\n    out = paged_latent(",
        ),
    ),
    Question(
        "How do many GPUs share a cache?",
        "Each has its heads of every block, with one block table for all; or each has some blocks, "
        "and parts are merged.",
        nb17(
            "outs = ranks.run(stories.attend_with_own", "ranks.run(stories.parts, WORKED_EXAMPLE)"
        ),
    ),
)
