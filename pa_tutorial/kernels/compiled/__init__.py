"""A side trip: what the compiler made of our kernels, beside vLLM's own."""
