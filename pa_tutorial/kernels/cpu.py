"""Paged attention for the CPU: one decode step on all cores, compiled with numba.njit.

It reads the plain layout, K and V [num_blocks, num_kv_heads, block_size, head_size], so that one
block of K is one piece of memory: all heads of 16 tokens. What a core does with a block:

    score_block    qk = q . k for every head and token       K is read from its start to its end
    weigh_block    online softmax: maximum, weights, sum
    add_block      accs += weight * v                        V is read from its start to its end

The blocks of the batch are dealt out evenly: each core has a share, a run of blocks that may start
and end inside a sequence. The part of a share in one sequence is a partition, as in v2, and the
partitions of a sequence are merged as in v2.

All compiled functions stand in this one file, on purpose: Numba keeps what it compiled on disk
and compiles it anew if this file changes; it does not look at others.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from pa_tutorial.private_names import ParallelOptions

# What the compiler may do to the order of a sum. Not `fastmath=True`: that promises that there is
# no NaN and no infinity, and here are both (a NaN of the model, the score -inf of an empty slot).
REORDER = {"contract", "reassoc", "nsz", "arcp", "afn"}
# What Numba deals out to the cores: the loops over prange and nothing else. To look for whole-array
# expressions too takes up to a third of the time to compile, and outside these loops stands none
# worth dealing out. Not a dict: `njit` empties it, and the next kernel would get none of it.
ONLY_LOOPS = ParallelOptions(
    dict.fromkeys(
        ("comprehension", "reduction", "inplace_binop", "setitem", "numpy", "stencil", "fusion"),
        False,
    )
)
INLINED = {"fastmath": REORDER, "error_model": "numpy", "forceinline": True}

# Of a text without a file (a changed copy of this one) nothing can be kept on disk.
KEEP = Path((lambda: None).__code__.co_filename).exists()

TOKENS_AT_ONCE = 4


class Sizes(NamedTuple):
    """The compile-time constants.

    TILES  1: two query heads of a KV head go through a block together; 0: each by itself
    AHEAD  how many elements before its use a line of K or V is asked for; 0: never
    LINE   elements in a cache line
    """

    HEAD_SIZE: int
    BLOCK_SIZE: int
    TILES: int
    AHEAD: int
    LINE: int


LOG2_E = np.float32(1.4426950408889634)
LN_2 = np.float32(0.6931471805599453)
MIN_EXPONENT = np.float32(-87.0)  # e**-87 is 2**-125.5: the smallest normal number is 2**-126


@intrinsic
def widen(typing_context, stored):
    """A number of the cache as float32.

    Numba has no 16-bit floats on a CPU, so their bits come as integers: uint16 is bfloat16,
    int16 is float16.
    """

    def of_float32(context, builder, signature, args):
        return args[0]

    def of_bfloat16(context, builder, signature, args):
        bits = builder.zext(args[0], ir.IntType(32))  # the upper half of a float32
        return builder.bitcast(builder.shl(bits, ir.Constant(bits.type, 16)), ir.FloatType())

    def of_float16(context, builder, signature, args):
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    makers = {types.float32: of_float32, types.uint16: of_bfloat16, types.int16: of_float16}
    if stored in makers:
        return types.float32(stored), makers[stored]
    return None


@intrinsic
def power_of_two(typing_context, exponent):
    """2**exponent as float32, from its bits; exponent is an int32 from -126 to 127."""

    def make(context, builder, signature, args):
        biased = builder.add(args[0], ir.Constant(args[0].type, 127))
        bits = builder.shl(biased, ir.Constant(biased.type, 23))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.int32), make


@intrinsic
def prefetch(typing_context, array, position):
    """Ask for the cache line of array[position] and go on. array is one-dimensional."""

    def make(context, builder, signature, args):
        array_type, _ = signature.args
        view = context.make_array(array_type)(context, builder, args[0])
        where = cgutils.get_item_pointer(
            context, builder, array_type, view, [args[1]], wraparound=False
        )
        number, address = ir.IntType(32), ir.IntType(8).as_pointer()
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [address, number, number, number]),
            "llvm.prefetch.p0",
        )
        # Into the L2 cache: so many lines at once are more than the L1 cache can wait for.
        to_read, to_l2, of_data = number(0), number(2), number(1)
        builder.call(function, [builder.bitcast(where, address), to_read, to_l2, of_data])
        return context.get_dummy_value()

    return types.void(array, types.int64), make


@njit(**INLINED)
def exp(x):
    """e**x for x <= 0, exactly 0 below MIN_EXPONENT. In plain arithmetic, so that LLVM computes
    eight at once; math.exp is a call for each number."""
    # e**x = 2**n * e**r, with n a whole number and |r| <= ln(2) / 2
    y = max(x, MIN_EXPONENT) * LOG2_E
    n = np.floor(y + np.float32(0.5))
    r = (y - n) * LN_2
    # e**r = 1 + r + r**2 / 2! + ... + r**7 / 7!
    e_r = np.float32(1 / 5040)
    e_r = e_r * r + np.float32(1 / 720)
    e_r = e_r * r + np.float32(1 / 120)
    e_r = e_r * r + np.float32(1 / 24)
    e_r = e_r * r + np.float32(1 / 6)
    e_r = e_r * r + np.float32(1 / 2)
    e_r = e_r * r + np.float32(1)
    e_r = e_r * r + np.float32(1)
    return np.float32(0) if x < MIN_EXPONENT else e_r * power_of_two(np.int32(n))


@njit(**INLINED)
def four_rows(tokens, t, num_tokens):
    """Tokens t to t + 3 of one head in one block. Behind the last token the last one is read
    again, with weight 0: a slot without a token may hold NaN, and 0 * NaN is NaN."""
    last = num_tokens - 1
    return tokens[t], tokens[min(t + 1, last)], tokens[min(t + 2, last)], tokens[min(t + 3, last)]


@njit(**INLINED)
def score_one(q, rows, qk, t, sizes):
    """qk[t : t + 4] = q . k for one query head."""
    k_0, k_1, k_2, k_3 = rows
    s_0 = s_1 = s_2 = s_3 = np.float32(0)
    for d in range(sizes.HEAD_SIZE):
        s_0 += q[d] * widen(k_0[d])
        s_1 += q[d] * widen(k_1[d])
        s_2 += q[d] * widen(k_2[d])
        s_3 += q[d] * widen(k_3[d])
    qk[t], qk[t + 1], qk[t + 2], qk[t + 3] = s_0, s_1, s_2, s_3


@njit(**INLINED)
def score_two(q_a, q_b, rows, qk_a, qk_b, t, sizes):
    """score_one for two query heads of one KV head: k is loaded and widened once for both."""
    k_0, k_1, k_2, k_3 = rows
    a_0 = a_1 = a_2 = a_3 = np.float32(0)
    b_0 = b_1 = b_2 = b_3 = np.float32(0)
    for d in range(sizes.HEAD_SIZE):
        x_0, x_1, x_2, x_3 = widen(k_0[d]), widen(k_1[d]), widen(k_2[d]), widen(k_3[d])
        a_0 += q_a[d] * x_0
        a_1 += q_a[d] * x_1
        a_2 += q_a[d] * x_2
        a_3 += q_a[d] * x_3
        b_0 += q_b[d] * x_0
        b_1 += q_b[d] * x_1
        b_2 += q_b[d] * x_2
        b_3 += q_b[d] * x_3
    qk_a[t], qk_a[t + 1], qk_a[t + 2], qk_a[t + 3] = a_0, a_1, a_2, a_3
    qk_b[t], qk_b[t + 1], qk_b[t + 2], qk_b[t + 3] = b_0, b_1, b_2, b_3


@njit(**INLINED)
def add_one(weights, rows, accs, t, sizes):
    """accs += weights[t : t + 4] * v for one query head."""
    v_0, v_1, v_2, v_3 = rows
    w_0, w_1, w_2, w_3 = weights[t], weights[t + 1], weights[t + 2], weights[t + 3]
    for d in range(sizes.HEAD_SIZE):
        accs[d] += (w_0 * widen(v_0[d]) + w_1 * widen(v_1[d])) + (
            w_2 * widen(v_2[d]) + w_3 * widen(v_3[d])
        )


@njit(**INLINED)
def add_two(weights_a, weights_b, rows, accs_a, accs_b, t, sizes):
    """add_one for two query heads of one KV head: v is loaded and widened once for both."""
    v_0, v_1, v_2, v_3 = rows
    a_0, a_1, a_2, a_3 = weights_a[t], weights_a[t + 1], weights_a[t + 2], weights_a[t + 3]
    b_0, b_1, b_2, b_3 = weights_b[t], weights_b[t + 1], weights_b[t + 2], weights_b[t + 3]
    for d in range(sizes.HEAD_SIZE):
        x_0, x_1, x_2, x_3 = widen(v_0[d]), widen(v_1[d]), widen(v_2[d]), widen(v_3[d])
        accs_a[d] += (a_0 * x_0 + a_1 * x_1) + (a_2 * x_2 + a_3 * x_3)
        accs_b[d] += (b_0 * x_0 + b_1 * x_1) + (b_2 * x_2 + b_3 * x_3)


@njit(**INLINED)
def ask_ahead(memory, start, following, sizes):
    """Ask for the four tokens that lie AHEAD elements behind those that are about to be read: in
    this block, or in the one that is read after it. Both are one-dimensional."""
    start += sizes.AHEAD
    if start >= len(memory):
        start, memory = start - len(memory), following
    num_elements = TOKENS_AT_ONCE * sizes.HEAD_SIZE
    if start + num_elements <= len(memory):
        for i in range(0, num_elements, sizes.LINE):
            prefetch(memory, start + i)


@njit(**INLINED)
def score_block(q, k, following, num_tokens, qk, sizes):
    """qk[head, token] = q . k for all heads and the tokens of one block.

    q          [num_heads, HEAD_SIZE], times the scale already
    k          [num_kv_heads, BLOCK_SIZE, HEAD_SIZE]   one block of K
    following  one-dimensional: what is read after this block
    """
    num_kv_heads = len(k)
    memory = k.reshape(k.size)
    group = len(q) // num_kv_heads
    for kv_head in range(num_kv_heads):
        first, end = kv_head * group, (kv_head + 1) * group
        single = end - group % 2 if sizes.TILES else first  # from here on, heads go one by one
        for t in range(0, num_tokens, TOKENS_AT_ONCE):
            if sizes.AHEAD:
                start = (kv_head * sizes.BLOCK_SIZE + t) * sizes.HEAD_SIZE
                ask_ahead(memory, start, following, sizes)
            rows = four_rows(k[kv_head], t, num_tokens)
            for head in range(first, single, 2):
                score_two(q[head], q[head + 1], rows, qk[head], qk[head + 1], t, sizes)
            for head in range(single, end):
                score_one(q[head], rows, qk[head], t, sizes)


@njit(**INLINED)
def weigh_block(qk, num_tokens, distance, slopes, qk_max, exp_sum, accs, sizes):
    """The scores of one block become weights: one step of the online softmax for every head.

    qk               [num_heads, BLOCK_SIZE]   scores, then weights; 0 behind the last token
    distance         of the block's first token to the query, 0 or less: for ALiBi
    qk_max, exp_sum  [num_heads], and accs [num_heads, HEAD_SIZE]: of all blocks so far
    """
    for head in range(len(qk)):
        scores = qk[head]
        for t in range(sizes.BLOCK_SIZE):
            scores[t] += slopes[head] * np.float32(distance + t)
        for t in range(num_tokens, sizes.BLOCK_SIZE):
            scores[t] = -np.inf
        largest = qk_max[head]
        for t in range(sizes.BLOCK_SIZE):
            largest = max(largest, scores[t])
        if largest > qk_max[head]:
            # m' > m: what was summed below m counts e**(m - m') below m'
            factor = exp(qk_max[head] - largest)
            exp_sum[head] *= factor
            for d in range(sizes.HEAD_SIZE):
                accs[head, d] *= factor
            qk_max[head] = largest
        total = np.float32(0)
        for t in range(sizes.BLOCK_SIZE):
            scores[t] = exp(scores[t] - largest)
            total += scores[t]
        exp_sum[head] += total


@njit(**INLINED)
def add_block(weights, v, following, num_tokens, accs, sizes):
    """accs[head] += weights[head, token] * v for all heads and the tokens of one block."""
    num_kv_heads = len(v)
    memory = v.reshape(v.size)
    group = len(weights) // num_kv_heads
    for kv_head in range(num_kv_heads):
        first, end = kv_head * group, (kv_head + 1) * group
        single = end - group % 2 if sizes.TILES else first  # from here on, heads go one by one
        for t in range(0, num_tokens, TOKENS_AT_ONCE):
            if sizes.AHEAD:
                start = (kv_head * sizes.BLOCK_SIZE + t) * sizes.HEAD_SIZE
                ask_ahead(memory, start, following, sizes)
            rows = four_rows(v[kv_head], t, num_tokens)
            for h in range(first, single, 2):
                add_two(weights[h], weights[h + 1], rows, accs[h], accs[h + 1], t, sizes)
            for h in range(single, end):
                add_one(weights[h], rows, accs[h], t, sizes)


@cache
def cpu_kernel(sizes: Sizes) -> Callable:
    """The kernel for these sizes, compiled at its first call for the types that it is given."""
    BLOCK_SIZE = sizes.BLOCK_SIZE

    @njit(parallel=ONLY_LOOPS, cache=KEEP, fastmath=REORDER, error_model="numpy")
    def kernel(
        q,  # [num_seqs, num_heads, HEAD_SIZE] float32, times the scale already
        k_cache,  # [num_blocks, num_kv_heads, BLOCK_SIZE, HEAD_SIZE]
        v_cache,
        block_tables,  # [num_seqs, max_num_blocks_per_seq]
        seq_lens,  # [num_seqs]
        slopes,  # [num_heads] float32, zeros without ALiBi
        max_logits,  # [num_partitions, num_heads]
        exp_sums,  # [num_partitions, num_heads]
        tmp_out,  # [num_partitions, num_heads, HEAD_SIZE]
        qk_max,  # [num_seqs, num_heads]
        exp_sum,  # [num_seqs, num_heads]
        out,  # [num_seqs, num_heads, HEAD_SIZE] float32
    ):
        num_seqs, num_heads, _ = q.shape
        # first_block[s]: how many blocks the sequences before s have
        first_block = np.zeros(num_seqs + 1, np.int64)
        for seq in range(num_seqs):
            first_block[seq + 1] = first_block[seq] + -(-seq_lens[seq] // BLOCK_SIZE)
        num_blocks = first_block[num_seqs]
        num_shares = min(len(max_logits) - num_seqs, num_blocks)

        for share in prange(num_shares):
            qk = np.empty((num_heads, BLOCK_SIZE), np.float32)
            # Share i ends where share i + 1 starts: at i + 1 parts of num_shares of all blocks.
            start = share * num_blocks // num_shares
            end = (share + 1) * num_blocks // num_shares
            seq = np.searchsorted(first_block, start, side="right") - 1
            while start < end:
                stop = min(end, first_block[seq + 1])
                # The next partition lies in the next share or in the next sequence, so no two
                # have the same sum.
                partition = share + seq
                m, l, accs = max_logits[partition], exp_sums[partition], tmp_out[partition]
                m[:] = -np.inf
                l[:] = 0
                accs[:] = 0
                last_idx = stop - first_block[seq] - 1
                for block_idx in range(start - first_block[seq], last_idx + 1):
                    k = k_cache[block_tables[seq, block_idx]]
                    v = v_cache[block_tables[seq, block_idx]]
                    next_k = k_cache[block_tables[seq, min(block_idx + 1, last_idx)]]
                    num_tokens = min(BLOCK_SIZE, seq_lens[seq] - block_idx * BLOCK_SIZE)
                    distance = block_idx * BLOCK_SIZE - (seq_lens[seq] - 1)
                    score_block(q[seq], k, v.reshape(v.size), num_tokens, qk, sizes)
                    weigh_block(qk, num_tokens, distance, slopes, m, l, accs, sizes)
                    add_block(qk, v, next_k.reshape(k.size), num_tokens, accs, sizes)
                start = stop
                seq += 1

        for seq in prange(num_seqs):
            # Block b lies in the share i with i * num_blocks < (b + 1) * num_shares at last.
            first = ((first_block[seq] + 1) * num_shares - 1) // num_blocks + seq
            last = (first_block[seq + 1] * num_shares - 1) // num_blocks + seq
            for head in range(num_heads):
                m = max_logits[first, head]
                for partition in range(first + 1, last + 1):
                    m = max(m, max_logits[partition, head])
                l = np.float32(0)
                out[seq, head] = 0
                for partition in range(first, last + 1):
                    # below the maximum of all, a partition counts e**(its own maximum - m)
                    factor = exp(max_logits[partition, head] - m)
                    l += factor * exp_sums[partition, head]
                    for d in range(sizes.HEAD_SIZE):
                        out[seq, head, d] += factor * tmp_out[partition, head, d]
                qk_max[seq, head] = m
                exp_sum[seq, head] = l
                for d in range(sizes.HEAD_SIZE):
                    out[seq, head, d] /= l

    return kernel
