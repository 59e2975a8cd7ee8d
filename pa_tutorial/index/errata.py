"""What the sources say and what is not so, in the order of the walk."""

from pa_tutorial.index.entry import Erratum, cells_of
from pa_tutorial.index.errata_of_kernel import OF_KERNEL
from pa_tutorial.index.sources import analysis, dive, document, notes, rosellm

nb01 = cells_of("01_kv_cache")
nb02 = cells_of("02_memory_waste")
nb03 = cells_of("03_blocks_and_block_tables")
nb04 = cells_of("04_cache_layouts")
nb05 = cells_of("05_online_softmax")
nb06 = cells_of("06_paged_attention_in_torch")
nb09 = cells_of("09_query_and_key")
nb10 = cells_of("10_softmax_and_value")
nb12 = cells_of("12_partitions")
nb13 = cells_of("13_cpu_kernel")
nb14 = cells_of("14_triton")
nb16 = cells_of("16_serving_engine")
nb17 = cells_of("17_many_devices")
nb18 = cells_of("18_what_came_after")

BEFORE_KERNEL = (
    Erratum(
        "Attention applies softmax(x) / √d_k to the products of q and k.",
        (dive("section 1"),),
        "The products are divided, then comes the softmax. Divided afterwards, the weights of a "
        "query do not add up to 1.",
        nb01("as_written = torch.softmax("),
    ),
    Erratum(
        "Output i depends on query i only.",
        (dive("section 1"),),
        "Of all queries, only on that one; but on all keys and values up to i.",
        nb01("def changes_output_3("),
    ),
    Erratum(
        "A prompt enters as (seq_len, vocab_size), and what attention gives is the new token.",
        (dive("section 2"),),
        "Token ids enter, and attention gives a vector for each token and head. The rest of the "
        "layer, the projection to scores and the choice of a token are still to come.",
        nb01('print("attention output"'),
    ),
    Erratum(
        "Prefill and decode have an attention module each, with random weights of its own.",
        (dive("section 2, `SimpleLM`"),),
        "They must have the same weights; else only the first token is right.",
        nb01("other = TinyLM(model.config)"),
    ),
    Erratum(
        "The model has no causal mask.",
        (dive("section 2, `SimpleLM`"),),
        "With one layer this does no harm. With two, what is cached is out of date as soon as a "
        "token comes: a KV cache is right because of the mask.",
        nb01("one_layer = TinyLM(", "for masked in (False, True):"),
    ),
    Erratum(
        "Beside the unknown end of a text, random allocation wastes much by fragmentation.",
        (dive("section 3.1"),),
        "The gaps between reservations are never the largest part of the waste, and with "
        "reservations of one size there are none.",
        nb02('for policy in ("max", "pow2", "oracle")', 'print("share that holds tokens'),
    ),
    Erratum(
        "To free a block twice does nothing.",
        (rosellm("`KVBlockManager`, in its repository"),),
        "It is a mistake of the caller, and must be an error: ignored, it hides wrong counts such "
        "as those of the next row.",
        nb03("except DoubleFree as error:"),
    ),
    Erratum(
        "To copy a shared block, first drop the reference to the old one, then take a new one.",
        (rosellm("`KVBlockManager`, in its repository"),),
        "If no block is free, this fails between the two steps and leaves a count too low: later "
        "a block that is still read is given to somebody else. First take, then drop.",
        nb03("small.free(block)  # wrong order", 'b.append(tokens("!"))'),
    ),
    Erratum(
        "The reference count of a block says how many requests share it.",
        (analysis("on `NaiveBlockAllocator`"),),
        "It says how many block tables name it. Two samples of one request count twice.",
        nb03('b.append(tokens("!"))'),
    ),
    Erratum(
        "A sequence with more blocks than the table has columns is cut to fit.",
        (rosellm("`physical[:num_blocks_max]`"),),
        "The tokens behind are not seen, and no error says so. Such a table must be refused.",
        (*nb03("cut = paged_gather("), *nb14("the last 1 of 17")),
    ),
    Erratum(
        "A block stores the tokens of one head.",
        (dive("section 5.1"), notes("on blocks"), document("Concepts")),
        "A block has K and V of all KV heads of a layer, and one row of the block table serves "
        "them all.",
        nb03('print("k_cache of each layer:"'),
    ),
    Erratum(
        "K and V of a token are as wide as its embedding.",
        (analysis("on the shape of the cache"),),
        "Only if there are as many KV heads as query heads. They are num_kv_heads · head_size "
        "wide.",
        nb04("q, key, value = inputs.q"),
    ),
    Erratum(
        "x is what a thread group processes in all, or what it loads at once: "
        "THREAD_GROUP_SIZE · VEC_SIZE.",
        (document("Concepts"), dive("sections 5.1 and 5.3"), notes("on loading K")),
        "x is 16 bytes of the cache, in elements. A group processes the whole head; and it loads "
        "x elements at once only if q and the cache have one type.",
        (*nb04("x = {VllmLayout(1, 1, 32, 8, dtype).x}"), *nb09("x, group_times_vec = ")),
    ),
    Erratum(
        "K needs less data than V. Hence thread groups for K, and the larger vecs of V.",
        (dive("sections 5.1 and 5.5"),),
        "Both have the same bytes. A score sums over the elements of a token, an output over the "
        "tokens of an element; with blocks of 32 the vecs are equal.",
        (*nb04("bytes of k_cache and v_cache"), *nb10('print("blocks of 32: VEC_SIZE"')),
    ),
    Erratum(
        "A layer has two tensors of the shape (num_blocks, block_size, num_heads, head_size).",
        (dive("section 3.2"),),
        "It has one tensor, of which K and V are views of different shapes, with KV heads.",
        nb04("split_kv_cache(kv_cache", "vllm = VllmLayout(num_blocks=7"),
    ),
    Erratum(
        "PagedAttention is in essence online softmax.",
        (rosellm("before its code in torch"),),
        "Paging says where K and V lie, online softmax how to go over them once. vLLM's v1 keeps "
        "all scores and goes over them twice; v2 merges partitions.",
        (
            *nb05("partitions = [v1(", "figures.draw_shared_memory("),
            *nb14('print(piece(kernel, "m_new = tl.maximum"'),
        ),
    ),
    Erratum(
        "PARTITION_SIZE is the number of GPUs of tensor parallelism.",
        (dive("section 5.1"), document("Inputs")),
        "It is a number of tokens, those of a sequence that one thread block takes: 512 in v2, "
        "and 0 stands for v1.",
        (
            *nb05("partitions = [v1("),
            *nb12("for size in (16, 48, 128, 512):"),
            *nb17("for size, out in outs.items():", "outs = ranks.run(stories.attend_with_own"),
        ),
    ),
    Erratum(
        "The cache may come from `torch.empty`; the reference in torch masks the scores, not V.",
        (rosellm("the new block manager, and `paged_attention_decode_ref`"),),
        "A NaN in an unused slot of V reaches the output, because 0 · NaN is NaN; even from block "
        "0, with which tables are padded. A bad K does no harm.",
        nb06("names = dict(vars(inspect.getmodule(attend_blocks)))", 'print("acc, V as it is:'),
    ),
)

