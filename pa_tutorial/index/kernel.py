"""The names beside the kernel: what launches it, and what it multiplies with."""

from pa_tutorial.index.entry import Symbol, VllmFile, cells_of, lines_of
from pa_tutorial.index.partitions import PAGED_ATTN, REDUCE_KERNEL, V2
from pa_tutorial.index.query_and_key import QUERY_AND_KEY
from pa_tutorial.index.softmax_and_value import SOFTMAX_AND_VALUE

geometry = lines_of("pa_tutorial/kernels/geometry.py")
launch = lines_of("pa_tutorial/kernels/launch.py")
prepare = lines_of("pa_tutorial/kernels/prepare.py")
running = lines_of("pa_tutorial/kernels/running.py")
narrow = lines_of("pa_tutorial/kernels/narrow.py")
nb08 = cells_of("08_first_paged_kernel")
nb09 = cells_of("09_query_and_key")
nb10 = cells_of("10_softmax_and_value")

V1 = (
    Symbol(
        "`NUM_THREADS = 128`",
        "ours takes 64 and 256 too",
        geometry("num_threads: int = 128"),
        nb10("two_warps = prepare_v1("),
    ),
    Symbol(
        "`paged_attention_v1_launcher`",
        "makes the launch ready",
        prepare("def prepare_v1("),
        nb09("ready = prepare_v1("),
    ),
    Symbol(
        "`query.stride(0)`, `key_cache.stride(0)`, `key_cache.stride(1)`",
        "the strides come with the tensors",
        prepare('"q_stride": ', '"kv_block_stride": ', '"kv_head_stride": '),
        nb09("The strides come with the tensors"),
    ),
    Symbol(
        "`padded_max_seq_len`",
        "the longest sequence of the batch, in whole blocks",
        geometry("padded = divide_round_up("),
        nb10("num_bytes = geometry.dynamic_shared_bytes("),
    ),
    Symbol(
        "`logits_size`, `outputs_size`, `shared_mem_size`",
        "dynamic shared memory: large enough for both uses",
        geometry("logits = padded *", "out_smem = self.NUM_WARPS", "return max(logits, out_smem)"),
        nb10("num_bytes = geometry.dynamic_shared_bytes(", "But the first line says 256 bytes"),
    ),
    Symbol(
        "`dim3 grid(num_heads, num_seqs, 1)`",
        "in v1 there is one partition",
        running("grid          thread blocks along x, y, z"),
        nb08("figures.draw_grid("),
    ),
    Symbol(
        "`switch (head_size)`",
        "the head sizes that are compiled",
        geometry("HEAD_SIZES = ("),
        nb09("every = [Geometry(h, b, d)"),
    ),
    Symbol(
        "`CALL_V1_LAUNCHER_BLOCK_SIZE`",
        "the block sizes that are compiled",
        geometry("BLOCK_SIZES = ("),
        nb09("every = [Geometry(h, b, d)"),
    ),
    Symbol(
        "`paged_attention_v1`",
        "tensors in; ours returns the output",
        launch("def paged_attention_v1("),
        nb10('check("cuda_v1", short=True)'),
    ),
)

GENERIC = (
    Symbol(
        "`dot`",
        "`sum(mul<T, T, T>(a, b))`: products in the type of V",
        narrow("products = weights.to(v.dtype) * v"),
        nb10('"as the original": narrow_dot('),
    ),
)

FLOAT16 = (
    Symbol(
        "`sum(uint4)`",
        "four pairs are added in float16",
        narrow("pair = pair + vecs"),
        nb10('"as the original": narrow_dot('),
    ),
)

KERNEL = (
    VllmFile(
        "csrc/attention/attention_kernels.cuh",
        "commit 5bc0e56c",
        (*QUERY_AND_KEY, *SOFTMAX_AND_VALUE, *REDUCE_KERNEL),
    ),
    VllmFile("csrc/attention/paged_attention_v1.cu", "commit d7e5edb1", V1),
    VllmFile("csrc/attention/paged_attention_v2.cu", "commit cc17020a", V2),
    VllmFile("vllm/attention/ops/paged_attn.py", "commit 5da3a322", PAGED_ATTN),
    VllmFile("csrc/attention/attention_generic.cuh", "commit c9eabec7", GENERIC),
    VllmFile("csrc/attention/dtype_float16.cuh", "commit 7e8f65be", FLOAT16),
)
