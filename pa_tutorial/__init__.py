"""PagedAttention, step by step: from naive attention to a paged CUDA kernel in Python."""

import warnings

# On ARM processors without bfloat16, torch multiplies in another way, just as right, and warns.
warnings.filterwarnings("ignore", ".*mkldnn_matmul bf16 path needs a cpu with bf16 support")
