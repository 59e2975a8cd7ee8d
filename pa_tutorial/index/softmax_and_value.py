"""The names of the kernel from the mask on, in the order of the original."""

from pa_tutorial.index.entry import Symbol, cells_of, lines_of

ours = lines_of("pa_tutorial/kernels/paged_attention.py")
geometry = lines_of("pa_tutorial/kernels/geometry.py")
prepare = lines_of("pa_tutorial/kernels/prepare.py")
vectors = lines_of("pa_tutorial/kernels/vectors.py")
nb05 = cells_of("05_online_softmax")
nb09 = cells_of("09_query_and_key")
nb10 = cells_of("10_softmax_and_value")
nb11 = cells_of("11_vector_loads")
nb12 = cells_of("12_partitions")

# Cells that show several names.
MAXIMUM = nb10("maximum.draw_maximum(")
CONSTANTS = nb09("print(geometry)")
ROWS = nb10("rows.draw_reference_value_rows()", "for lane in (0, 1, 2, 31):")
ADDRESS = nb10("found = rows.value_offsets(")
TREE = nb10("rows.draw_reference_warp_tree()")

SOFTMAX_AND_VALUE = (
    Symbol(
        "`mask`",
        "a slot behind the sequence",
        ours("mask = token_idx >= seq_len"),
        nb09("qk is NaN in the threads"),
    ),
    Symbol(
        "`logits[…] = mask ? 0.f : qk`",
        "the score of a token; 0 where there is none",
        ours("= float32(0) if mask else qk"),
        (*nb09('print("kernel:", *(f"{number:5.2f}"'), *nb10("the 0 as a score:")),
    ),
    Symbol(
        "`qk_max = mask ? qk_max : fmaxf(qk_max, qk)`",
        "the maximum of this thread's tokens",
        ours("qk_max = qk_max if mask"),
        nb10('wrong = changed(paged_attention, "qk_max if mask'),
    ),
    Symbol(
        "`VLLM_SHFL_XOR_SYNC(qk_max, mask)`, down to `THREAD_GROUP_SIZE`",
        "the maximum of the warp",
        ours("# The maximum over the warp: the first thread"),
        MAXIMUM,
    ),
    Symbol(
        "`red_smem[warp_idx] = qk_max`, then `__syncthreads()`",
        "one number a warp; without the barrier a race",
        ours("red_smem[warp_idx] = qk_max"),
        nb10('write = "            red_smem[warp_idx] = qk_max'),
    ),
    Symbol(
        "`qk_max = lane < NUM_WARPS ? red_smem[lane] : -FLT_MAX`",
        "the maximum of the warps: every warp finds it",
        ours("qk_max = red_smem[lane] if lane"),
        nb10('run.trace.only(array="red_smem"'),
    ),
    Symbol(
        "`VLLM_SHFL_SYNC(qk_max, 0)`",
        "lane 0 tells the others",
        ours("qk_max = cuda.shfl_sync("),
        MAXIMUM,
    ),
    Symbol(
        "`__expf(logits[i] - qk_max)`",
        "thread t takes the tokens t, t + NUM_THREADS, …",
        ours("val = math.exp(logits[i] - qk_max)"),
        nb10('writes = run.trace.only("logits[i]"'),
    ),
    Symbol(
        "`exp_sum`",
        "the sum of exp(qk - qk_max), in the second half of `red_smem`",
        ours("exp_sum = block_sum(red_smem[NUM_WARPS:], exp_sum)"),
        nb10('changed(paged_attention, "red_smem[NUM_WARPS:]"', 'watch="inv_sum = "'),
    ),
    Symbol(
        "`inv_sum`",
        "1 / (exp_sum + 1e-6)",
        ours("inv_sum = float32(1)"),
        nb10('watch="inv_sum = "'),
    ),
    Symbol(
        "`logits[i] *= inv_sum`",
        "now they are weights",
        ours("logits[i] *= inv_sum"),
        nb10("the 0 as a score:"),
    ),
    Symbol(
        "`max_logits`, `exp_sums`",
        "what v2 needs to join partitions",
        ours("max_logits[row + partition_idx] = qk_max", "exp_sums[row + partition_idx] = exp_sum"),
        (*nb05("partitions = [v1("), *nb12("partitions.draw_split(")),
    ),
    Symbol(
        "`V_VEC_SIZE`",
        "tokens of one row of V that a thread takes at once",
        geometry("def V_VEC_SIZE(self)"),
        (*CONSTANTS, *nb10('print("blocks of 32: VEC_SIZE"')),
    ),
    Symbol(
        "`NUM_V_VECS_PER_ROW`",
        "lanes that share a row of V",
        geometry("def NUM_V_VECS_PER_ROW(self)"),
        ROWS,
    ),
    Symbol(
        "`NUM_ROWS_PER_ITER`",
        "rows that a warp takes at once",
        geometry("def NUM_ROWS_PER_ITER(self)"),
        (*ROWS, *nb10("step = Geometry(128, block_size, dtype).NUM_ROWS_PER_ITER")),
    ),
    Symbol(
        "`NUM_ROWS_PER_THREAD`",
        "rows of a lane",
        geometry("def NUM_ROWS_PER_THREAD(self)"),
        ROWS,
    ),
    Symbol(
        "`accs`",
        "one sum for each row of the lane, in registers, float32",
        ours("accs = cuda.local.array("),
        (*ROWS, *nb09("shared = {array.name: array")),
    ),
    Symbol(
        "`block_idx += NUM_WARPS`, again",
        "the same warp takes the same blocks",
        ours("# The same warp takes the same blocks as before."),
        nb10('"accs = cuda.local.array", "accs[i] += dot"'),
    ),
    Symbol(
        "`physical_block_offset` of V",
        "which tokens of the block a lane takes",
        ours("physical_block_offset = (lane %"),
        ROWS,
    ),
    Symbol(
        "`logits_vec`, `from_float(logits_vec, …)`",
        "the weights of these tokens; the original rounds them to the type of V",
        ours("logits_vec = cuda.local.array(", "load_logits(logits_vec, logits"),
        nb10("rows.draw_reference_value_rows()", '"as the original": narrow_dot('),
    ),
    Symbol("`v_ptr`", "where V of the block begins", ours("v_ptr = physical_block"), ADDRESS),
    Symbol(
        "`row_idx`, `row_idx < HEAD_SIZE`",
        "the row; the last ones may lie behind the head",
        ours("if row_idx < HEAD_SIZE:"),
        nb10("step = Geometry(128, block_size, dtype).NUM_ROWS_PER_ITER"),
    ),
    Symbol(
        "`v_vec`, `offset`",
        "V_VEC_SIZE tokens of the row",
        ours("v_vec = cuda.local.array(", "load_v(v_vec, v_cache"),
        ADDRESS,
    ),
    Symbol(
        "`*reinterpret_cast<const V_vec*>(v_ptr + offset)`; the same with `Q_vec`, `K_vec`",
        "4, 8 or 16 bytes with one instruction",
        vectors("def load_v(", "def load_k(", "def load_q(q_vec, q"),
        nb11('piece(vector_loads, "def load_v("', "show(wide.draw_reference_first_reads())"),
    ),
    Symbol(
        "`if (block_idx == num_seq_blocks - 1)`",
        "only the last block has slots without a token",
        ours("if block_idx == num_seq_blocks - 1:"),
        nb10('zeroed = run.trace.only("v_vec[j]"'),
    ),
    Symbol(
        "`zero_value`",
        "what such a slot of V becomes: 0 · NaN is NaN",
        ours("if token_idx + j >= seq_len:"),
        nb10('print("0 * NaN ="'),
    ),
    Symbol(
        "`accs[i] += dot(logits_vec, v_vec)`",
        "weights times V; ours in float32",
        ours("dot += logits_vec[j] * v_vec[j]"),
        nb10('"as the original": narrow_dot('),
    ),
    Symbol(
        "`VLLM_SHFL_XOR_SYNC(acc, mask)`",
        "the sum over the lanes that share a row",
        ours("acc += cuda.shfl_xor_sync("),
        nb10('"# The sum over the lanes that share a row"'),
    ),
    Symbol(
        "`__syncthreads()` before `out_smem`",
        "the memory of `logits` is used again",
        ours("# The memory of logits is used again below"),
        nb10('if "cuda.syncthreads()" in line:'),
    ),
    Symbol(
        "`out_smem`",
        "rows of half of the warps, in the memory of `logits`",
        ours("out_smem = shared_mem"),
        TREE,
    ),
    Symbol(
        "`dst`, `src`, `mid`",
        "the upper warps leave their rows, the lower ones add them",
        ours("out_smem[dst + row_idx] = accs[j]", "accs[j] += out_smem[src + row_idx]"),
        (*TREE, *nb10('last = "            cuda.syncthreads()')),
    ),
    Symbol(
        "`out_ptr`",
        "where this head of the output begins",
        ours("out_ptr = ("),
        nb10('"if warp_idx == 0:"'),
    ),
    Symbol(
        "`from_float(*(out_ptr + row_idx), accs[i])`",
        "the output, in the type of q",
        ours("out[out_ptr + row_idx] = from_float("),
        nb10('print("largest difference from the oracle:"'),
    ),
    Symbol(
        "`paged_attention_v1_kernel`",
        "the same kernel; `exp_sums` and `max_logits` are null pointers",
        prepare("nothing = torch.empty("),
        nb09("ready = prepare_v1("),
    ),
)
