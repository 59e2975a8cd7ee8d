"""The names of the kernel up to the score of a token, in the order of the original."""

from pa_tutorial.index.entry import Symbol, cells_of, lines_of

ours = lines_of("pa_tutorial/kernels/paged_attention.py")
geometry = lines_of("pa_tutorial/kernels/geometry.py")
warp = lines_of("pa_tutorial/kernels/warp.py")
nb04 = cells_of("04_cache_layouts")
nb08 = cells_of("08_first_paged_kernel")
nb09 = cells_of("09_query_and_key")
nb10 = cells_of("10_softmax_and_value")

# Cells that show several names.
CONSTANTS = nb09("print(geometry)")
RANGES = nb09('"seq_idx = cuda.blockIdx.y"')
IDENTITY = nb09('names = ("warp_idx", "lane"')
GROUPS = nb09("Note thread 37.")
Q_LOADED = nb09("query.draw_query_load(")
ADDRESS = nb09("keys.draw_key_address(", "keys.key_offsets(")
SCORE = nb09('"# qk = scale * (q . k)"')
MAXIMUM = nb10("maximum.draw_maximum(")

QUERY_AND_KEY = (
    Symbol(
        "`block_sum`",
        "the sum over all threads of a thread block",
        warp("def block_sum(red_smem, sum)"),
        nb10('piece(make_block_sum, "# Each warp sums"'),
    ),
    Symbol(
        "grid `(num_heads, num_seqs, max_num_partitions)`",
        "one thread block for each head of each sequence",
        ours("grid (num_heads, num_seqs, max_num_partitions)"),
        (*nb08("figures.draw_grid("), *nb09("ready = prepare_v1(")),
    ),
    Symbol(
        "`scalar_t`, `cache_t`",
        "the types of q and of the cache; here they are one",
        ours("scalar_t, _, from_float = SCALAR_TYPES"),
        nb08("wide = replace(ready"),
    ),
    Symbol(
        "`HEAD_SIZE`, `BLOCK_SIZE`, `NUM_THREADS`",
        "template parameters",
        ours("HEAD_SIZE, BLOCK_SIZE, X ="),
        CONSTANTS,
    ),
    Symbol(
        "`PARTITION_SIZE`, `USE_PARTITIONING`",
        "0: no partitions, this is v1",
        ours("USE_PARTITIONING = PARTITION_SIZE > 0"),
        nb09("In v1 PARTITION_SIZE is 0."),
    ),
    Symbol(
        "`out`, `q`",
        "arguments: q may be strided over sequences",
        ours("out,  # [num_seqs", "q,  # [num_seqs"),
        nb08('for name in ("q", "k_cache", "v_cache", "block_tables", "seq_lens", "out")'),
    ),
    Symbol(
        "`k_cache`, `v_cache`",
        "arguments: K is split by x, V is transposed",
        ours("k_cache,  # [num_blocks", "v_cache,  # [num_blocks"),
        nb04("vllm = VllmLayout(num_blocks=7", "figures.draw_token("),
    ),
    Symbol(
        "`seq_lens`",
        "argument: the tokens of a sequence, the newest included",
        ours("seq_lens,  # [num_seqs]"),
        nb08("for seq_len in (11, 10):"),
    ),
    Symbol(
        "`q_stride`, `kv_block_stride`, `kv_head_stride`",
        "steps in elements; there may be gaps",
        ours("q_stride,", "kv_block_stride,", "kv_head_stride,"),
        nb09("keys.key_offsets(", "The strides come with the tensors"),
    ),
    Symbol(
        "`seq_idx`, `partition_idx`, `max_num_partitions`",
        "which sequence and which part of it",
        ours(
            "seq_idx = cuda.blockIdx.y",
            "partition_idx = cuda.blockIdx.z",
            "max_num_partitions = cuda.gridDim.z",
        ),
        RANGES,
    ),
    Symbol(
        "`num_seq_blocks`",
        "the blocks of the sequence",
        ours("num_seq_blocks = (seq_len"),
        RANGES,
    ),
    Symbol(
        "`start_block_idx`, `end_block_idx`",
        "the blocks of this thread block",
        ours("start_block_idx = partition_idx", "end_block_idx = min("),
        RANGES,
    ),
    Symbol(
        "`start_token_idx`, `end_token_idx`, `num_tokens`",
        "its tokens",
        ours("start_token_idx = start_block_idx", "end_token_idx = min(", "num_tokens = "),
        RANGES,
    ),
    Symbol(
        "`THREAD_GROUP_SIZE`",
        "the threads that share one key token",
        geometry("def THREAD_GROUP_SIZE(self)"),
        (*CONSTANTS, *nb09("They are a **thread group**.")),
    ),
    Symbol(
        "`NUM_THREAD_GROUPS`",
        "of a thread block: with 128 threads 32, 64 or 128",
        geometry("def NUM_THREAD_GROUPS(self)"),
        (*CONSTANTS, *nb09("groups that load:")),
    ),
    Symbol(
        "`NUM_TOKENS_PER_THREAD_GROUP`",
        "tokens of one block that a group takes: always 1",
        geometry("def NUM_TOKENS_PER_THREAD_GROUP(self)"),
        nb09("turns of the second loop:"),
    ),
    Symbol("`NUM_WARPS`", "warps of a thread block", geometry("def NUM_WARPS(self)"), CONSTANTS),
    Symbol(
        "`thread_idx`, `warp_idx`, `lane`",
        "who am I?",
        ours("thread_idx = uint32(", "warp_idx = int32(", "lane = int32("),
        IDENTITY,
    ),
    Symbol(
        "`head_idx`, `num_heads`",
        "which head",
        ours("head_idx = cuda.blockIdx.x", "num_heads = cuda.gridDim.x"),
        nb09('"thread_idx = uint32"'),
    ),
    Symbol(
        "`num_queries_per_kv`, `kv_head_idx`",
        "query heads share a KV head",
        ours("NUM_QUERIES_PER_KV = geometry", "kv_head_idx = head_idx //"),
        (*nb08("readers = Counter("), *nb09("The head of q is 2, the KV head is 1")),
    ),
    Symbol(
        "`alibi_slope`",
        "of this head; 0 is no bias",
        ours("alibi_slope = alibi_slopes["),
        SCORE,
    ),
    Symbol(
        "`VEC_SIZE`",
        "elements of q or K that a thread takes at once; a group takes 16 bytes",
        geometry("def VEC_SIZE(self)"),
        (*CONSTANTS, *nb09("VEC_SIZE = 16 // (THREAD_GROUP_SIZE")),
    ),
    Symbol(
        "`Q_vec`, `K_vec`",
        "a vec; here the last dimension of an array",
        ours("Q_VECS_SHAPE = (", "K_VECS_SHAPE = ("),
        nb09("shared = {array.name: array"),
    ),
    Symbol(
        "`NUM_ELEMS_PER_THREAD`",
        "elements of the head that a thread owns",
        geometry("def NUM_ELEMS_PER_THREAD(self)"),
        nb09("of a group owns {len(elements)} elements"),
    ),
    Symbol(
        "`NUM_VECS_PER_THREAD`",
        "the same in vecs",
        geometry("def NUM_VECS_PER_THREAD(self)"),
        nb09("vecs of a thread {g.NUM_VECS_PER_THREAD}"),
    ),
    Symbol(
        "`thread_group_idx`",
        "counts through the whole thread block",
        ours("thread_group_idx = int32("),
        (*IDENTITY, *GROUPS),
    ),
    Symbol(
        "`thread_group_offset`",
        "the thread in its group",
        ours("thread_group_offset = int32("),
        (*IDENTITY, *nb09("of a group owns {len(elements)} elements")),
    ),
    Symbol(
        "`q_ptr`",
        "where this head of q begins",
        ours("q_ptr = int64(seq_idx)"),
        nb09('piece(paged_attention, "q_ptr = "'),
    ),
    Symbol(
        "`q_vecs`",
        "q in shared memory: one copy, brought by all groups together",
        ours("q_vecs = cuda.shared.array("),
        (*Q_LOADED, *nb09('run.trace.only(array="q_vecs")', "query.draw_query_banks(")),
    ),
    Symbol(
        "`q_vecs[thread_group_offset][i] = …`, then `__syncthreads()`",
        "group g brings the vecs g, g + NUM_THREAD_GROUPS, … of each row",
        ours("load_q(q_vecs[thread_group_offset, i]"),
        nb09("groups that load:", "without_barrier = changed("),
    ),
    Symbol(
        "`shared_mem`",
        "the dynamic shared memory",
        ours("shared_mem = cuda.shared.array("),
        nb09('"shared_mem = cuda.shared"'),
    ),
    Symbol(
        "`logits`",
        "one float32 a token: score, then exp, then weight",
        ours("logits = shared_mem"),
        (
            *nb09("`logits` and `shared_mem` are two names"),
            *nb10("num_bytes = geometry.dynamic_shared_bytes("),
        ),
    ),
    Symbol(
        "`red_smem`",
        "one number a warp: half for the maximum, half for the sum",
        ours("red_smem = cuda.shared.array("),
        nb10('run.trace.only(array="red_smem"', 'changed(paged_attention, "red_smem[NUM_WARPS:]"'),
    ),
    Symbol(
        "`x`",
        "16 bytes of the cache, in elements",
        geometry("def X(self)"),
        (*nb04("x = {VllmLayout(1, 1, 32, 8, dtype).x}"), *nb09("x, group_times_vec = ")),
    ),
    Symbol(
        "`qk_max = -FLT_MAX`",
        "the maximum begins below every score",
        ours("qk_max = float32(-FLT_MAX)"),
        MAXIMUM,
    ),
    Symbol(
        "`block_table`",
        "this sequence's row of the block tables",
        ours("block_table = block_tables[seq_idx]"),
        nb09('"shared_mem = cuda.shared"'),
    ),
    Symbol(
        "`block_idx += NUM_WARPS`",
        "the first loop: blocks, one a warp",
        ours("# Each warp takes every NUM_WARPS-th block"),
        nb09("keys.draw_blocks_of_warps("),
    ),
    Symbol(
        "`physical_block_number`",
        "where the block lies; 64 bits",
        ours("# 64 bits: block number times stride"),
        nb09("keys.key_offsets(", "is made a 64-bit number first"),
    ),
    Symbol(
        "`physical_block_offset`, `token_idx`",
        "the second loop: which token of the block a group takes",
        ours("physical_block_offset = (thread_group_idx"),
        nb09("no_modulo = changed("),
    ),
    Symbol(
        "`k_vecs`",
        "this thread's elements of K, in registers",
        ours("k_vecs = cuda.local.array("),
        nb09("shared = {array.name: array"),
    ),
    Symbol("`k_ptr`", "where this token's K begins", ours("k_ptr = ("), ADDRESS),
    Symbol(
        "`vec_idx`",
        "the third loop: vecs of the token, THREAD_GROUP_SIZE apart",
        ours("vec_idx = thread_group_offset + j"),
        nb09("keys.draw_key_owners("),
    ),
    Symbol(
        "`offset1`, `offset2`",
        "which piece of x elements, and where in it",
        ours("offset1 = (", "offset2 = ("),
        ADDRESS,
    ),
    Symbol(
        "`Qk_dot::dot`",
        "q times one key, summed over the group",
        (*ours("qk = scale * qk_dot("), *warp("def qk_dot(q_vecs, k_vecs)")),
        nb09("piece(make_qk_dot", "part = [part[t] + part[t ^ mask]"),
    ),
    Symbol(
        "`alibi_slope * (token_idx - seq_len + 1)`",
        "ALiBi: 0 for the newest token",
        ours("qk += alibi_slope *"),
        SCORE,
    ),
)
