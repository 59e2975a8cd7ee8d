"""Paged attention as Numba CUDA kernels: a first one, and vLLM's v1 line for line.

Start reading with naive (the indexing), then v1, v1_vector and v2: these are the kernels that a
reader writes in the notebooks. template makes them for other sizes and with a reader's functions.
launch has the functions: torch tensors in, torch tensors out. Each makes a step and asks a backend
(cuda_backends) for a launch; cuda_launch runs one. intermediates says what a run computed on the
way.

Side trips: cpu (the same for all cores of a CPU), triton (the same in Triton), compiled (what the
compiler made of our kernels and of vLLM's).
"""
