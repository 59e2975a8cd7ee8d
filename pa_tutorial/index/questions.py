"""What people ask about this kernel, and the cells that answer."""

from pa_tutorial.index.entry import Question, cells_of

nb04 = cells_of("04_cache_layouts")
nb08 = cells_of("08_first_paged_kernel")
nb09 = cells_of("09_query_and_key")
nb10 = cells_of("10_softmax_and_value")
nb11 = cells_of("11_vector_loads")
nb12 = cells_of("12_partitions")
nb17 = cells_of("17_many_devices")

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
