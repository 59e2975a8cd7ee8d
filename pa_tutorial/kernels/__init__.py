"""Paged attention as Numba CUDA kernels: a first one, and vLLM's v1 line for line.

To read on: geometry (the constants), naive (the indexing), then paged_attention with loads, warp
and dtypes beside it. launch takes torch tensors, which prepare checks; intermediates says what a
run computed on the way; compiled what the compiler made of a kernel; changed makes a kernel with a
piece of its text replaced.
"""
