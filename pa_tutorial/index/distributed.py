"""The names of many devices: cut layers, one batch for all ranks, parts merged over ranks."""

from pa_tutorial.index.entry import Symbol, VllmFile, cells_of, lines_of

heads = lines_of("pa_tutorial/distributed/heads.py")
runner = lines_of("pa_tutorial/distributed/runner.py")
context = lines_of("pa_tutorial/distributed/context.py")
nb17 = cells_of("17_many_devices")

WEIGHTS = nb17("ranks.run(stories.sizes_of_weights)")
REPLICATED = nb17("for num_ranks in allowed_num_ranks(model):")
COLLECTIVES = nb17("ranks.run(stories.collectives_of_a_step")
PARTS = nb17("ranks.run(stories.parts, WORKED_EXAMPLE)")

LINEAR = (
    Symbol(
        "`ColumnParallelLinear`",
        "cut by its output: each rank computes some of the numbers",
        heads("return ColwiseParallel()  # out"),
        WEIGHTS,
    ),
    Symbol(
        "`QKVParallelLinear`, `num_kv_head_replicas`",
        "q, k and v of a rank's own heads; KV heads that are fewer than the ranks are repeated",
        heads("def repeat_heads("),
        (*WEIGHTS, *REPLICATED),
    ),
    Symbol(
        "`RowParallelLinear`",
        "cut by its input: each rank has a part of the sum, and an all-reduce adds them",
        heads("return RowwiseParallel()"),
        (*WEIGHTS, *COLLECTIVES),
    ),
)
COMMUNICATION = (
    Symbol(
        "`broadcast_tensor_dict`",
        "the batch of a step goes from rank 0 to all",
        runner("batch = self.group.from_rank_0("),
        COLLECTIVES,
    ),
)
COMMON = (
    Symbol(
        "`correct_attn_out`, `cp_lse_ag_out_rs`",
        "outputs over parts of a context, brought to a common maximum and added",
        context("def merge_over_ranks("),
        (*PARTS, *nb17("show(draw_merge(WORKED_EXAMPLE))")),
    ),
)

DISTRIBUTED = (
    VllmFile("vllm/model_executor/layers/linear.py", "commit 9e109c98", LINEAR),
    VllmFile("vllm/distributed/communication_op.py", "commit 00ff72f2", COMMUNICATION),
    VllmFile("vllm/attention/ops/common.py", "commit 303def0c", COMMON),
)