AFTER_KERNEL = (
    Erratum(
        "What is said of vLLM's CPU kernel leaves out what it asks for.",
        (analysis("its end"),),
        "It takes blocks of 16 tokens only. And it multiplies V of empty slots by 0, so it needs a "
        "cache that was filled with zeros: 0 · NaN is NaN.",
        (*nb13("for name, step in STEPS.items():\n    given"), *nb06('print("acc, V as it is:')),
    ),
    Erratum(
        "A tile of the kernel is as long as a head, and the mask is `d < D`.",
        (rosellm("its Triton kernel"),),
        "A tile must be a power of two long, so heads of 80, 96, 112 and 120 are refused; where "
        "it runs, the mask is always true.",
        nb14("def as_long_as_a_head("),
    ),
    Erratum(
        "The width of the block tables is a constant, and the loop over it is unrolled.",
        (rosellm("its Triton kernel"),),
        "Where tables differ in width, each width is another compilation; where they are all as "
        "wide as the longest, every sequence goes through all columns.",
        nb14("compilations for 8 widths"),
    ),
    Erratum(
        "Blocks behind the end of a sequence are computed too; the mask takes all their scores.",
        (rosellm("its Triton kernel"),),
        "This goes well only because the maximum starts from the newest token. If it started from "
        "-inf, all weights of such a block would be NaN.",
        nb14("m, scores = torch.tensor(-torch.inf)"),
    ),
    Erratum(
        "Block number times stride is computed in 32 bits.",
        (rosellm("its Triton kernel"),),
        "With 32 heads of 128 and blocks of 16, block 32,768 is the first whose offset does not "
        "fit. vLLM makes the block number 64 bits wide first.",
        nb14('print("in 32 bits:"'),
    ),
    Erratum(
        "The blocks of a sequence are all given out before prefill.",
        (dive("section 3.2"),),
        "A block is taken when a token needs a slot: for a prompt, or its chunk, and then one by "
        "one.",
        nb16('print("step  positions   slots")', "Blocks are taken when a token needs them"),
    ),
    Erratum(
        "One step serves one sequence group; equal prompts are a group; block tables are kept for "
        "each group.",
        (analysis("on scheduling, and on the batch"),),
        "A group is one request with its samples. A step is a batch of all that run, and each "
        "sequence has a block table of its own.",
        nb16("batch = build_batch(film.engine.scheduler.plan)\ntitle", "three = SamplingParams("),
    ),
    Erratum(
        "Prefill writes a slot for each token of the prompt, and never reads the cache.",
        (analysis("on `slot_mapping`, and on `_run_sdpa_forward`"),),
        "With chunks, or behind a known prefix, it writes what is new and reads what is cached.",
        nb16('print("slots written for b:"'),
    ),
    Erratum(
        "With paged attention the engine makes four times as many tokens a second.",
        (rosellm("its measurements"),),
        "It replaced a loop that copied all K and V in each step. Against the best way to gather, "
        "a paged kernel is about twice as fast here; paged attention in torch is slower.",
        nb16("engine_measured.draw_step_ways()", "engine_measured.draw_profile()"),
    ),
)

