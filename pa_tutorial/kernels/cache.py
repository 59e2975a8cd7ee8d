"""Two kernels that write to the cache: new tokens into their slots, and blocks into other blocks.

Source: vLLM, csrc/cache_kernels.cu, reshape_and_cache_kernel and copy_blocks_kernel.
"""

from collections.abc import Callable
from functools import cache

from numba import cuda, int64, uint32, uint64

from pa_tutorial.kernels.vectors import vector_access


@cache
def reshape_and_cache_kernel(
    num_kv_heads: int, head_size: int, block_size: int, x: int, num_threads: int
) -> Callable:
    """The kernel that writes tokens into a cache of these sizes, made once.

    grid (num_tokens), num_threads threads, no shared memory

    The original takes the sizes as arguments. They are constants here: the compiler makes a
    multiplication of a division by a number that it knows.
    """
    NUM_KV_HEADS, HEAD_SIZE, BLOCK_SIZE, X = num_kv_heads, head_size, block_size, x
    NUM_THREADS, TOKEN_SIZE = num_threads, NUM_KV_HEADS * HEAD_SIZE

    @cuda.jit
    def reshape_and_cache_kernel(
        key,  # [num_tokens, NUM_KV_HEADS, HEAD_SIZE], tokens key_stride elements apart
        value,  # the same, value_stride
        k_cache,  # [num_blocks, NUM_KV_HEADS, HEAD_SIZE / X, BLOCK_SIZE, X]
        v_cache,  # [num_blocks, NUM_KV_HEADS, HEAD_SIZE, BLOCK_SIZE]
        slot_mapping,  # [num_tokens] int64
        key_stride,
        value_stride,
    ):
        """key, value, k_cache and v_cache are flat."""
        token_idx = int64(cuda.blockIdx.x)
        thread_idx = uint32(cuda.threadIdx.x)
        slot = slot_mapping[token_idx]
        # Padding, or a token that is in the cache already: all threads of the block leave.
        if slot < 0:
            return
        # 64 bits, as slot: in a large pool the offset of a block passes 2**31.
        block_ptr = slot // BLOCK_SIZE * (TOKEN_SIZE * BLOCK_SIZE)
        offset = slot % BLOCK_SIZE
        # Thread t takes the elements t, t + NUM_THREADS, ... of the token, over all KV heads:
        # its reads are side by side. Its writes are so only in pieces of X (K), or not at all (V).
        for i in range(thread_idx, TOKEN_SIZE, NUM_THREADS):
            head_idx = i // HEAD_SIZE
            d = i % HEAD_SIZE
            head_ptr = block_ptr + head_idx * (HEAD_SIZE * BLOCK_SIZE)
            k_place = head_ptr + d // X * (BLOCK_SIZE * X) + offset * X + d % X
            v_place = head_ptr + d * BLOCK_SIZE + offset
            k_cache[k_place] = key[token_idx * key_stride + i]
            v_cache[v_place] = value[token_idx * value_stride + i]

    return reshape_and_cache_kernel


@cache
def copy_blocks_kernel(numel_per_block: int, vec_size: int, num_threads: int) -> Callable:
    """The kernel that copies blocks of one layer, K and V, made once.

    grid (num_pairs), num_threads threads, no shared memory

    numel_per_block  elements of K, and of V, in one block; a multiple of vec_size
    vec_size         elements in 16 bytes, which a thread moves at once

    All pairs at once, in any order: no block may be written by one pair and read or written by
    another. The original has the grid (num_layers, num_pairs) and is given a table of pointers, one
    for each layer. Numba takes arrays and no such table, so here each layer is a launch.
    """
    BLOCK_NUMEL, VEC_SIZE, NUM_THREADS = numel_per_block, vec_size, num_threads
    NUM_VECS = BLOCK_NUMEL // VEC_SIZE
    load, store, _ = vector_access(VEC_SIZE)

    @cuda.jit
    def copy_blocks_kernel(
        k_cache,  # [num_blocks, BLOCK_NUMEL]
        v_cache,  # the same
        pairs,  # [num_pairs, 2] int64: source, destination
    ):
        """k_cache and v_cache are flat."""
        pair_idx = cuda.blockIdx.x
        thread_idx = uint32(cuda.threadIdx.x)
        source_ptr = pairs[pair_idx, 0] * BLOCK_NUMEL
        destination_ptr = pairs[pair_idx, 1] * BLOCK_NUMEL
        # Thread t moves the vecs t, t + NUM_THREADS, ...: a warp reads and writes 512 bytes in
        # a row.
        for i in range(thread_idx, NUM_VECS, NUM_THREADS):
            source = uint64(source_ptr + i * VEC_SIZE)
            destination = uint64(destination_ptr + i * VEC_SIZE)
            store(k_cache, destination, load(k_cache, source))
            store(v_cache, destination, load(v_cache, source))

    return copy_blocks_kernel
