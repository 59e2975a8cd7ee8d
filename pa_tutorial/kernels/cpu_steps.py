"""The steps that lead to the CPU kernel, each a function of its own, to be read and timed.

    two_passes_vllm  the loop of vLLM's CPU backend, and its cache layout
    two_passes       the same loop on the plain layout
    online           one pass: online softmax, a task for each sequence and KV head
    block_major      a task for each sequence; blocks outside, heads inside
    balanced         the blocks of the batch are dealt out evenly
    tiles            two query heads go through a block together
    ahead            memory is asked for before it is needed: the kernel of cpu.py

The last three are the kernel itself with one thing turned off after the other. Nothing here is
kept on disk: these functions call those of cpu.py, and Numba would not notice a change there.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from pa_tutorial.arguments import float32_scale, require, require_dense
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.cpu import (
    ONLY_LOOPS,
    REORDER,
    Sizes,
    add_block,
    exp,
    score_block,
    weigh_block,
    widen,
)
from pa_tutorial.kernels.cpu_launch import (
    as_array,
    prepare_cpu,
    require_cpu_inputs,
    sizes_of,
)

COMPILED = {"parallel": ONLY_LOOPS, "fastmath": REORDER, "error_model": "numpy"}


@cache
def two_passes_vllm(sizes: Sizes) -> Callable:
    """Two passes over the blocks of one head, as in vLLM's CPU backend.

    Source: vLLM, paged_attention_v1_impl in csrc/cpu/attention.cpp. There, blocks have 16 tokens
    and the empty slots of V are read too: that file relies on a cache that was filled with zeros.
    """
    HEAD_SIZE, BLOCK_SIZE = sizes.HEAD_SIZE, sizes.BLOCK_SIZE
    X = sizes.LINE // 4  # numbers in 16 bytes: a cache line has 64

    @njit(**COMPILED)
    def kernel(
        q,  # [num_seqs, num_heads, HEAD_SIZE] float32, times the scale already
        k_cache,  # [num_blocks, num_kv_heads, HEAD_SIZE / X, BLOCK_SIZE, X]
        v_cache,  # [num_blocks, num_kv_heads, HEAD_SIZE, BLOCK_SIZE]
        block_tables,  # [num_seqs, max_num_blocks_per_seq]
        seq_lens,  # [num_seqs]
        out,  # [num_seqs, num_heads, HEAD_SIZE] float32
    ):
        num_seqs, num_heads, _ = q.shape
        group = num_heads // k_cache.shape[1]
        for task in prange(num_seqs * num_heads):
            seq, head = task // num_heads, task % num_heads
            seq_len = seq_lens[seq]
            num_blocks = -(-seq_len // BLOCK_SIZE)
            logits = np.zeros(num_blocks * BLOCK_SIZE, np.float32)

            # First pass: the scores of all tokens
            for block_idx in range(num_blocks):
                k = k_cache[block_tables[seq, block_idx], head // group]
                qk = logits[block_idx * BLOCK_SIZE : (block_idx + 1) * BLOCK_SIZE]
                for d in range(HEAD_SIZE // X):
                    chunk = k[d]  # X dimensions of all tokens
                    for t in range(BLOCK_SIZE):
                        for i in range(X):
                            qk[t] += q[seq, head, d * X + i] * widen(chunk[t, i])

            # Softmax. What stands behind the last token is not read.
            m = logits[:seq_len].max()
            l = np.float32(0)
            for token in range(seq_len):
                logits[token] = exp(logits[token] - m)
                l += logits[token]

            # Second pass: the values
            accs = out[seq, head]
            accs[:] = 0
            for block_idx in range(num_blocks):
                v = v_cache[block_tables[seq, block_idx], head // group]
                weights = logits[block_idx * BLOCK_SIZE : (block_idx + 1) * BLOCK_SIZE]
                num_tokens = min(BLOCK_SIZE, seq_len - block_idx * BLOCK_SIZE)
                for d in range(HEAD_SIZE):
                    row = v[d]  # one dimension of all tokens
                    acc = np.float32(0)
                    for t in range(num_tokens):
                        acc += weights[t] * widen(row[t])
                    accs[d] += acc
            accs /= l

    return kernel


@cache
def two_passes(sizes: Sizes) -> Callable:
    """The same loop on the plain layout: a token is a row."""
    BLOCK_SIZE = sizes.BLOCK_SIZE

    @njit(**COMPILED)
    def kernel(q, k_cache, v_cache, block_tables, seq_lens, out):
        num_seqs, num_heads, _ = q.shape
        group = num_heads // k_cache.shape[1]
        for task in prange(num_seqs * num_heads):
            seq, head = task // num_heads, task % num_heads
            one, own = slice(head, head + 1), slice(head // group, head // group + 1)
            seq_len = seq_lens[seq]
            num_blocks = -(-seq_len // BLOCK_SIZE)
            logits = np.zeros((num_blocks, 1, BLOCK_SIZE), np.float32)

            for block_idx in range(num_blocks):
                k = k_cache[block_tables[seq, block_idx]][own]
                num_tokens = min(BLOCK_SIZE, seq_len - block_idx * BLOCK_SIZE)
                nothing = k.reshape(k.size)[:0]
                score_block(q[seq][one], k, nothing, num_tokens, logits[block_idx], sizes)

            scores = logits.reshape(logits.size)
            m = scores[:seq_len].max()
            l = np.float32(0)
            for token in range(seq_len):
                scores[token] = exp(scores[token] - m)
                l += scores[token]
            scores[seq_len:] = 0

            accs = out[seq][one]
            accs[:] = 0
            for block_idx in range(num_blocks):
                v = v_cache[block_tables[seq, block_idx]][own]
                num_tokens = min(BLOCK_SIZE, seq_len - block_idx * BLOCK_SIZE)
                nothing = v.reshape(v.size)[:0]
                add_block(logits[block_idx], v, nothing, num_tokens, accs, sizes)
            accs /= l

    return kernel


@cache
def online(sizes: Sizes) -> Callable:
    """One pass: K and V of a block, then the next block. A task for each KV head."""
    BLOCK_SIZE = sizes.BLOCK_SIZE

    @njit(**COMPILED)
    def kernel(q, k_cache, v_cache, block_tables, seq_lens, out):
        num_seqs, num_heads, _ = q.shape
        num_kv_heads = k_cache.shape[1]
        group = num_heads // num_kv_heads
        for task in prange(num_seqs * num_kv_heads):
            seq, kv_head = task // num_kv_heads, task % num_kv_heads
            heads, own = slice(kv_head * group, (kv_head + 1) * group), slice(kv_head, kv_head + 1)
            qk = np.empty((group, BLOCK_SIZE), np.float32)
            slopes = np.zeros(group, np.float32)
            m = np.full(group, -np.inf, np.float32)
            l = np.zeros(group, np.float32)
            accs = out[seq][heads]
            accs[:] = 0
            for block_idx in range(-(-seq_lens[seq] // BLOCK_SIZE)):
                k = k_cache[block_tables[seq, block_idx]][own]
                v = v_cache[block_tables[seq, block_idx]][own]
                nothing = v.reshape(v.size)[:0]
                num_tokens = min(BLOCK_SIZE, seq_lens[seq] - block_idx * BLOCK_SIZE)
                score_block(q[seq][heads], k, nothing, num_tokens, qk, sizes)
                weigh_block(qk, num_tokens, 0, slopes, m, l, accs, sizes)
                add_block(qk, v, nothing, num_tokens, accs, sizes)
            accs /= l.reshape(group, 1)

    return kernel


@cache
def block_major(sizes: Sizes) -> Callable:
    """All heads of a block, then the next block. A task for each sequence."""
    BLOCK_SIZE = sizes.BLOCK_SIZE

    @njit(**COMPILED)
    def kernel(q, k_cache, v_cache, block_tables, seq_lens, out):
        num_seqs, num_heads, _ = q.shape
        for seq in prange(num_seqs):
            qk = np.empty((num_heads, BLOCK_SIZE), np.float32)
            slopes = np.zeros(num_heads, np.float32)
            m = np.full(num_heads, -np.inf, np.float32)
            l = np.zeros(num_heads, np.float32)
            accs = out[seq]
            accs[:] = 0
            for block_idx in range(-(-seq_lens[seq] // BLOCK_SIZE)):
                k = k_cache[block_tables[seq, block_idx]]
                v = v_cache[block_tables[seq, block_idx]]
                nothing = v.reshape(v.size)[:0]
                num_tokens = min(BLOCK_SIZE, seq_lens[seq] - block_idx * BLOCK_SIZE)
                score_block(q[seq], k, nothing, num_tokens, qk, sizes)
                weigh_block(qk, num_tokens, 0, slopes, m, l, accs, sizes)
                add_block(qk, v, nothing, num_tokens, accs, sizes)
            accs /= l.reshape(num_heads, 1)

    return kernel


def prepare_step(
    make: Callable[[Sizes], Callable],
    layout: str,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> Callable[[], Tensor]:
    """Check everything once; what is returned does one decode step at each call.

    make    one of the four functions above
    layout  of k_cache and v_cache: "vllm" or "plain"
    """
    num_dims = {"vllm": 5, "plain": 4}[layout]
    require(k_cache.dim() == num_dims, "k_cache.dim()", k_cache.dim(), f"{num_dims}: {layout}")
    step = DecodeStep(q, k_cache, v_cache, block_tables, seq_lens, scale)
    if layout == "plain":
        require_cpu_inputs(step)
        by_rows = v_cache
    else:
        step.require_shapes()
        step.require_lengths()
        require_dense("k_cache", k_cache, 5)
        require_dense("v_cache", v_cache, 4)
        by_rows = v_cache.transpose(2, 3)
    kernel = make(sizes_of(by_rows, tiles=False, ahead=0))
    read = tuple(map(as_array, (k_cache, v_cache, block_tables, seq_lens)))
    factor = float(float32_scale(scale))

    def run() -> Tensor:
        accs = np.empty(q.shape, np.float32)
        kernel((q.float() * factor).contiguous().numpy(), *read, accs)
        return torch.from_numpy(accs).to(q.dtype)

    return run


def prepare_switched(tiles: bool, ahead: bool, *inputs: object) -> Callable[[], Tensor]:
    """The kernel of cpu.py with its last two steps on or off."""
    return prepare_cpu(*inputs, tiles=tiles, **({} if ahead else {"ahead": 0})).run


class Step(NamedTuple):
    """One step: what is new in it, the layout that it reads, and what makes it ready.

    prepare  (q, k_cache, v_cache, block_tables, seq_lens, scale) -> a function without arguments
             that returns out [num_seqs, num_heads, head_size] in the dtype of q
    """

    new: str
    layout: str
    prepare: Callable[..., Callable[[], Tensor]]


STEPS: dict[str, Step] = {
    "two_passes_vllm": Step(
        "vLLM's loop and layout", "vllm", partial(prepare_step, two_passes_vllm, "vllm")
    ),
    "two_passes": Step("the plain layout", "plain", partial(prepare_step, two_passes, "plain")),
    "online": Step("one pass", "plain", partial(prepare_step, online, "plain")),
    "block_major": Step("heads inside", "plain", partial(prepare_step, block_major, "plain")),
    "balanced": Step("blocks dealt out evenly", "plain", partial(prepare_switched, False, False)),
    "tiles": Step("two query heads at once", "plain", partial(prepare_switched, True, False)),
    "ahead": Step("memory asked for early", "plain", partial(prepare_switched, True, True)),
}
