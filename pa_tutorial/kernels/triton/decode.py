"""Paged decode in Triton: one program takes all query heads of one KV head, over one partition.

A Triton program works on tiles, not on threads: a line says what happens to a whole tile of
numbers, and the compiler chooses the threads, the vectors and the shared memory. The algorithm is
the same as in paged_online and v2. The sizes of a tile must be powers of two, so a tile that is
larger than needed is masked.

The names are as in v1.py and v2.py; backend.py says what the arguments hold.
Source for the split into partitions and a second kernel: vLLM,
vllm/attention/ops/triton_decode_attention.py.
"""

import triton
import triton.language as tl

# An integer argument that is 1, or a multiple of 16, is compiled anew, unless it is named here.
ANY_VALUE = ["table_stride", "partition_size", "max_num_partitions"]


@triton.jit
def decoded(stored):
    """Elements of the cache as numbers. Those of an 8-bit cache come as integers, int8 for
    float8_e5m2 and uint8 for float8_e4m3fn, and become float32; others stay as they are."""
    if stored.dtype == tl.int8:  # the upper half of a float16
        half = (stored.to(tl.int16) << 8).to(tl.float16, bitcast=True)
        return half.to(tl.float32)
    elif stored.dtype == tl.uint8:
        # A float16 has one bit of exponent more, and a bias of 15 in place of 7: with the same
        # bits it is 2**8 too small. This holds without the hidden 1, too.
        sign, bits = stored.to(tl.int16) & 0x80, stored.to(tl.int16) & 0x7F
        half = (sign << 8 | bits << 7).to(tl.float16, bitcast=True)
        return tl.where(bits == 0x7F, float("nan"), 256 * half.to(tl.float32))
    else:
        return stored


@triton.jit(do_not_specialize=ANY_VALUE)
def paged_decode_kernel(
    max_logits_ptr, exp_sums_ptr, tmp_out_ptr, q_ptr, k_cache_ptr, v_cache_ptr, block_tables_ptr,
    seq_lens_ptr, alibi_slopes_ptr, k_scale_ptr, v_scale_ptr, scale, partition_size,
    max_num_partitions, table_stride, q_stride, kv_block_stride, kv_head_stride,
    NUM_QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE_SIZE: tl.constexpr, NUM_QUERIES_PADDED: tl.constexpr, HEAD_SIZE_PADDED: tl.constexpr,
):  # fmt: skip
    """max_logits, exp_sums [num_seqs, num_heads, max_num_partitions], tmp_out [.., HEAD_SIZE]."""
    kv_head_idx = tl.program_id(0).to(tl.int64)
    seq_idx = tl.program_id(1).to(tl.int64)
    partition_idx = tl.program_id(2)
    seq_len = tl.load(seq_lens_ptr + seq_idx)
    first = partition_idx * partition_size
    if first >= seq_len:
        return
    last = tl.minimum(first + partition_size, seq_len)

    # The query heads of this KV head, one a row: [NUM_QUERIES_PADDED, HEAD_SIZE_PADDED]
    row = tl.arange(0, NUM_QUERIES_PADDED)
    element = tl.arange(0, HEAD_SIZE_PADDED)
    is_row = row < NUM_QUERIES_PER_KV
    is_element = element < HEAD_SIZE
    is_query = is_row[:, None] & is_element[None, :]
    head_idx = kv_head_idx * NUM_QUERIES_PER_KV + row
    q_offset = seq_idx * q_stride + head_idx[:, None] * HEAD_SIZE + element[None, :]
    q = tl.load(q_ptr + q_offset, mask=is_query, other=0.0)
    slopes = tl.load(alibi_slopes_ptr + head_idx, mask=is_row, other=0.0)
    # Scores and sums are multiplied by the scales of an 8-bit cache, which costs nothing per
    # element. For any other cache they are None, and nothing is compiled for them.
    if k_scale_ptr is not None:
        scale *= tl.load(k_scale_ptr + kv_head_idx)

    m = tl.full([NUM_QUERIES_PADDED], float("-inf"), tl.float32)
    l = tl.full([NUM_QUERIES_PADDED], 0.0, tl.float32)
    acc = tl.full([NUM_QUERIES_PADDED, HEAD_SIZE_PADDED], 0.0, tl.float32)
    for start in range(first, last, TILE_SIZE):
        # Each token of the tile finds its own block: a tile may be part of a block, or several.
        token_idx = start + tl.arange(0, TILE_SIZE)
        is_token = token_idx < last
        table_ptr = block_tables_ptr + seq_idx * table_stride + token_idx // BLOCK_SIZE
        block_number = tl.load(table_ptr, mask=is_token, other=0).to(tl.int64)
        token_offset = block_number * kv_block_stride + (token_idx % BLOCK_SIZE) * HEAD_SIZE
        kv_offset = token_offset[:, None] + kv_head_idx * kv_head_stride + element[None, :]
        is_kv = is_token[:, None] & is_element[None, :]

        # qk[h, t] = scale * (q_h . k_t) + slope_h * (t - seq_len + 1)
        k = decoded(tl.load(k_cache_ptr + kv_offset, mask=is_kv, other=0.0)).to(q.dtype)
        qk = scale * tl.dot(q, tl.trans(k), input_precision="ieee")
        qk += slopes[:, None] * (token_idx - seq_len + 1)[None, :]
        qk = tl.where(is_token[None, :], qk, float("-inf"))

        # The rule of the online softmax; every tile has a token, so m_new is never -inf.
        m_new = tl.maximum(m, tl.max(qk, axis=1))
        weights = tl.exp(qk - m_new[:, None])
        rescale = tl.exp(m - m_new)
        l = l * rescale + tl.sum(weights, axis=1)
        v = decoded(tl.load(v_cache_ptr + kv_offset, mask=is_kv, other=0.0)).to(tl.float32)
        acc = acc * rescale[:, None] + tl.dot(weights, v, input_precision="ieee")
        m = m_new

    if v_scale_ptr is not None:
        acc *= tl.load(v_scale_ptr + kv_head_idx)
    place = (seq_idx * tl.num_programs(0) * NUM_QUERIES_PER_KV + head_idx) * max_num_partitions
    place += partition_idx
    tl.store(max_logits_ptr + place, m, mask=is_row)
    tl.store(exp_sums_ptr + place, l, mask=is_row)
    tl.store(tmp_out_ptr + place[:, None] * HEAD_SIZE + element[None, :], acc, mask=is_query)


