"""A side trip: the same algorithm in Triton, compiled for a GPU or interpreted without one."""