NOT_RUN = (
    Erratum(
        "There are more logical blocks than physical ones, as with virtual memory.",
        (analysis("on `BlockPool`"),),
        "What is more are Python objects: a pool of four for each block, which doubles when it is "
        "used up. They hold no memory of the GPU.",
        nb03("In vLLM's first manager each logical block is an object"),
        "Our block tables have no such objects.",
    ),
    Erratum(
        "The number of a physical block is its place in the array.",
        (analysis("on the pool of blocks"),),
        "For blocks of the GPU. Those of the host are numbered on from there, and brought back to "
        "begin at 0 when blocks are swapped.",
        nb03("The two pools number their blocks independently"),
        "Our pools both begin at 0.",
    ),
    Erratum(
        "`paged_attention_decode` is called.",
        (rosellm("the attention of its model"),),
        "The text does not define it, only `…_ref` and `…_triton`.",
        (),
        "It is about the text.",
    ),
    Erratum(
        "281.7 tokens a second go with steps of 57 ms, 1133.5 with steps of 13 ms, for 64 "
        "requests.",
        (rosellm("its measurements"),),
        "If all 64 shared a step, 57 ms would be more than 1,100 tokens a second. The pairs fit if "
        "about 16 do.",
        nb16("The two pairs do not fit each other"),
        "It is arithmetic with the text's own numbers.",
    ),
    Erratum(
        "vLLM currently uses this kernel.",
        (document("its first sentence"),),
        "It did when the text was written. The document now begins with a banner that calls it "
        "historical, and the kernel has left vLLM's CUDA build.",
        nb18("now begins with a banner"),
        "It is about vLLM's repository; the notebook names pull requests and releases.",
    ),
)

ERRATA = (*BEFORE_KERNEL, *OF_KERNEL, *AFTER_KERNEL)
