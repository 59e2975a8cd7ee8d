"""PagedAttention, step by step: from naive attention to a paged CUDA kernel in Python."""
