"""The kernel has the names of vLLM's paged_attention_kernel, so that a reader of ours finds the way
in the original.
"""

import ast
import inspect
import textwrap

from pa_tutorial.kernels.geometry import Geometry
from pa_tutorial.kernels.paged_attention import paged_attention

# Source of all lists: vLLM, csrc/attention/attention_kernels.cuh, paged_attention_kernel, commit
# 5bc0e56c. Names of types are left out.

# In the order of the original's parameters
PARAMETERS = (
    *("exp_sums", "max_logits", "out", "q", "k_cache", "v_cache", "scale"),
    *("block_tables", "seq_lens", "alibi_slopes"),
    *("q_stride", "kv_block_stride", "kv_head_stride"),
)
# Not i and j, which count in many loops, and in the original one loop further out or in.
VARIABLES = {
    *("seq_idx", "partition_idx", "max_num_partitions", "seq_len"),
    *("num_seq_blocks", "num_blocks_per_partition", "start_block_idx", "end_block_idx"),
    *("start_token_idx", "end_token_idx", "num_tokens"),
    *("thread_idx", "warp_idx", "lane", "head_idx", "num_heads", "kv_head_idx", "alibi_slope"),
    *("thread_group_idx", "thread_group_offset"),
    *("q_ptr", "q_vecs", "vec_idx", "shared_mem", "logits", "red_smem", "qk_max"),
    *("block_table", "block_idx", "physical_block_number", "physical_block_offset", "token_idx"),
    *("k_vecs", "k_ptr", "offset1", "offset2", "qk", "mask"),
    *("exp_sum", "val", "inv_sum"),
    *("accs", "logits_vec", "v_ptr", "row_idx", "v_vec", "acc"),
    *("out_smem", "mid", "dst", "src", "out_ptr"),
}
MOST = 0.9  # an edit may rename a variable; most of the original's names must stay
KERNEL = paged_attention(Geometry(128, 16)).py_func


def test_most_names_are_those_of_the_original() -> None:
    definition = ast.parse(textwrap.dedent(inspect.getsource(KERNEL))).body[0]
    assert tuple(arg.arg for arg in definition.args.args) == PARAMETERS
    ours = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}
    missing = VARIABLES - ours
    assert len(missing) <= (1 - MOST) * len(VARIABLES), sorted(missing)
