"""The names of v2: its launches, the reduce kernel, and the rule that chooses."""

from pa_tutorial.index.entry import Symbol, cells_of, lines_of

geometry = lines_of("pa_tutorial/kernels/geometry.py")
launch = lines_of("pa_tutorial/kernels/launch.py")
prepare = lines_of("pa_tutorial/kernels/prepare.py")
reduce = lines_of("pa_tutorial/kernels/reduce.py")
choose = lines_of("pa_tutorial/kernels/choose.py")
nb10 = cells_of("10_softmax_and_value")
nb12 = cells_of("12_partitions")

SHORTCUT = nb12("# One partition is the whole sequence")
RESCALED = nb12('"# r_j = exp_sum_j"', 'watch="inv_sum = "')

REDUCE_KERNEL = (
    Symbol(
        "`paged_attention_v2_reduce_kernel`",
        "joins the partitions of each head of each sequence",
        reduce("def paged_attention_reduce_kernel("),
        nb12("r = exp_sum * torch.exp(m - m.max())", "partitions.draw_shares("),
    ),
    Symbol(
        "`num_partitions == 1`",
        "the output of the only partition is copied",
        reduce("if num_partitions == 1:"),
        SHORTCUT,
    ),
    Symbol(
        "`shared_max_logits`, `shared_exp_sums`",
        "two numbers a partition, in shared memory",
        reduce("shared_max_logits = cuda", "shared_exp_sums = shared"),
        RESCALED,
    ),
    Symbol(
        "`rescaled_exp_sum`, `global_exp_sum`",
        "exp_sum · exp(max_logit - M), and the sum of these",
        reduce("rescaled = exp_sums", "global_exp_sum = block_sum("),
        (*RESCALED, *nb12("changed(reduce,")),
    ),
    Symbol(
        "`inv_global_exp_sum`",
        "1 / (global_exp_sum + 1e-6)",
        reduce("inv_sum = float32(1)"),
        RESCALED,
    ),
)

V2 = (
    Symbol(
        "`paged_attention_v2_launcher`",
        "makes both launches ready",
        prepare("def prepare_v2(", "def prepare_reduce("),
        nb12("for launch, report in zip("),
    ),
    Symbol(
        "`logits_size` with `PARTITION_SIZE`",
        "in v2 the size does not depend on the batch",
        geometry("tokens = self.partition_size or max_seq_len"),
        (*nb10("num_bytes = geometry.dynamic_shared_bytes("), *nb12("def fits(")),
    ),
    Symbol(
        "`dim3 grid(num_heads, num_seqs, max_num_partitions)`",
        "the longest sequence decides the third number",
        prepare("grid=(num_heads, num_seqs, num_partitions)"),
        nb12('print("grid", mixed.grid)', "partitions.draw_mixed("),
    ),
    Symbol(
        "`reduce_shared_mem_size`",
        "two float32 a partition",
        prepare("shared_bytes = 2 * num_partitions * FLOAT_BYTES"),
        nb12("for launch, report in zip("),
    ),
    Symbol(
        "`paged_attention_v2`",
        "tensors in; ours returns the output",
        launch("def paged_attention_v2("),
        nb12("out = paged_attention_v2(", 'check("cuda_v2", short=True)'),
    ),
)

PAGED_ATTN = (
    Symbol(
        "`_PARTITION_SIZE`",
        "tokens of a partition",
        choose("VLLM_PARTITION_SIZE = 512"),
        nb12("for size in (16, 48, 128, 512):"),
    ),
    Symbol(
        "`use_v1`",
        "which of the two kernels is called",
        choose("use_v1 = "),
        nb12("chosen = [choose(num_seqs"),
    ),
    Symbol(
        "`tmp_output`, `exp_sums`, `max_logits`",
        "what goes from the first kernel to the second",
        prepare("tmp_out = not_written(", '"exp_sums": flat(', '"max_logits": flat('),
        nb12('for name in ("max_logits", "exp_sums", "tmp_out"):'),
    ),
)
