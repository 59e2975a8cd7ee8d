"""Alternatives to the CPU kernel in torch, with all memory allocated beforehand.

On contiguous K and V, so without any paging:
    sdpa             scaled_dot_product_attention, one query per head
    sdpa_rows        the same with the query heads of a KV head as one matrix
    matmul           matmul, softmax, matmul
On a cache in blocks: make the blocks of each sequence contiguous, then attend.
    gather_heads_*   one index_select of the (block, head) rows of the plain layout
    gather_tokens_*  one index_select of the blocks of a token-major cache; attention reads a
                     transposed view

A server would compute the indexes for each step. Here they are computed before the clock starts,
so the peers get every advantage.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pa_tutorial.arguments import require
from pa_tutorial.bench.cpu_inputs import Batch, Step


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one query per sequence, for the scale head_size**-0.5.

    q        [num_seqs, num_heads, head_size]
    k, v     [num_seqs, num_kv_heads, seq_len, head_size]
    returns  the shape of q
    """
    shared = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=shared)[:, :, 0]


def as_rows(q: Tensor, k: Tensor) -> Tensor:
    """[num_seqs, num_kv_heads, query heads per KV head, head_size]."""
    return q.unflatten(1, (k.shape[1], -1))


def sdpa_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sdpa for grouped queries: at decode all query heads of a KV head see the same tokens."""
    return scaled_dot_product_attention(as_rows(q, k), k, v).flatten(1, 2)


def matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The definition: out = softmax(scale * q k^T) v."""
    qk = q.shape[-1] ** -0.5 * as_rows(q, k) @ k.mT
    return (qk.softmax(dim=-1) @ v).flatten(1, 2)


def rows_of_heads(block_tables: Tensor, num_kv_heads: int) -> Tensor:
    """Row numbers of a plain cache seen as rows of one head in one block.

    block_tables  [num_seqs, num_blocks]
    returns       [num_seqs * num_kv_heads * num_blocks]  row = block * num_kv_heads + head
    """
    heads = torch.arange(num_kv_heads, dtype=block_tables.dtype)
    return (block_tables[:, None] * num_kv_heads + heads[:, None]).flatten()


def gather_heads(cache: Tensor, rows: Tensor, memory: Tensor) -> Tensor:
    """Copy the rows of each sequence side by side; every byte is moved once.

    cache    [num_blocks, num_kv_heads, block_size, head_size]
    rows     from rows_of_heads
    memory   [num_seqs, num_kv_heads, num_blocks, block_size, head_size], to copy to
    returns  [num_seqs, num_kv_heads, num_blocks * block_size, head_size], a view of memory
    """
    torch.index_select(cache.flatten(2).flatten(0, 1), 0, rows, out=memory.view(len(rows), -1))
    return memory.flatten(2, 3)


def gather_tokens(cache: Tensor, blocks: Tensor, memory: Tensor) -> Tensor:
    """Like gather_heads, for a token-major cache, which attention then reads with a stride.

    cache    [pool, block_size, num_kv_heads, head_size]
    blocks   [num_seqs * num_blocks]  the block tables, one after another
    memory   as in gather_heads
    returns  as gather_heads, but a transposed view
    """
    num_seqs = len(memory)
    copied = memory.view(len(blocks), *cache.shape[1:])
    torch.index_select(cache, 0, blocks, out=copied)
    return copied.view(num_seqs, -1, *cache.shape[2:]).transpose(1, 2)


def peers(batch: Batch) -> dict[str, Step]:
    """name -> one decode step of the batch; all of them give the same result.

    Raises ValueError if the sequences differ in length, because the peers would need a mask.
    """
    lens = batch.shape.seq_lens
    require(len(set(lens)) == 1, "batch.shape.seq_lens", lens, "equal: the peers have no mask")
    q, (k, v) = batch.q, batch.contiguous
    steps = {"sdpa": lambda: sdpa(q, k, v), "matmul": lambda: matmul(q, k, v)}
    if q.shape[1] != k.shape[1]:  # without shared KV heads it is the same call as sdpa
        steps["sdpa_rows"] = lambda: sdpa_rows(q, k, v)
    return steps | gathering_peers(batch)


def gathering_peers(batch: Batch) -> dict[str, Step]:
    """Gathering and attention, each way."""
    shape, tables = batch.shape, batch.block_tables
    rows, blocks = rows_of_heads(tables, shape.num_kv_heads), tables.flatten()
    size = len(tables), shape.num_kv_heads, tables.shape[1], shape.block_size, shape.head_size
    memory = torch.zeros(2, *size, dtype=shape.dtype)

    def gathered(gather, caches, numbers):
        places = (gather(cache, numbers, to) for cache, to in zip(caches, memory, strict=True))
        return [place[:, :, : shape.seq_lens[0]] for place in places]

    heads = partial(gathered, gather_heads, batch.memory, rows)
    tokens = partial(gathered, gather_tokens, batch.token_major, blocks)
    return {
        "gather_heads_sdpa": lambda: sdpa_rows(batch.q, *heads()),
        "gather_heads_matmul": lambda: matmul(batch.q, *heads()),
        "gather_tokens_sdpa": lambda: sdpa_rows(batch.q, *tokens()),
    }
