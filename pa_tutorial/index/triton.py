"""The names of vLLM's decode kernel in Triton."""

from pa_tutorial.index.entry import Symbol, VllmFile, cells_of, lines_of

ours = lines_of("pa_tutorial/kernels/triton_decode.py")
nb12 = cells_of("12_partitions")
nb14 = cells_of("14_triton")
nb18 = cells_of("18_what_came_after")

WHO_AM_I = nb14('piece(kernel, "kv_head_idx = tl.program_id(0)"')
QUERIES = nb14('piece(kernel, "row = tl.arange"')
TOKENS = nb14('piece(kernel, "for start in range"')
PADDED = nb14("def as_long_as_a_head(", "show(tiles.draw_masks_of_worked_example())")
ONLINE = nb14(
    'print(piece(kernel, "m_new = tl.maximum"', "replace(ready.partitions, kernel=talking)"
)

DECODE = (
    Symbol(
        "`_fwd_grouped_kernel_stage1`",
        "a program has query heads of one KV head, one sequence and one part of its tokens",
        ours("def paged_decode_kernel("),
        WHO_AM_I,
    ),
    Symbol(
        "`split_kv_id`, `NUM_KV_SPLITS`",
        "the part; theirs are so many for each sequence, ours have so many tokens each",
        ours("    partition_idx = tl.program_id(2)"),
        WHO_AM_I,
    ),
    Symbol(
        "`BLOCK_H`, `cur_head`, `mask_h`",
        "query heads as rows of a tile, and those that are real",
        ours("is_row = row < NUM_QUERIES_PER_KV"),
        QUERIES,
    ),
    Symbol(
        "`BLOCK_DMODEL`, `offs_d`, `mask_d`",
        "the head, padded to a power of two",
        ours("    is_query = is_row[:, None] & is_element[None, :]"),
        (*QUERIES, *PADDED),
    ),
    Symbol(
        "`e_max`, `e_sum`, `acc`",
        "the running maximum, sum and accumulator",
        ours('    m = tl.full([NUM_QUERIES_PADDED], float("-inf")'),
        (*nb14('piece(kernel, "newest ='), *ONLINE),
    ),
    Symbol(
        "`BLOCK_N`, `start_n`",
        "tokens of a tile",
        ours("for start in range(first, last, TILE_SIZE):"),
        TOKENS,
    ),
    Symbol(
        "`Req_to_tokens`, `PAGE_SIZE`, `kv_page_number`",
        "block table, block size, block number",
        ours("block_number = tl.load(table_ptr"),
        TOKENS,
    ),
    Symbol(
        "`kv_loc`, `offs_buf_k`",
        "slot, and offset of the elements; ours in 64 bits",
        ours("token_offset = block_number * kv_block_stride"),
        (*TOKENS, *nb14('print("in 32 bits:"')),
    ),
    Symbol(
        "`n_e_max`, `re_scale`, `p`",
        "the rule of the online softmax",
        ours("m_new = tl.maximum(m, tl.max(qk, axis=1))"),
        ONLINE,
    ),
    Symbol(
        "`Att_Out`",
        "what a part leaves: its output, and behind it m + log l; ours leaves m, l and acc",
        ours("tl.store(tmp_out_ptr + place[:, None]"),
        (*nb14('piece(kernel, "place = (seq_idx"'), *nb18('"softmax over the LSEs"')),
    ),
    Symbol(
        "`_fwd_kernel_stage2`",
        "joins the parts",
        ours("def reduce_kernel("),
        (
            *nb14('piece(triton_decode.reduce_kernel.fn, "num_partitions ='),
            *nb12("r = exp_sum * torch.exp(m - m.max())"),
        ),
    ),
)

TRITON = (VllmFile("vllm/attention/ops/triton_decode_attention.py", "commit 0f490657", DECODE),)