@triton.jit(do_not_specialize=ANY_VALUE)
def reduce_kernel(
    out_ptr, max_logits_ptr, exp_sums_ptr, tmp_out_ptr, seq_lens_ptr, partition_size,
    max_num_partitions, HEAD_SIZE: tl.constexpr, HEAD_SIZE_PADDED: tl.constexpr,
    PARTITIONS_AT_ONCE: tl.constexpr,
):  # fmt: skip
    """out [num_seqs, num_heads, HEAD_SIZE]: one program a query head, by the same rule."""
    head_idx = tl.program_id(0)
    seq_idx = tl.program_id(1).to(tl.int64)
    element = tl.arange(0, HEAD_SIZE_PADDED)
    is_element = element < HEAD_SIZE
    query = seq_idx * tl.num_programs(0) + head_idx

    m = float("-inf")
    l = 0.0
    acc = tl.full([HEAD_SIZE_PADDED], 0.0, tl.float32)
    num_partitions = (tl.load(seq_lens_ptr + seq_idx) + partition_size - 1) // partition_size
    for start in range(0, num_partitions, PARTITIONS_AT_ONCE):
        partition_idx = start + tl.arange(0, PARTITIONS_AT_ONCE)
        is_partition = partition_idx < num_partitions
        place = query * max_num_partitions + partition_idx
        max_logits = tl.load(max_logits_ptr + place, mask=is_partition, other=float("-inf"))
        exp_sums = tl.load(exp_sums_ptr + place, mask=is_partition, other=0.0)
        is_tmp = is_partition[:, None] & is_element[None, :]
        tmp_offset = place[:, None] * HEAD_SIZE + element[None, :]
        tmp_out = tl.load(tmp_out_ptr + tmp_offset, mask=is_tmp, other=0.0)

        m_new = tl.maximum(m, tl.max(max_logits, axis=0))
        weights = tl.exp(max_logits - m_new)
        rescale = tl.exp(m - m_new)
        l = l * rescale + tl.sum(weights * exp_sums, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * tmp_out, axis=0)
        m = m_new

    out = (acc / l).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + query * HEAD_SIZE + element, out, mask=is_element)
