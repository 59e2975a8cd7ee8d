"""The steps that lead to the CPU kernel, each a function of its own, to be read and timed.

    two_passes   the loop that everyone writes: all scores of a head, then the softmax, then V
    online       one pass: online softmax
    block_major  a task for each sequence; blocks outside, heads inside
    vectors      the kernel of cpu.py, whose vectors are chosen by us, and whose shares are taken by
                 free cores; memory is asked for when it is needed
    ahead        the same, and memory is asked for early: the kernel as it is

The first three are plain loops, of which the compiler makes the vectors that it can.
"""

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from pa_tutorial.arguments import float32_scale
from pa_tutorial.attention.step import DecodeStep
from pa_tutorial.kernels.cpu import COMPILED, REORDER
from pa_tutorial.kernels.cpu_backend import as_array, prepare_cpu, require_cpu_inputs
from pa_tutorial.kernels.cpu_vectors import Pointer, Value, unrolled


@unrolled
def widen(row: Pointer) -> Value:
    """One element as float32."""
    return row.load(0, 0)


@cache
def two_passes(HEAD_SIZE: int, BLOCK_SIZE: int) -> Callable:
    """A task for each head of each sequence: all scores, the softmax, all values."""

    @njit(**COMPILED)
    def kernel(
        q,  # [num_seqs, num_heads, HEAD_SIZE] float32, times the scale already
        k_cache,  # [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE]
        v_cache,
        block_tables,  # [num_seqs, max_num_blocks_per_seq]
        seq_lens,  # [num_seqs]
        out,  # [num_seqs, num_heads, HEAD_SIZE] float32
    ):
        num_seqs, num_heads, _ = q.shape
        group = num_heads // k_cache.shape[1]
        for task in prange(num_seqs * num_heads):
            seq, head = task // num_heads, task % num_heads
            table, seq_len = block_tables[seq], seq_lens[seq]
            query, accs = q[seq, head], out[seq, head]
            weights = np.empty(seq_len, np.float32)
            for token in range(seq_len):
                k = k_cache[table[token // BLOCK_SIZE], head // group, token % BLOCK_SIZE]
                qk = np.float32(0)
                for d in range(HEAD_SIZE):
                    qk += query[d] * widen(k, d)
                weights[token] = qk
            m = weights.max()
            l = np.float32(0)
            for d in range(HEAD_SIZE):
                accs[d] = 0
            for token in range(seq_len):
                v = v_cache[table[token // BLOCK_SIZE], head // group, token % BLOCK_SIZE]
                weight = math.exp(weights[token] - m)
                l += weight
                for d in range(HEAD_SIZE):
                    accs[d] += weight * widen(v, d)
            for d in range(HEAD_SIZE):
                accs[d] /= l

    return kernel


@cache
def attend(HEAD_SIZE: int) -> Callable:
    """One head goes through one block, token by token: online softmax."""

    @njit(fastmath=set(REORDER), error_model="numpy")
    def function(query, k, v, num_tokens, m, l, accs):
        for t in range(num_tokens):
            k_row, v_row = k[t], v[t]
            qk = np.float32(0)
            for d in range(HEAD_SIZE):
                qk += query[d] * widen(k_row, d)
            if qk > m:
                factor = math.exp(m - qk)
                m, l = qk, l * factor
                for d in range(HEAD_SIZE):
                    accs[d] *= factor
            weight = math.exp(qk - m)
            l += weight
            for d in range(HEAD_SIZE):
                accs[d] += weight * widen(v_row, d)
        return m, l

    return function


@cache
def online(HEAD_SIZE: int, BLOCK_SIZE: int) -> Callable:
    """A task for each head of each sequence: K and V of a block, then the next block."""
    attend_block = attend(HEAD_SIZE)

    @njit(**COMPILED)
    def kernel(q, k_cache, v_cache, block_tables, seq_lens, out):
        num_seqs, num_heads, _ = q.shape
        group = num_heads // k_cache.shape[1]
        for task in prange(num_seqs * num_heads):
            seq, head = task // num_heads, task % num_heads
            table, seq_len = block_tables[seq], seq_lens[seq]
            accs = np.zeros(HEAD_SIZE, np.float32)
            m, l = np.float32(-np.inf), np.float32(0)
            for block_idx in range(-(-seq_len // BLOCK_SIZE)):
                k = k_cache[table[block_idx], head // group]
                v = v_cache[table[block_idx], head // group]
                num_tokens = min(BLOCK_SIZE, seq_len - block_idx * BLOCK_SIZE)
                m, l = attend_block(q[seq, head], k, v, num_tokens, m, l, accs)
            for d in range(HEAD_SIZE):
                out[seq, head, d] = accs[d] / l

    return kernel


@cache
def block_major(HEAD_SIZE: int, BLOCK_SIZE: int) -> Callable:
    """A task for each sequence: all heads of a block, then the next block."""
    attend_block = attend(HEAD_SIZE)

    @njit(**COMPILED)
    def kernel(q, k_cache, v_cache, block_tables, seq_lens, out):
        num_seqs, num_heads, _ = q.shape
        group = num_heads // k_cache.shape[1]
        for seq in prange(num_seqs):
            table, seq_len = block_tables[seq], seq_lens[seq]
            accs = np.zeros((num_heads, HEAD_SIZE), np.float32)
            m, l = np.full(num_heads, -np.inf, np.float32), np.zeros(num_heads, np.float32)
            for block_idx in range(-(-seq_len // BLOCK_SIZE)):
                k, v = k_cache[table[block_idx]], v_cache[table[block_idx]]
                num_tokens = min(BLOCK_SIZE, seq_len - block_idx * BLOCK_SIZE)
                for head in range(num_heads):
                    own = k[head // group], v[head // group], num_tokens
                    m[head], l[head] = attend_block(
                        q[seq, head], *own, m[head], l[head], accs[head]
                    )
            for head in range(num_heads):
                for d in range(HEAD_SIZE):
                    out[seq, head, d] = accs[head, d] / l[head]

    return kernel


def prepare_loop(make: Callable, *inputs: object) -> Callable[[], Tensor]:
    """Check everything once; what is returned does one decode step at each call.

    make    one of the three functions above
    inputs  q, k_cache, v_cache, block_tables, seq_lens, scale
    """
    step = DecodeStep(*inputs)
    require_cpu_inputs(step)
    kernel = make(*step.k_cache.shape[:1:-1])
    read = [as_array(x) for x in (step.k_cache, step.v_cache, step.block_tables, step.seq_lens)]
    factor = float(float32_scale(step.scale))

    def run() -> Tensor:
        out = np.empty(step.q.shape, np.float32)
        kernel((step.q.float() * factor).contiguous().numpy(), *read, out)
        return torch.from_numpy(out).to(step.q.dtype)

    return run


# (q, k_cache, v_cache, block_tables, seq_lens, scale) -> a function without arguments that returns
# out [num_seqs, num_heads, head_size] in the dtype of q
STEPS: dict[str, Callable[..., Callable[[], Tensor]]] = {
    "two_passes": partial(prepare_loop, two_passes),
    "online": partial(prepare_loop, online),
    "block_major": partial(prepare_loop, block_major),
    "vectors": lambda *inputs: prepare_cpu(*inputs, ahead=0).run,
    "ahead": lambda *inputs: prepare_cpu(*inputs).run,
}
